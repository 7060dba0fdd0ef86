"""Choose a layout: tensor, pipeline, context and expert parallel sizes and recomputation, from the model and the GPUs.

Every layout that passes the checks is estimated. Among the layouts that fit into a GPU's memory, the layout that wastes the least
time is chosen. The waste is a rough sum of five parts: a third more work for recomputing whole layers; the calculated losses by
the pipeline's bubble and by unequal stages; the measured cost for each doubling of ranks that exchange activations
(`measured_speeds`); a guessed cost of several stages per rank; and for a mixture the exchange of tokens and experts that are
computed one after another (`expert_costs`).
The waste puts layouts in an order and predicts no speed; `lt-train bench` measures speed. Tensor parallelism stays within a node.
Data-parallel ranks always split the optimizer state, because splitting costs nothing.
"""

import dataclasses
import functools
import math
from typing import Any

from lt_shared.console import BadConfig, ToolError, UsageError
from lt_train.config import kernels
from lt_train.config.checks import layout_problems
from lt_train.config.cluster import GIB, Cluster
from lt_train.config.run_config import RunConfig
from lt_train.config.settings import pipeline_layout
from lt_train.planner import expert_costs, measured_speeds, memory_estimate
from lt_train.planner.layout_space import EXPERT_SIZE, LayoutSpace
from lt_train.planner.memory_estimate import Estimate, MemoryEstimate
from lt_train.planner.stage_work import PipelineWork, model_work

# Memory that the estimate leaves out: CUDA and NCCL, kernels and fragments.
RUNTIME_BYTES = 3 * GIB // 2
SPARE_SHARE = 0.06
RECOMPUTATION = 1 / 3
LARGE_BUBBLE = 0.2
# The cost of twice as many stages per rank, which send twice as many activations. It was not measured.
VIRTUAL_STAGES_COST = 0.025
SIZES = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "num_layers_per_virtual_pipeline_stage"),
    "num_virtual_stages_per_pipeline_rank",
    *pipeline_layout.EVEN,
)


@dataclasses.dataclass(frozen=True)
class ParallelLayout:
    """A configuration with one parallel layout, the options that ask for it, and its cost on a cluster."""

    config: RunConfig
    options: dict[str, Any]
    cluster: Cluster

    @functools.cached_property
    def memory(self) -> MemoryEstimate:
        return memory_estimate.estimate(self.config)

    @functools.cached_property
    def estimate(self) -> Estimate:
        """Return the memory of the fullest rank."""
        return self.memory.fullest_rank

    @property
    def fits(self) -> bool:
        return self.estimate.total <= usable_bytes(self.cluster)

    @functools.cached_property
    def pipeline_work(self) -> PipelineWork:
        return PipelineWork.from_config(self.config)

    @property
    def recomputes_layers(self) -> bool:
        recompute = self.config.memory.recompute
        return recompute is not None and recompute.granularity == "full"

    @functools.cached_property
    def waste(self) -> float:
        """The time beyond the model's work, as a share of that work: 0.1 is a tenth more."""
        config, parallel = self.config, self.config.parallelism
        work = 1 + (RECOMPUTATION if self.recomputes_layers else 0)
        sizes = {"tensor": parallel.tensor, "context": parallel.context, "pipeline": parallel.pipeline}
        shared = sum(measured_speeds.cost(kind) * math.log2(size) for kind, size in sizes.items())
        shared += VIRTUAL_STAGES_COST * math.log2(parallel.interleaving or 1)
        if parallel.data > 1:
            shared += measured_speeds.cost("fully sharded" if config.memory.fully_sharded else "data")
        runs_one_by_one = kernels.runs_experts_one_by_one(config)
        ranks_per_node = self.cluster.ranks_per_node
        shared += expert_costs.overhead_share(config.architecture, config.batches, parallel, runs_one_by_one, ranks_per_node)
        return work * (1 + shared) / self.pipeline_work.share_left - 1

    @property
    def flags(self) -> list[str]:
        """The layout as command-line flags, with the flags of its configuration that the search did not set."""
        words = []
        memory, parallel = self.config.memory, self.config.parallelism
        if memory.fully_sharded:
            words.append("--use-torch-fsdp2")
        if memory.replicas > 1:
            words += ["--num-distributed-optimizer-instances", str(memory.replicas)]
        if parallel.distributed_optimizer and "use_distributed_optimizer" not in self.options:
            words.append("--use-distributed-optimizer")
        if parallel.expert > 1 and EXPERT_SIZE not in self.options:
            words += ["--expert-model-parallel-size", str(parallel.expert)]
        for name, value in self.options.items():
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [flag, str(value)]
        if parallel.defers_weight_gradients:
            words += ["--pipeline-schedule", parallel.pipeline_schedule]
        return words


@dataclasses.dataclass(frozen=True)
class Choice:
    """The best layout and the `alternatives` that fit, best first. If no layout fits, `best` needs the least memory."""

    cluster: Cluster
    best: ParallelLayout
    alternatives: tuple[ParallelLayout, ...]
    tried: int

    @property
    def reasons(self) -> list[str]:
        """The reasons for the layout, one sentence each."""
        config, cluster = self.best.config, self.cluster
        limit = usable_bytes(cluster)
        fits = [layout for layout in (self.best, *self.alternatives) if layout.fits]
        parallel, reasons = config.parallelism, []
        if self.tried > 1:
            reasons.append(
                f"{self.tried} layouts of {cluster.ranks} ranks work, {len(fits)} fit into {limit / GIB:.1f} GiB per rank"
            )
        if parallel.model == parallel.expert == 1:
            reasons.append("a rank holds the whole model: all ranks are data parallel")
        if parallel.tensor > 1:
            reasons.append(f"tensor parallel {parallel.tensor}: within a node, where links are fast")
        if parallel.pipeline > 1:
            work = self.best.pipeline_work
            larger = "; a larger --global-batch-size makes it smaller" if work.bubble_share > LARGE_BUBBLE else ""
            reasons.append(f"pipeline parallel {parallel.pipeline}: {work}{larger}")
        if parallel.context > 1:
            tokens = config.batches.seq_length // parallel.context
            reasons.append(f"context parallel {parallel.context}: {tokens} tokens of a sample on each rank")
        if parallel.expert > 1:
            experts = config.architecture.num_experts or 0
            nodes = expert_costs.count_nodes(config.architecture, parallel, cluster.ranks_per_node)
            far = f", on {nodes} nodes: the exchange of tokens is slow between them" if nodes > 1 else ""
            reasons.append(f"expert parallel {parallel.expert}: {experts // parallel.expert} of {experts} experts on a rank{far}")
        if config.architecture.num_experts and kernels.runs_experts_one_by_one(config):
            reasons.append("a layer's experts are computed one after another, which is slow on a GPU")
        if "recompute_granularity" in self.best.options:
            reasons.append("whole layers are computed again in the backward pass: a third more work, for less memory")
        reasons.append(f"waste of about {self.best.waste:.0%}")
        return reasons


def usable_bytes(cluster: Cluster) -> int:
    """Return the bytes of a rank's memory that an estimate may fill."""
    assert cluster.gpu
    return int(cluster.gpu.memory_bytes * (1 - SPARE_SHARE)) - (RUNTIME_BYTES if cluster.gpu.capability else 0)


@dataclasses.dataclass(frozen=True)
class Shortage:
    """The reason why a run does not fit. It is certain if weights, gradients and optimizer state, which are exact, do not fit."""

    reason: str
    is_certain: bool


def memory_shortage(estimate: Estimate, cluster: Cluster) -> Shortage | None:
    """Return the shortage of memory, or None if the run fits by its estimate or the GPU's memory is not known."""
    if cluster.gpu is None:
        return None
    gpu_bytes, usable = cluster.gpu.memory_bytes, usable_bytes(cluster)
    state_bytes = estimate.weights + estimate.gradients + estimate.optimizer
    if state_bytes > gpu_bytes:
        reason = f"weights, gradients and optimizer alone take {state_bytes / GIB:.1f} GiB of {gpu_bytes / GIB:.1f} per rank"
        return Shortage(reason, is_certain=True)
    if estimate.total > usable:
        return Shortage(f"{estimate}, {usable / GIB:.1f} are there", is_certain=False)
    return None


def layout_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the layout options that differ from their defaults."""
    return {name: options[name] for name in SIZES if options[name] is True or options[name] not in (None, False, 1)}


def layout_flags(options: dict[str, Any]) -> list[str]:
    """Return the flags of the layout options that differ from their defaults."""
    return [f"--{name.replace('_', '-')}" for name in layout_options(options)]


def choose(config: RunConfig, options: dict[str, Any], cluster: Cluster) -> Choice:
    """Return the best layout for `config`, which was assembled from `options`; the layout in `config` is ignored.

    Raises UsageError if `options` set a parallel size, BadConfig if no layout divides the model and the ranks or the GPU's memory
    is not known, and any problem that every layout has.
    """
    if sizes_set := layout_flags(options):
        raise UsageError(f"--parallel auto and {sizes_set[0]}", "give one of them")
    if cluster.gpu is None:
        raise BadConfig("the memory of this machine's GPUs is not known", "give --tensor-model-parallel-size and so on instead")
    space = LayoutSpace(
        model=config.architecture,
        work=model_work(config.architecture, config.batches.seq_length, config.memory.recompute),
        seq_length=config.batches.seq_length,
        cluster=cluster,
        splits_state=config.optimization.splits_state and not config.memory.fully_sharded,
        may_recompute=config.memory.recompute is None,
    )
    layouts: list[ParallelLayout] = []
    problems_by_layout: list[dict[str, ToolError]] = []
    for sizes in space.candidates(options):
        candidate = config.with_layout(options | sizes, cluster.ranks)
        problems = {str(problem): problem for problem in layout_problems(candidate)}
        if problems:
            problems_by_layout.append(problems)
        else:
            layouts.append(ParallelLayout(candidate, sizes, cluster))
    if not layouts:
        for text, problem in problems_by_layout[0].items():
            if all(text in layout_problems_by_text for layout_problems_by_text in problems_by_layout):
                raise problem
        text, problem = next(iter(min(problems_by_layout, key=len).items()))
        raise BadConfig(
            f"no layout divides {config.architecture.name} and its batches among {cluster.ranks} ranks; of the nearest: {text}",
            problem.hint or "choose a --global-batch-size that is a multiple of --micro-batch-size x ranks, or other ranks",
        )
    fitting = sorted((layout for layout in layouts if layout.fits), key=_order)
    if not fitting:
        return Choice(cluster, min(layouts, key=lambda layout: layout.estimate.total), (), len(layouts))
    return Choice(cluster, fitting[0], tuple(fitting[1:]), len(layouts))


def require_fitting(choice: Choice) -> RunConfig:
    """Return the chosen configuration. Raises BadConfig if not even the smallest layout fits."""
    if not choice.best.fits:
        smallest = choice.best.config.parallelism.described
        raise BadConfig(
            f"no layout of {choice.cluster.ranks} ranks holds the model: the smallest, {smallest},"
            f" needs {choice.best.estimate.total / GIB:.1f} GiB of {usable_bytes(choice.cluster) / GIB:.1f} per rank",
            "take more nodes, a smaller --micro-batch-size or --seq-length, --bf16, or --use-torch-fsdp2",
        )
    return choice.best.config


def _order(layout: ParallelLayout) -> tuple[float, int]:
    """Sort key: least waste first; with equal waste, least memory first."""
    return round(layout.waste, 4), layout.estimate.total
