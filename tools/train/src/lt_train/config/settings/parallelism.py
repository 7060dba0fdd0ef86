"""The parallel layout: tensor, pipeline, context, expert and data parallel sizes."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig, ToolError, UsageError
from lt_shared.models.architecture import Architecture
from lt_shared.models.architecture.mixers import MIXERS
from lt_train.config.settings import pipeline_layout
from lt_train.process import device, rank_environment

POSITIVE = click.IntRange(min=1)

MANUAL, AUTO = "manual", "auto"
ONE_F_ONE_B, ZERO_BUBBLE = "1f1b", "zero-bubble"
# A vocabulary is padded to a multiple of this many columns for each tensor-parallel rank.
VOCABULARY_MULTIPLE = 128
# The GPUs of the largest node or rack: more ranks do not share a layer.
MOST_TENSOR_PARALLEL = 72

OPTIONS = console.section(
    "Parallelism",
    click.option(
        "--parallel",
        type=click.Choice([MANUAL, AUTO]),
        default=MANUAL,
        help="Set the layout by hand or auto: auto chooses the sizes below and recomputation to fit the GPUs' memory.",
    ),
    click.option(
        "--tensor-model-parallel-size",
        type=POSITIVE,
        default=1,
        help="Split within layers over this many ranks: tensor parallelism.",
    ),
    click.option(
        "--pipeline-model-parallel-size",
        type=POSITIVE,
        default=1,
        help="Split by layers over this many ranks: pipeline parallelism.",
    ),
    click.option(
        "--context-parallel-size",
        type=POSITIVE,
        default=1,
        help="Split sequences over this many ranks: context parallelism.",
    ),
    click.option(
        "--expert-model-parallel-size",
        type=POSITIVE,
        default=1,
        help="Split the experts over this many data-parallel ranks: expert parallelism.",
    ),
    click.option(
        "--num-layers-per-virtual-pipeline-stage", type=POSITIVE, help="Interleave the pipeline in stages of this many layers."
    ),
    click.option(
        "--num-virtual-stages-per-pipeline-rank", type=POSITIVE, help="Interleave the pipeline with this many stages per rank."
    ),
    click.option(
        "--pipeline-schedule",
        type=click.Choice([ONE_F_ONE_B, ZERO_BUBBLE]),
        default=ONE_F_ONE_B,
        help="Select the pipeline schedule; zero-bubble computes weight gradients in idle time, for more memory.",
    ),
    click.option(
        "--decoder-first-pipeline-num-layers", type=POSITIVE, help="Set the number of layers on the first pipeline rank."
    ),
    click.option("--decoder-last-pipeline-num-layers", type=POSITIVE, help="Set the number of layers on the last pipeline rank."),
    pipeline_layout.EMBEDDING_OPTION,
    pipeline_layout.LOSS_OPTION,
    pipeline_layout.LAYOUT_OPTION,
    click.option(
        "--sequence-parallel", is_flag=True, help="Split norms and dropout along the sequence over tensor-parallel ranks."
    ),
    click.option(
        "--tp-comm-overlap/--no-tp-comm-overlap",
        default=None,
        help="Overlap tensor-parallel collectives with GEMMs; by default if the run allows it.",
    ),
    click.option(
        "--use-distributed-optimizer", is_flag=True, help="Shard the optimizer state over data-parallel ranks (ZeRO-1)."
    ),
    click.option(
        "--ranks",
        type=POSITIVE,
        help="Start this many ranks here; by default one per GPU, or as many as model parallelism needs.",
    ),
    click.option(
        "--device",
        type=click.Choice(device.DEVICES),
        default="auto",
        help="Select where to train; auto uses the GPUs that it finds.",
    ),
)

# Option values for one stage per pipeline rank, and for the same number of layers on every rank.
WITHOUT_VIRTUAL_STAGES = {"num_layers_per_virtual_pipeline_stage": None, "num_virtual_stages_per_pipeline_rank": None}
EVEN = {"decoder_first_pipeline_num_layers": None, "decoder_last_pipeline_num_layers": None, **pipeline_layout.EVEN}


@dataclasses.dataclass(frozen=True)
class Parallelism:
    """Parallel sizes in ranks. `device` is one of `lt_train.process.device`.

    The data-parallel size is the world size divided by the tensor, pipeline and context parallel sizes.
    `interleaving` is the number of pipeline stages per rank, None for the schedules with one stage per rank.
    `first_stage_layers` and `last_stage_layers` count the layers on the first and last pipeline rank; None divides the layers
    evenly. `stage_layers` has the layers of every stage in the model's order; None if the fields before say them.
    `pipeline_schedule` applies without interleaving: 1F1B or zero-bubble.
    `tensor_overlap` is None if no option sets it: layers then overlap collectives with GEMMs if they support it.
    `expert` data-parallel ranks hold different experts and replicate all other weights.
    """

    device: str
    world_size: int
    tensor: int
    pipeline: int
    sequence: bool
    distributed_optimizer: bool
    context: int = 1
    interleaving: int | None = None
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None
    expert: int = 1
    tensor_overlap: bool | None = None
    pipeline_schedule: str = ONE_F_ONE_B
    stage_layers: tuple[int, ...] | None = None

    @property
    def defers_weight_gradients(self) -> bool:
        return self.pipeline_schedule == ZERO_BUBBLE

    @property
    def schedule(self) -> str:
        """Name the pipeline schedule, for people."""
        if self.defers_weight_gradients:
            return "zero bubble"
        return "interleaved 1F1B" if self.interleaving else "1F1B"

    @property
    def model(self) -> int:
        """Return the number of ranks that train one replica of the model."""
        return self.tensor * self.pipeline * self.context

    @property
    def data(self) -> int:
        return self.world_size // self.model

    def expert_tensor(self, model: Architecture) -> int:
        """Return how many tensor-parallel ranks share an expert: all, or 1 for experts with biases, as megatron-core requires."""
        return 1 if model.num_experts and model.add_bias_linear else self.tensor

    def padded_vocab_size(self, model: Architecture) -> int:
        return model.padded_vocab_size(VOCABULARY_MULTIPLE, self.tensor)

    def layers_of_stages(self, layers: int) -> tuple[int, ...]:
        """Return the number of layers of every stage, in the model's order, in a model of `layers` layers."""
        if self.stage_layers is not None:
            return self.stage_layers
        set_sizes = {0: self.first_stage_layers or 0, self.pipeline - 1: self.last_stage_layers or 0}
        remaining_layers = layers - sum(set_sizes.values())
        remaining_ranks = self.pipeline - sum(size > 0 for size in set_sizes.values())
        stages = self.interleaving or 1
        sizes = [set_sizes.get(rank) or remaining_layers // remaining_ranks for rank in range(self.pipeline)]
        return tuple(size // stages for size in sizes) * stages

    def layers_of(self, pipeline_rank: int, layers: int) -> int:
        """Count the layers on all stages of a pipeline rank in a model of `layers` layers."""
        return sum(self.layers_of_stages(layers)[pipeline_rank :: self.pipeline])

    def layer_numbers(self, pipeline_rank: int, layers: int) -> list[int]:
        """Return the layers of a pipeline rank, counted from 0. A stage has consecutive layers; ranks take stages in turn."""
        ends = list(itertools.accumulate(self.layers_of_stages(layers), initial=0))
        borders = list(itertools.pairwise(ends))[pipeline_rank :: self.pipeline]
        return [layer for start, stop in borders for layer in range(start, stop)]

    @property
    def described(self) -> str:
        """Describe the layout, for example "tensor 2 x pipeline 2 (3 stages each: 1 + 4 x 2 + 1 layers) x data 4"."""
        stages = f"{self.interleaving} stages each" if self.interleaving else ""
        if self.stage_layers:
            runs = [(layers, len(list(stages_alike))) for layers, stages_alike in itertools.groupby(self.stage_layers)]
            sizes = " + ".join(f"{count} x {layers}" if count > 1 else f"{layers}" for layers, count in runs)
            stages = f"{stages}: {sizes} layers" if stages else f"{sizes} layers"
        stages = f" ({stages})" if stages else ""
        context = f" x context {self.context}" if self.context > 1 else ""
        expert = f", experts on {self.expert}" if self.expert > 1 else ""
        return f"tensor {self.tensor} x pipeline {self.pipeline}{stages}{context} x data {self.data}{expert}"


def resolve_parallelism(options: dict[str, Any], model: Architecture, device_type: str, ranks: int | None = None) -> Parallelism:
    """Resolve the options. If `ranks` is None, the world size is the launcher's, or the number of ranks that lt-train starts."""
    tensor, pipeline = options["tensor_model_parallel_size"], options["pipeline_model_parallel_size"]
    context, expert = options["context_parallel_size"], options["expert_model_parallel_size"]
    stage_layers = pipeline_layout.resolve_stage_layers(options, model)
    return Parallelism(
        device=device_type,
        world_size=ranks or _world_size(options, device_type, tensor * pipeline * context * expert),
        tensor=tensor,
        pipeline=pipeline,
        sequence=options["sequence_parallel"],
        distributed_optimizer=options["use_distributed_optimizer"],
        context=context,
        interleaving=_interleaving(options, model.num_layers, pipeline, stage_layers),
        first_stage_layers=options["decoder_first_pipeline_num_layers"],
        last_stage_layers=options["decoder_last_pipeline_num_layers"],
        expert=expert,
        tensor_overlap=options["tp_comm_overlap"],
        pipeline_schedule=options["pipeline_schedule"],
        stage_layers=stage_layers,
    )


def _world_size(options: dict[str, Any], device_type: str, model_parallel: int) -> int:
    """Count the ranks that a launcher started, or that lt-train starts: the same number on every node."""
    started = rank_environment.find()
    if started is not None:
        if options["ranks"] and options["ranks"] != started.world_size:
            raise UsageError(f"--ranks {options['ranks']}, but {started.launcher} started {started.world_size}", "drop --ranks")
        return started.world_size
    node = rank_environment.find_node()
    if node is None:
        return options["ranks"] or device.default_ranks(device_type, model_parallel)
    nodes = node.nodes - int(options["spare_nodes"])
    if nodes < 1:
        raise UsageError(f"--spare-nodes {options['spare_nodes']} of {node.nodes} node(s): none is left", "use fewer")
    ranks: int = options["ranks"] or node.ranks or device.default_ranks(device_type, -(-model_parallel // nodes))
    return nodes * ranks


def _interleaving(options: dict[str, Any], layers: int, pipeline: int, divided: tuple[int, ...] | None) -> int | None:
    """Resolve the stages per pipeline rank: of the layers `divided` among the stages, or from one of Megatron's two options.

    Raises UsageError or BadConfig.
    """
    if divided:
        return len(divided) // pipeline if len(divided) > pipeline else None
    stage_layers, stages = options["num_layers_per_virtual_pipeline_stage"], options["num_virtual_stages_per_pipeline_rank"]
    if stage_layers and stages:
        raise UsageError("--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank", "pass one")
    if stage_layers:
        if options["decoder_first_pipeline_num_layers"] or options["decoder_last_pipeline_num_layers"]:
            raise UsageError(
                "layers per virtual stage are the same on all ranks, but the first or last pipeline rank has its own number",
                "pass --num-virtual-stages-per-pipeline-rank",
            )
        if layers % (pipeline * stage_layers):
            raise BadConfig(f"{layers} layers do not divide into stages of {stage_layers} on {pipeline} pipeline ranks")
        stages = layers // (pipeline * stage_layers)
    return stages if stages and stages > 1 else None


def _common_divisors(sizes: Iterable[int]) -> list[int]:
    largest = math.gcd(*sizes)
    return [size for size in range(1, min(largest, MOST_TENSOR_PARALLEL) + 1) if largest % size == 0]


def _join_choices(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


def check(parallel: Parallelism, model: Architecture, seq_length: int) -> Iterator[ToolError]:
    """Yield BadConfig if the sizes do not divide the model or the ranks."""
    if parallel.world_size % parallel.model:
        yield BadConfig(
            f"{parallel.world_size} ranks do not divide into tensor parallel {parallel.tensor}"
            f" x pipeline parallel {parallel.pipeline} x context parallel {parallel.context}",
            f"start a multiple of {parallel.model} ranks",
        )
    yield from _check_tensor(parallel, model)
    if parallel.sequence and parallel.tensor == 1:
        yield BadConfig("sequence parallelism needs a tensor parallel size above 1", "drop --sequence-parallel")
    if parallel.tensor_overlap and not parallel.sequence:
        yield BadConfig("--tp-comm-overlap needs sequence parallelism", "add --sequence-parallel")
    if parallel.pipeline > 1 and model.mtp_num_layers and model.tie_embeddings:
        # Three layers on two stages then share the embedding, and its gradient in a pipeline is not the gradient on one rank.
        yield BadConfig(
            "multi-token prediction with tied embeddings has other gradients in a pipeline",
            "drop --pipeline-model-parallel-size, or add --untie-embeddings-and-output-weights or --mtp-num-layers 0",
        )
    yield from _check_stages(parallel, model.num_layers)
    yield from _check_sequence(parallel, seq_length)
    yield from _check_mixers(parallel, model)


def _check_tensor(parallel: Parallelism, model: Architecture) -> Iterator[ToolError]:
    divisible = {what: size for mixer in model.mixers for what, size in MIXERS[mixer].divided(model).items()}
    shared = {what: size for mixer in model.mixers for what, size in MIXERS[mixer].shared(model).items()}
    divisible["feed-forward size"] = model.ffn_hidden_size
    choices = [ranks for ranks in _common_divisors(divisible.values()) if all(_shares(size, ranks) for size in shared.values())]
    remedy = f"choose {_join_choices(choices)}"
    for what, size in divisible.items():
        if size % parallel.tensor:
            yield BadConfig(f"{what} {size} not divisible by tensor parallel size {parallel.tensor}", remedy)
    for what, size in shared.items():
        if not _shares(size, parallel.tensor):
            yield BadConfig(f"{what} {size} neither a multiple nor a divisor of tensor parallel size {parallel.tensor}", remedy)


def _shares(units: int, ranks: int) -> bool:
    """Return whether each of `ranks` ranks has equally many of the `units`, or each unit belongs to equally many ranks."""
    return units % ranks == 0 or ranks % units == 0


def _check_stages(parallel: Parallelism, layers: int) -> Iterator[ToolError]:
    """Yield BadConfig if the layers do not divide among the pipeline ranks and their stages."""
    if parallel.interleaving and parallel.pipeline == 1:
        yield BadConfig("an interleaved pipeline needs a pipeline parallel size above 1", "drop the virtual stages")
    if parallel.defers_weight_gradients and parallel.pipeline == 1:
        yield BadConfig("--pipeline-schedule zero-bubble needs a pipeline parallel size above 1", "drop it")
    elif parallel.defers_weight_gradients and parallel.interleaving:
        yield BadConfig("--pipeline-schedule zero-bubble interleaves no stages", "drop it, or the virtual stages")
    if parallel.stage_layers:
        return
    stages = parallel.interleaving or 1
    set_sizes = [size for size in (parallel.first_stage_layers, parallel.last_stage_layers) if size]
    remaining, ranks = layers - sum(set_sizes), parallel.pipeline - len(set_sizes)
    if remaining < 0 or ranks < 0 or bool(remaining) != bool(ranks):
        yield BadConfig(
            f"{layers} layers do not divide among {parallel.pipeline} pipeline ranks,"
            f" the first or last with {set_sizes} of its own",
            "pass --pipeline-model-parallel-size as well"
            if parallel.pipeline == 1
            else "leave a layer for each of the other pipeline ranks",
        )
    for size in set_sizes:
        if size % stages:
            yield BadConfig(f"{size} layers of the first or last pipeline rank do not divide into {stages} virtual stages")
    if ranks and remaining % (ranks * stages):
        yield BadConfig(
            f"layers {remaining} not divisible by pipeline parallel size {ranks}"
            + (f" x {stages} virtual stages" if parallel.interleaving else "")
            + (f", which are left beside {set_sizes} on the first or last rank" if set_sizes else ""),
            "choose another pipeline parallel size" + (", or other layers of those ranks" if set_sizes else ""),
        )


def _check_sequence(parallel: Parallelism, seq_length: int) -> Iterator[ToolError]:
    """Yield BadConfig if context and sequence parallelism do not divide a sample.

    Each context-parallel rank computes two chunks of a sample, and sequence parallelism splits the chunks again.
    """
    pieces = 2 * parallel.context if parallel.context > 1 else 1
    if seq_length % pieces:
        yield BadConfig(
            f"sequence length {seq_length} not divisible by 2 x context parallel size {parallel.context}",
            "each rank has two chunks of the sequence",
        )
    if parallel.sequence and seq_length // parallel.context % parallel.tensor:
        yield BadConfig(
            f"sequence length {seq_length // parallel.context} of a context-parallel rank not divisible by tensor parallel size"
            f" {parallel.tensor}"
        )


def _check_mixers(parallel: Parallelism, model: Architecture) -> Iterator[ToolError]:
    """Yield BadConfig for mixers that cannot compute on a context-parallel rank's part of a sample, or on its heads."""
    if parallel.context == 1:
        return
    for mixer, layers in model.mixers.items():
        if not MIXERS[mixer].splits_samples:
            numbers = ", ".join(map(str, layers))
            yield BadConfig(
                f"context parallel size {parallel.context} splits samples, and the layers {numbers} (from 0) of {model.name} have"
                f" {mixer.replace('_', ' ')}, which needs them whole",
                "drop --context-parallel-size",
            )
        remedy = "choose another --context-parallel-size: its ranks exchange tokens for heads"
        ranks = f"tensor x context parallel size {parallel.tensor} x {parallel.context}"
        for what, size in MIXERS[mixer].exchanged(model).items():
            if size % (parallel.tensor * parallel.context):
                yield BadConfig(f"{what} {size} not divisible by {ranks}", remedy)
        for what, size in MIXERS[mixer].exchanged_shared(model).items():
            # The check of tensor parallelism refuses groups that it cannot divide.
            if size % parallel.tensor == 0 and not _shares(size // parallel.tensor, parallel.context):
                yield BadConfig(f"{what} {size} neither a multiple nor a divisor of {ranks}", remedy)


def check_micro_batches(parallel: Parallelism, micro_batches: int) -> Iterator[ToolError]:
    """Yield BadConfig if the micro batches are no multiple of the ranks, which an interleaved pipeline requires."""
    if parallel.interleaving and micro_batches % parallel.pipeline:
        yield BadConfig(
            f"{micro_batches} micro batches a step do not divide into groups of {parallel.pipeline} pipeline ranks, which"
            " interleaved stages need",
            f"make the global batch size a multiple of micro batch size x data parallel size x {parallel.pipeline}",
        )
