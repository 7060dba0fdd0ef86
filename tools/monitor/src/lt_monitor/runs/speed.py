"""How fast a run is, whatever its trainer printed: seconds a step, tokens, floating-point operations, share of the peak (MFU).

Numbers that the trainer prints take precedence. The others are computed from what it prints, from the sizes in its dump of
arguments, and from `RunFacts`, which the user gave: TorchTitan prints no step time, Megatron no tokens, NeMo neither model nor
sequence length. Operations are counted as lt-train counts them, attention over the causal half of the sequence, so figures
are lower than Megatron's and TorchTitan's figures for the same speed (13% for Llama 3 8B at 8,192 tokens).
"""

import dataclasses
import math
from typing import Self

import numpy as np

from lt_monitor.events.records import Record
from lt_monitor.events.steps import Steps
from lt_shared.console import BadConfig, UsageError
from lt_shared.models import peak_flops, presets
from lt_shared.models.architecture import Architecture


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """Facts that the user gives because the logs lack them: model, sequence length, number of GPUs, GPU name."""

    model: Architecture | None = None
    seq_length: int | None = None
    gpus: int | None = None
    gpu: str | None = None

    @classmethod
    def of(cls, model: str | None, seq_length: int | None, gpus: int | None, gpu: str | None) -> Self:
        """From the options of the command line. Raises UsageError for a model or a GPU that is not known."""
        if gpu is not None and math.isnan(peak_flops.peak_flops(gpu, peak_flops.HALF)):
            raise UsageError(f"--gpu {gpu}: its peak FLOP/s are not known", f"known GPUs are {', '.join(peak_flops.PEAKS)}")
        return cls(presets.preset(model) if model else None, seq_length, gpus, gpu)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What speeds are worked out from; None where nobody says it. `peak_flops` is NaN for a device that is not in the table."""

    global_batch_size: int | None = None
    seq_length: int | None = None
    gpus: int | None = None
    flops_per_token: int | None = None
    peak_flops: float = math.nan

    @classmethod
    def of(cls, arguments: Record, run_facts: RunFacts) -> "Sizes":
        """From a run's arguments, where the user does not know better."""
        seq_length = run_facts.seq_length or positive(arguments.get("seq_length"))
        model = run_facts.model or architecture(arguments)
        number_type = peak_flops.FP8 if arguments.get("fp8") not in (None, False, "False", "None") else peak_flops.HALF
        return cls(
            global_batch_size=positive(arguments.get("global_batch_size")),
            seq_length=seq_length,
            gpus=run_facts.gpus or positive(arguments.get("world_size")),
            flops_per_token=model.flops_per_token(seq_length) if model and seq_length else None,
            peak_flops=peak_flops.peak_flops(run_facts.gpu, number_type) if run_facts.gpu else math.nan,
        )


def positive(value: object) -> int | None:
    """Parse a positive whole number from an argument dump; None if it is something else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and value > 0 else None


def architecture(arguments: Record) -> Architecture | None:
    """The model that Megatron's arguments describe, as far as matrix products go; None when a size is missing or odd."""
    sizes = {name: positive(arguments.get(name)) for name in ("num_layers", "hidden_size", "num_attention_heads")}
    vocab_size = positive(arguments.get("padded_vocab_size")) or positive(arguments.get("vocab_size"))
    layers, hidden, heads = sizes.values()
    if layers is None or hidden is None or heads is None or vocab_size is None:
        return None
    gated = str(arguments.get("swiglu")) == "True"
    grouped = str(arguments.get("group_query_attention")) == "True"
    experts = positive(arguments.get("num_experts"))
    ffn = (positive(arguments.get("moe_ffn_hidden_size")) if experts else None) or positive(arguments.get("ffn_hidden_size"))
    try:
        return Architecture(
            name="logged",
            family="llama" if gated else "gpt",
            num_layers=layers,
            hidden_size=hidden,
            ffn_hidden_size=ffn or 4 * hidden,
            num_attention_heads=heads,
            num_query_groups=(positive(arguments.get("num_query_groups")) if grouped else None) or heads,
            vocab_size=vocab_size,
            max_position_embeddings=1,
            kv_channels=positive(arguments.get("kv_channels")) or 0,
            num_experts=experts,
            moe_router_topk=positive(arguments.get("moe_router_topk")) or 2,
        )
    except BadConfig:
        return None


def step_seconds(steps: Steps) -> np.ndarray:
    """Seconds a step, shape (points,): as printed, else between the times of two lines; NaN where neither is known."""
    with np.errstate(invalid="ignore", divide="ignore"):
        between = np.diff(steps.times, prepend=np.nan) / np.diff(steps.numbers, prepend=0)
    return _first_finite(steps.column("step_seconds"), np.where(between > 0, between, np.nan))


def tokens_per_second(steps: Steps, sizes: Sizes) -> np.ndarray:
    """Total tokens per second, shape (points,). The batch size in a step line takes precedence over the arguments."""
    candidates = [steps.column("tokens_per_second")]
    if sizes.gpus:
        candidates.append(steps.column("tokens_per_second_per_gpu") * sizes.gpus)
    if sizes.seq_length:
        candidates.append(steps.column("samples_per_second") * sizes.seq_length)
        batch_size = _first_finite(steps.column("global_batch_size"), np.full(len(steps), sizes.global_batch_size or np.nan))
        with np.errstate(divide="ignore", invalid="ignore"):
            candidates.append(batch_size * sizes.seq_length / step_seconds(steps))
    if "consumed_tokens" in steps.columns:
        candidates.append(_rate_of_consumed_tokens(steps))
    return _first_finite(*candidates)


def _rate_of_consumed_tokens(steps: Steps) -> np.ndarray:
    """Tokens per second between two lines that count the tokens since the start, as Hugging Face's Trainer does."""
    counted = np.flatnonzero(np.isfinite(steps.column("consumed_tokens")))
    tokens, numbers = np.diff(steps.column("consumed_tokens")[counted]), np.diff(steps.numbers[counted])
    rates = np.full(len(steps), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        rates[counted[1:]] = np.where(tokens > 0, tokens / (numbers * step_seconds(steps)[counted[1:]]), np.nan)
    return rates


def tokens_per_second_per_gpu(steps: Steps, sizes: Sizes) -> np.ndarray:
    """Shape (points,)."""
    return _first_finite(steps.column("tokens_per_second_per_gpu"), tokens_per_second(steps, sizes) / (sizes.gpus or np.nan))


def tflops_per_gpu(steps: Steps, sizes: Sizes) -> np.ndarray:
    """TFLOP/s per GPU, shape (points,)."""
    counted = tokens_per_second_per_gpu(steps, sizes) * (sizes.flops_per_token or np.nan) / 1e12
    return _first_finite(steps.column("tflops_per_gpu"), counted)


def mfu(steps: Steps, sizes: Sizes) -> np.ndarray:
    """The share, 0 to 1, of the GPU's peak that the model's operations use, shape (points,)."""
    return _first_finite(steps.column("mfu"), tflops_per_gpu(steps, sizes) * 1e12 / sizes.peak_flops)


def _first_finite(*columns: np.ndarray) -> np.ndarray:
    """Point by point the first column that has a finite value there, else NaN."""
    chosen = np.full(columns[0].shape, np.nan)
    for column in columns:
        chosen = np.where(np.isnan(chosen) & np.isfinite(column), column, chosen)
    return chosen
