"""The plan of a run: every setting resolved and checked, before any process starts and without importing torch.

A mistake found here costs a second; found after the ranks have started it costs a queue slot. The plan travels to the ranks as
one JSON file, so all ranks run with the same settings. click merges flags, environment and config file; presets and derived
defaults are filled in by the subjects in `lt_train.settings`.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
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
    def steps_in_one_pass(self) -> bool:
        """Whether the optimizer's step is that of `lt_train.one_pass`."""
        adam = self.layers.triton and self.optimization.optimizer == "adam"
        return adam and self.precision.bf16 and not self.memory.fully_sharded

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
    for problem in (*problems(plan), *problems_here(vars(plan))):
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


@dataclasses.dataclass(frozen=True)
class Draft:
    """The parts of a plan that could be made, and why others could not, so that all mistakes show at once.

    `stand_ins` are parts that hold what a check of another part needs, in the place of one that could not be made.
    """

    parts: Mapping[str, Any]
    stand_ins: frozenset[str]
    failures: tuple[ToolError, ...]

    @classmethod
    def of(cls, plan: Plan) -> Self:
        return cls(vars(plan), frozenset(), ())

    @property
    def plan(self) -> Plan | None:
        return None if self.failures else Plan(**self.parts)


def assemble(options: dict[str, Any], datasets: tuple[Dataset, ...], planned: cluster.Cluster | None = None) -> Plan:
    """The plan, its parts not yet compared with each other; `planned` is a cluster of GPUs that is elsewhere.

    Raises UsageError or BadConfig for a part that has no meaning.
    """
    made = draft(options, datasets, planned)
    for failure in made.failures:
        raise failure
    return Plan(**made.parts)


def draft(options: dict[str, Any], datasets: tuple[Dataset, ...], planned: cluster.Cluster | None = None) -> Draft:
    """All parts that can be made of the options."""
    failures: list[ToolError] = []
    stand_ins: set[str] = set()
    parts: dict[str, Any] = {"seed": options["seed"]}

    def make(name: str, resolve: Callable[..., Any], *needed: str) -> None:
        if all(part in parts for part in needed):
            try:
                parts[name] = resolve(*(parts[part] for part in needed))
            except ToolError as problem:
                if name not in stand_ins:
                    failures.append(problem)

    def again(name: str, resolve: Callable[..., Any], *needed: str) -> None:
        if name not in parts and failures:
            stand_ins.add(name)
            make(name, resolve, *needed)

    def parallel(architecture: Architecture) -> Parallelism:
        where = device.CUDA if planned else device.resolve(options["device"])
        return parallelism.resolve(options, architecture, where, planned.ranks if planned else None)

    def sizes(architecture: Architecture, layout: Parallelism) -> Batches:
        return batches.resolve(options, architecture, layout)

    make("architecture", lambda: model.resolve(options, datasets))
    if failures:
        again("architecture", lambda: model.divisible_by(_product(options), options["expert_model_parallel_size"]))
        if options["seq_length"] is None:
            # As many tokens as divide; a length of the run in tokens says nothing then.
            stand_ins |= {"batches"} if options["train_tokens"] else set()
            options = options | {"seq_length": _product(options), "train_tokens": None}
        options = options | parallelism.WITHOUT_VIRTUAL_STAGES | parallelism.EVEN
    make("parallelism", parallel, "architecture")
    for wrong in (parallelism.WITHOUT_VIRTUAL_STAGES, {"ranks": None, "profile_ranks": "0"}):
        if "parallelism" not in parts:
            options = options | wrong
            again("parallelism", parallel, "architecture")
    make("layers", lambda layout: layers.resolve(options, layout.device), "parallelism")
    make("batches", sizes, "architecture", "parallelism")
    if "batches" in parts and "batches" not in stand_ins:
        make("optimization", lambda lengths: optimization.resolve(options, lengths), "batches")
    options = options | batches.WITHOUT_LENGTH
    again("batches", sizes, "architecture", "parallelism")
    make("precision", lambda: precision.resolve(options))
    make("memory", lambda *needed: memory.resolve(options, *needed), "batches", "parallelism", "precision")
    if "architecture" in stand_ins and "memory" in parts:
        parts["memory"] = memory.for_any_model(parts["memory"])
    make("data", lambda: data.resolve(options, datasets))
    make("checkpointing", lambda: checkpointing.resolve(options))
    make("faults", lambda: faults.resolve(options))
    make("reporting", lambda layout: reporting.resolve(options, layout), "parallelism")
    make("benchmark", lambda: benchmark.resolve(options))
    return Draft(parts, frozenset(stand_ins), tuple(failures))


def _product(options: dict[str, Any]) -> int:
    """A size that all parts divide into which the options ask for."""
    ranks = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size")
    names = (*ranks, "recompute_num_layers")
    return 1024 * math.prod(int(options[name] or 1) for name in names)


Check = tuple[tuple[str, ...], Callable[..., Iterator[ToolError]]]


def problems(plan: Plan) -> Iterator[ToolError]:
    """Yields an error for each reason why the plan cannot run, those that others follow from first."""
    return problems_of(Draft.of(plan))


def problems_of(made: Draft) -> Iterator[ToolError]:
    """The same of the parts that are there."""
    # The lengths of a run are missing in its stand-in.
    known = dict(made.parts)
    if "batches" not in made.stand_ins and "batches" in known:
        known["train_iters"] = known["batches"].train_iters
    yield from _problems(LAYOUT_CHECKS, known)
    yield from _problems(CHECKS, known)


def layout_problems(plan: Plan) -> Iterator[ToolError]:
    """Those that follow from how the ranks share the model and the batches."""
    return _problems(LAYOUT_CHECKS, vars(plan))


def problems_here(parts: Mapping[str, Any]) -> Iterator[ToolError]:
    """Those of this machine, which matter to a run on it: weak GPUs, missing packages, directories that cannot be written."""
    if "parallelism" in parts and parts["parallelism"].device == device.CUDA:
        yield from problems_on(device.compute_capability(), parts)
    yield from missing_packages(parts)
    yield from _problems(((("reporting",), reporting.check_directories),), parts)


def problems_on(capability: tuple[int, int] | None, parts: Mapping[str, Any]) -> Iterator[ToolError]:
    """Those of GPUs of this compute capability; None is one that is not known, and has none."""
    if capability is None:
        return
    yield from _problems(
        (
            (("precision",), partial(precision.check_capability, capability)),
            (("memory", "precision"), partial(memory.check_capability, capability)),
        ),
        parts,
    )


def missing_packages(parts: Mapping[str, Any]) -> Iterator[ToolError]:
    yield from _problems(
        (
            (("layers",), layers.missing_packages),
            (("optimization",), optimization.missing_packages),
            (("reporting",), reporting.missing_packages),
        ),
        parts,
    )


def _problems(checks: Iterable[Check], parts: Mapping[str, Any]) -> Iterator[ToolError]:
    for names, check in checks:
        if all(name in parts for name in names):
            yield from check(*(parts[name] for name in names))


def _check_layers(
    made: Layers, architecture: Architecture, parallel: Parallelism, sizes: Batches, read: Data
) -> Iterator[ToolError]:
    return layers.check(made, architecture, parallel, sizes.seq_length, read.reset_attention_mask)


def _check_micro_batches(parallel: Parallelism, sizes: Batches) -> Iterator[ToolError]:
    for size in sizes.sizes if parallel.data else ():
        yield from parallelism.check_micro_batches(parallel, size // (sizes.micro_batch_size * parallel.data))


def _check_precision(
    made: Precision, in_layers: Layers, architecture: Architecture, parallel: Parallelism, sizes: Batches
) -> Iterator[ToolError]:
    return precision.check(made, in_layers, architecture, parallel, sizes.micro_batch_size * sizes.seq_length)


LAYOUT_CHECKS: tuple[Check, ...] = (
    (
        ("parallelism", "architecture", "batches"),
        lambda parallel, architecture, sizes: parallelism.check(parallel, architecture, sizes.seq_length),
    ),
    (("layers", "architecture", "parallelism", "batches", "data"), _check_layers),
    (("batches", "architecture", "parallelism"), batches.check),
    (("parallelism", "batches"), _check_micro_batches),
    (("memory", "layers", "parallelism", "architecture", "precision", "optimization"), memory.check),
)
CHECKS: tuple[Check, ...] = (
    (("precision", "layers", "architecture", "parallelism", "batches"), _check_precision),
    (
        ("optimization", "precision", "parallelism"),
        lambda made, numbers, parallel: optimization.check(made, numbers.dtype, parallel),
    ),
    (("data", "architecture"), lambda read, architecture: data.check(read, architecture.vocab_size)),
    (("checkpointing",), checkpointing.check),
    (
        ("reporting", "parallelism", "train_iters"),
        lambda made, parallel, train_iters: reporting.check(made, parallel.device, train_iters),
    ),
)
