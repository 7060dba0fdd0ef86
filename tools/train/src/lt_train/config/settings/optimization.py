"""The optimizer, the schedules of its learning rate and weight decay, and when a run that diverges is stopped.

All schedules count samples, as Megatron's do: lengths in iterations are converted to the samples that the iterations take.
"""

import dataclasses
import importlib.util
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import click

from lt_shared import console
from lt_shared.console import BadConfig, ToolError, UsageError
from lt_shared.models.architecture import Architecture
from lt_train.config.megatron_version import release
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.model.mup import Mup, resolve_mup
from lt_train.config.settings.parallelism import Parallelism

if TYPE_CHECKING:
    from lt_train.config.settings.checkpointing import Checkpointing

OPTIMIZERS = ("adam", "muon")
DECAY_STYLES = ("cosine", "linear", "constant", "inverse-square-root", "WSD")
WSD_STYLES = ("exponential", "linear", "cosine", "minus_sqrt")
INCREMENT_STYLES = ("constant", "linear", "cosine")
# Earlier versions want an older emerging-optimizers than PyPI has.
MUON_VERSION = (0, 19)
LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127

POSITIVE = click.IntRange(min=1)
NOT_NEGATIVE = click.IntRange(min=0)
RATE = console.FiniteRange(min=0)
MOMENT = console.FiniteRange(0, 1, max_open=True)

OPTIONS = console.section(
    "Optimizer",
    click.option(
        "--optimizer",
        type=click.Choice(OPTIMIZERS),
        default="adam",
        help="Select AdamW (adam), or Muon for the weight matrices (muon).",
    ),
    click.option("--lr", type=console.FiniteRange(min=0, min_open=True), default=3e-4, help="Set the peak learning rate."),
    click.option("--min-lr", type=RATE, help="Set the final learning rate; by default a tenth of the peak."),
    click.option("--lr-decay-style", type=click.Choice(DECAY_STYLES), default="cosine", help="Select the shape of the decay."),
    click.option(
        "--lr-decay-iters", type=POSITIVE, help="Set the step that reaches the final learning rate; by default the last."
    ),
    click.option("--lr-decay-samples", type=POSITIVE, help="Set the length of the decay in samples."),
    click.option("--lr-warmup-iters", type=NOT_NEGATIVE, help="Warm up linearly over this many steps; by default 1% of the run."),
    click.option("--lr-warmup-samples", type=NOT_NEGATIVE, help="Set the length of the warm-up in samples."),
    click.option("--lr-warmup-fraction", type=MOMENT, help="Set the length of the warm-up as a fraction of the decay."),
    click.option("--lr-warmup-init", type=RATE, default=0.0, help="Set the learning rate at the start of the warm-up."),
    click.option(
        "--lr-wsd-decay-style",
        type=click.Choice(WSD_STYLES),
        default="exponential",
        help="Select the shape of WSD's final decay.",
    ),
    click.option(
        "--lr-wsd-decay-iters", type=POSITIVE, help="Set the steps of WSD's final decay; by default a tenth of --lr-decay-iters."
    ),
    click.option("--lr-wsd-decay-samples", type=POSITIVE, help="Set the length of WSD's final decay in samples."),
    click.option("--weight-decay", type=RATE, default=0.1, help="Set the weight decay; norms and biases are not decayed."),
    click.option("--start-weight-decay", type=RATE, help="Set the weight decay at the start, if it changes during the run."),
    click.option("--end-weight-decay", type=RATE, help="Set the weight decay at the end of the run."),
    click.option(
        "--weight-decay-incr-style",
        type=click.Choice(INCREMENT_STYLES),
        default="constant",
        help="Select how the weight decay changes between start and end.",
    ),
    click.option("--adam-beta1", type=MOMENT, default=0.9, help="Set the decay of the first moment."),
    click.option("--adam-beta2", type=MOMENT, default=0.95, help="Set the decay of the second moment."),
    click.option("--adam-eps", type=console.FiniteRange(min=0, min_open=True), default=1e-8, help="Set the epsilon of AdamW."),
    click.option("--clip-grad", type=RATE, default=1.0, help="Clip gradients to this norm; 0 does not clip."),
    click.option(
        "--calculate-per-token-loss",
        is_flag=True,
        help="Average the loss over the counted tokens of the global batch; by default over the means of the micro batches.",
    ),
    click.option(
        "--z-loss-coeff",
        type=RATE,
        default=0.0,
        help="Set the weight of the z-loss, the squared log of the softmax's normaliser.",
    ),
    click.option(
        "--dsa-indexer-loss-coeff",
        type=RATE,
        default=0.0,
        help="Set the weight of the loss of sparse attention's indexers; without it they do not learn.",
    ),
    click.option(
        "--dsa-indexer-use-sparse-loss",
        is_flag=True,
        help="Compare an indexer with attention to the chosen tokens only, not to all.",
    ),
    click.option("--mtp-loss-scaling-factor", type=RATE, default=0.1, help="Set the weight of the multi-token prediction loss."),
    click.option(
        "--moe-router-bias-update-rate",
        type=RATE,
        default=1e-3,
        help="Set the step size of the router's balancing biases (DeepSeek-V3).",
    ),
    click.option(
        "--ema-decay",
        type=console.FiniteRange(0, 1, min_open=True, max_open=True),
        help="Average the weights exponentially with this decay per step, beside training; evaluate and save the average, too.",
    ),
    click.option("--max-nan-steps", type=POSITIVE, default=10, help="Stop after this many skipped steps in a row."),
)


@dataclasses.dataclass(frozen=True)
class Optimization:
    """`wsd_decay_samples` is the length of the WSD schedule's last part. Other schedules do not use it.

    `ema_decay` is None for a run that does not average its weights. `mup` is None unless rates are transferred from another
    width.
    """

    optimizer: str
    lr: float
    min_lr: float
    lr_decay_style: str
    lr_decay_samples: int
    lr_warmup_samples: int
    lr_warmup_init: float
    wsd_decay_style: str
    wsd_decay_samples: int
    start_weight_decay: float
    end_weight_decay: float
    weight_decay_style: str
    adam_beta1: float
    adam_beta2: float
    adam_eps: float
    clip_grad: float
    averages_tokens: bool
    z_loss_coeff: float
    mtp_loss_scaling_factor: float
    router_bias_update_rate: float
    max_nan_steps: int
    ema_decay: float | None = None
    indexer_loss_coeff: float = 0.0
    indexer_has_sparse_loss: bool = False
    mup: Mup | None = None

    @property
    def width_multiplier(self) -> float:
        return self.mup.width_multiplier if self.mup else 1.0

    @property
    def splits_state(self) -> bool:
        """Whether ranks can split the optimizer's state by elements. Muon needs whole matrices."""
        return self.optimizer != "muon"


def resolve_optimization(options: dict[str, Any], batches: Batches, architecture: Architecture) -> Optimization:
    """Resolve the optimizer options. Raises UsageError if one length is set twice."""
    decay = _length(options, "lr-decay", batches) or batches.length
    warmup = _length(options, "lr-warmup", batches)
    if options["lr_warmup_fraction"] is not None:
        if warmup is not None:
            raise UsageError("--lr-warmup-fraction and another length of the warm-up", "give one of them")
        warmup = int(options["lr_warmup_fraction"] * decay)
    return Optimization(
        optimizer=options["optimizer"],
        lr=options["lr"],
        min_lr=options["lr"] / 10 if options["min_lr"] is None else options["min_lr"],
        lr_decay_style=options["lr_decay_style"],
        lr_decay_samples=decay,
        lr_warmup_samples=batches.samples_after(batches.train_iters // 100) if warmup is None else warmup,
        lr_warmup_init=options["lr_warmup_init"],
        wsd_decay_style=options["lr_wsd_decay_style"],
        wsd_decay_samples=_last(options, batches, decay) or max(1, decay // 10),
        start_weight_decay=_or(options["start_weight_decay"], options["weight_decay"]),
        end_weight_decay=_or(options["end_weight_decay"], options["weight_decay"]),
        weight_decay_style=options["weight_decay_incr_style"],
        adam_beta1=options["adam_beta1"],
        adam_beta2=options["adam_beta2"],
        adam_eps=options["adam_eps"],
        clip_grad=options["clip_grad"],
        averages_tokens=options["calculate_per_token_loss"],
        z_loss_coeff=options["z_loss_coeff"],
        mtp_loss_scaling_factor=options["mtp_loss_scaling_factor"],
        router_bias_update_rate=options["moe_router_bias_update_rate"],
        max_nan_steps=options["max_nan_steps"],
        ema_decay=options["ema_decay"],
        indexer_loss_coeff=options["dsa_indexer_loss_coeff"],
        indexer_has_sparse_loss=options["dsa_indexer_use_sparse_loss"],
        mup=resolve_mup(options, architecture.hidden_size),
    )


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _length(options: dict[str, Any], name: str, batches: Batches) -> int | None:
    """Return the length in samples set by --NAME-iters, counted from the run's start, or by --NAME-samples; else None."""
    key = name.replace("-", "_")
    iterations, samples = options[f"{key}_iters"], options[f"{key}_samples"]
    if iterations is None or samples is None:
        return samples if iterations is None else batches.samples_after(iterations)
    raise UsageError(f"both --{name}-iters and --{name}-samples", "give one of them")


def _last(options: dict[str, Any], batches: Batches, decay: int) -> int | None:
    """Return the length in samples of the last part of a WSD schedule with `decay` samples; None if no option sets it.

    `_length` would count the part's iterations from the start of the run, but a step's batch size may have grown until then.
    """
    samples, iterations = _length(options, "lr-wsd-decay", batches), options["lr_wsd_decay_iters"]
    steps = batches.steps_within(decay)
    if iterations is None or iterations > steps:
        return samples
    return batches.samples_after(steps) - batches.samples_after(steps - iterations)


def missing_packages(optimization: Optimization) -> Iterator[ToolError]:
    """Yield BadConfig if the optimizer is not installed here."""
    if optimization.optimizer != "muon":
        return
    version = metadata.version("megatron-core")
    if release(version) < MUON_VERSION:
        yield BadConfig(
            f"Muon is there from megatron-core {MUON_VERSION[0]}.{MUON_VERSION[1]} on, this is {version}",
            "pip install 'lt-train[muon]'",
        )
    if importlib.util.find_spec("emerging_optimizers") is None:
        yield BadConfig("megatron-core takes Muon from a package that is not installed", "pip install 'lt-train[muon]'")


def check(optimization: Optimization, dtype: str, parallelism: Parallelism, architecture: Architecture) -> Iterator[ToolError]:
    """Yield BadConfig if a schedule contradicts itself or Muon cannot run. `dtype` is the weights' type."""
    settings = optimization
    if not 0 <= settings.min_lr <= settings.lr:
        yield BadConfig(f"minimum learning rate {settings.min_lr} is not between 0 and the learning rate {settings.lr}")
    # AdamW divides its first step by 1 - beta1.
    if max(settings.lr / (1 - settings.adam_beta1), settings.lr * settings.end_weight_decay) > LARGEST_FLOAT32:
        yield BadConfig(f"learning rate {settings.lr}: a step of AdamW is larger than float32 holds", "lower --lr")
    if settings.lr_warmup_init > settings.lr:
        yield BadConfig(
            f"warm-up starts at {settings.lr_warmup_init}, above the learning rate {settings.lr}", "lower --lr-warmup-init"
        )
    if settings.lr_warmup_samples >= settings.lr_decay_samples:
        yield BadConfig(
            f"warm-up over {settings.lr_warmup_samples} samples is not shorter than the decay over"
            f" {settings.lr_decay_samples} samples",
            "lower --lr-warmup-iters",
        )
    if settings.lr_decay_style == "WSD" and settings.lr_warmup_samples + settings.wsd_decay_samples > settings.lr_decay_samples:
        yield BadConfig(
            f"warm-up over {settings.lr_warmup_samples} and decay over {settings.wsd_decay_samples} samples do not fit in the"
            f" {settings.lr_decay_samples} samples of the schedule",
            "lower --lr-wsd-decay-iters",
        )
    start, end = settings.start_weight_decay, settings.end_weight_decay
    if end < start:
        yield BadConfig(f"weight decay falls from {start} to {end}", "megatron-core knows constant and rising weight decay")
    if settings.weight_decay_style == "constant" and start != end:
        yield BadConfig(f"constant weight decay from {start} to {end}", "add --weight-decay-incr-style linear")
    if settings.optimizer == "muon":
        yield from _check_muon(dtype, parallelism, architecture)


def check_average(optimization: Optimization, checkpointing: "Checkpointing", names: Sequence[str]) -> Iterator[ToolError]:
    """Yield BadConfig if the average of the weights is not saved, or if its loss would have the name of a validation set."""
    if optimization.ema_decay is None:
        return
    if checkpointing.save and checkpointing.no_save_optim:
        yield BadConfig(
            "--ema-decay with --no-save-optim: checkpoints have the average in the optimizer's state", "drop --no-save-optim"
        )
    for name in names:
        if averaged_set(name) in names:
            yield BadConfig(
                f"--valid-data-path: the loss of the averaged weights on {name} is called {averaged_set(name)}, as another set",
                "choose another name for the set",
            )


def averaged_set(name: str | None) -> str:
    """Return the name of the losses of the averaged weights on a validation set."""
    return f"{name}-ema" if name else "ema"


def _check_muon(dtype: str, parallelism: Parallelism, architecture: Architecture) -> Iterator[ToolError]:
    groups = architecture.num_query_groups
    if parallelism.tensor > groups:
        yield BadConfig(
            f"Muon needs whole query groups on a rank, tensor parallel size {parallelism.tensor} splits {groups}",
            f"use --tensor-model-parallel-size {groups} or less, or --optimizer adam",
        )
    if dtype == "float16":
        yield BadConfig("megatron-core's Muon does not scale the loss, which fp16 needs", "use --bf16")
    if parallelism.distributed_optimizer:
        yield BadConfig("Muon needs whole matrices, the distributed optimizer splits them", "drop --use-distributed-optimizer")
