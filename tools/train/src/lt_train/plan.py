"""The plan of a run: every setting resolved and checked, before any process starts and without importing torch.

A mistake found here costs a second; found after the ranks have started it costs a queue slot. The plan travels to the ranks as
one JSON file, so all ranks run with the same settings. click merges flags, environment and config file; presets and derived
defaults are filled in by the subjects in `lt_train.settings`.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any, Self

from lt_shared.architecture import Architecture
from lt_shared.console import ToolError, note
from lt_shared.manifest import Dataset, record_of
from lt_train import cluster, device, place
from lt_train.settings import (
    batches,
    benchmark,
    checkpointing,
    data,
    faults,
    layers,
    memory,
    model,
    optimization,
    parallelism,
    precision,
    reporting,
)
from lt_train.settings.batches import Batches
from lt_train.settings.benchmark import Benchmark
from lt_train.settings.checkpointing import Checkpointing
from lt_train.settings.data import Data
from lt_train.settings.faults import Faults
from lt_train.settings.layers import Layers
from lt_train.settings.memory import Memory
from lt_train.settings.optimization import Optimization
from lt_train.settings.parallelism import Parallelism
from lt_train.settings.precision import Precision
from lt_train.settings.reporting import Reporting

SUBJECTS = (model, layers, batches, precision, optimization, parallelism, memory, data, checkpointing, faults, reporting)
# The subjects that `lt-train bench` has options for; `benchmark` settles the others.
MEASURED_SUBJECTS = (model, layers, batches, precision, optimization, parallelism, memory)
VOCABULARY_MULTIPLE = 128


@dataclasses.dataclass(frozen=True)
class Plan:
    """One run, a part per subject. `seed` is that of the weights and of the order of the data."""

    architecture: Architecture
    layers: Layers
    batches: Batches
    precision: Precision
    optimization: Optimization
    parallelism: Parallelism
    memory: Memory
    data: Data
    checkpointing: Checkpointing
    faults: Faults
    reporting: Reporting
    seed: int
    benchmark: Benchmark | None = None

    def micro_batches(self, samples: int) -> int:
        """Micro batches that each data-parallel rank runs in a step of `samples` samples."""
        return samples // (self.batches.micro_batch_size * self.parallelism.data)

    @property
    def shards_optimizer(self) -> bool:
        """Whether data-parallel ranks split the optimizer's state; its checkpoints then have one form, FSDP or not."""
        return self.parallelism.distributed_optimizer or self.memory.fully_sharded

    @property
    def padded_vocab_size(self) -> int:
        return self.architecture.padded_vocab_size(VOCABULARY_MULTIPLE, self.parallelism.tensor)

    def starting_at(self, checkpoint: str, continues: bool) -> Self:
        changed = dataclasses.replace(self.checkpointing, start=checkpoint, continues=continues)
        return dataclasses.replace(self, checkpointing=changed)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        import cattrs

        return cattrs.structure(json.loads(text), cls)

    def as_record(self) -> dict[str, Any]:
        """The plan as printed by --dry-run."""
        fields = dataclasses.asdict(self)
        lists = ("datasets", "validation_datasets", "test_datasets")
        datasets = {name: [record_of(dataset) for dataset in getattr(self.data, name)] for name in lists}
        return {
            "v": 1,
            "kind": "plan",
            **fields,
            "data": fields["data"] | datasets,
            "parameters": self.architecture.parameters(),
            "active_parameters": self.architecture.active_parameters(),
            "padded_vocab_size": self.padded_vocab_size,
            "tokens": self.batches.train_samples * self.batches.seq_length,
        }


def resolve(options: dict[str, Any], datasets: tuple[Dataset, ...]) -> Plan:
    """The checked plan. Raises UsageError or BadConfig for what cannot run, the first of its problems."""
    plan = assemble(options, datasets)
    if options["parallel"] == parallelism.AUTO:
        plan = _with_best_layout(plan, options)
    for problem in problems(plan):
        raise problem
    return plan


def _with_best_layout(plan: Plan, options: dict[str, Any]) -> Plan:
    from lt_train import layout

    choice = layout.choose(plan, options, cluster.here(plan.parallelism.device, plan.parallelism.world_size))
    chosen = layout.require(choice)
    rank = place.find()
    if rank is None or rank.rank == 0:
        note(f"layout: {'; '.join(choice.reasons)}")
        note(f"layout: {' '.join(choice.best.flags) or 'no options'}")
    return chosen


def assemble(options: dict[str, Any], datasets: tuple[Dataset, ...], planned: cluster.Cluster | None = None) -> Plan:
    """The plan, its parts not yet compared with each other; `planned` is a cluster of GPUs that is elsewhere.

    Raises UsageError or BadConfig for a part that has no meaning.
    """
    parts, found = _parts(options, datasets, planned)
    for problem in found:
        raise problem
    return Plan(**parts)


def part_problems(
    options: dict[str, Any], datasets: tuple[Dataset, ...], planned: cluster.Cluster | None = None
) -> list[ToolError]:
    """Every reason why `assemble` would fail."""
    return _parts(options, datasets, planned)[1]


def _parts(
    options: dict[str, Any], datasets: tuple[Dataset, ...], planned: cluster.Cluster | None
) -> tuple[dict[str, Any], list[ToolError]]:
    """The parts of a plan, without those that cannot be made or are made of one that cannot, and why."""
    found: list[ToolError] = []
    parts: dict[str, Any] = {"seed": options["seed"]}

    def make(name: str, resolve: Callable[..., Any], *needed: str) -> None:
        if all(part in parts for part in needed):
            try:
                parts[name] = resolve(*(parts[part] for part in needed))
            except ToolError as problem:
                found.append(problem)

    def parallel(architecture: Architecture) -> Parallelism:
        where = device.CUDA if planned else device.resolve(options["device"])
        return parallelism.resolve(options, architecture, where, planned.ranks if planned else None)

    make("architecture", lambda: model.resolve(options, datasets))
    make("parallelism", parallel, "architecture")
    make("layers", lambda layout: layers.resolve(options, layout.device), "parallelism")
    make("batches", lambda architecture, layout: batches.resolve(options, architecture, layout), "architecture", "parallelism")
    make("precision", lambda: precision.resolve(options))
    make("optimization", lambda sizes: optimization.resolve(options, sizes), "batches")
    make("memory", lambda *needed: memory.resolve(options, *needed), "batches", "parallelism", "precision")
    make("data", lambda: data.resolve(options, datasets))
    make("checkpointing", lambda: checkpointing.resolve(options))
    make("faults", lambda: faults.resolve(options))
    make("reporting", lambda layout: reporting.resolve(options, layout), "parallelism")
    make("benchmark", lambda: benchmark.resolve(options))
    return parts, found


def problems(plan: Plan) -> Iterator[ToolError]:
    """Yields an error for each reason why the plan cannot run, those that others follow from first."""
    yield from layout_problems(plan)
    micro_batch_tokens = plan.batches.micro_batch_size * plan.batches.seq_length
    yield from precision.check(plan.precision, plan.layers, plan.architecture, plan.parallelism, micro_batch_tokens)
    yield from optimization.check(plan.optimization, plan.precision.dtype, plan.parallelism)
    yield from data.check(plan.data, plan.architecture.vocab_size)
    yield from checkpointing.check(plan.checkpointing)
    yield from reporting.check(plan.reporting, plan.parallelism.device, plan.batches.train_iters)


def layout_problems(plan: Plan) -> Iterator[ToolError]:
    """Those that follow from how the ranks share the model and the batches."""
    yield from parallelism.check(plan.parallelism, plan.architecture, plan.batches.seq_length)
    seq_length, documents = plan.batches.seq_length, plan.data.reset_attention_mask
    yield from layers.check(plan.layers, plan.architecture, plan.parallelism, seq_length, documents)
    yield from batches.check(plan.batches, plan.architecture, plan.parallelism)
    if plan.parallelism.data:
        for size in plan.batches.sizes:
            yield from parallelism.check_micro_batches(plan.parallelism, plan.micro_batches(size))
    yield from memory.check(plan.memory, plan.layers, plan.parallelism, plan.architecture, plan.precision, plan.optimization)
