"""Phases of a run, each with its own mixture of the datasets, and perhaps its own sequence length, positions and batch size.

    phases:
      - name: pretraining
        tokens: 12_000_000_000
        weights: {web: 0.8, code: 0.2}
      - name: long context
        samples: 10000
        weights: {code: 0.5, books: 0.5}
        seq-length: 32768
        rotary-base: 5000000
        global-batch-size: 64

A phase has whole steps. Where the next one has another length or another embedding, what was made for it is made anew: the ranks
save, end, and are started again by the same command, which costs a start of some seconds once. To exchange the tables of every
attention, the buffers of pipelines and the choice of kernels in place would have to be right for each layout.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from lt_shared import console, storage, strict_yaml
from lt_shared.architecture import Architecture
from lt_shared.console import BadConfig, ToolError, UsageError
from lt_shared.manifest import Dataset
from lt_shared.sample_order.batch_sizes import PhaseSize
from lt_train.config.settings import streaming
from lt_train.config.settings.batches import LENGTHS, Batches, sequence_length
from lt_train.config.settings.model.architecture import given_scaling

if TYPE_CHECKING:
    from lt_shared.sample_order import phases as sample_phases

OPTION = "--data-schedule"
FIELDS = ("name", "tokens", "samples", "weights", "seq_length", "global_batch_size", "rotary_base", "rope_scaling")
LONGEST_NAME = 60

OPTIONS = console.section(
    "Data",
    click.option(
        "--data-schedule",
        type=click.Path(dir_okay=False),
        help="YAML or JSON file of phases: name, tokens, weights of the datasets; they are the length of the run.",
    ),
)


@dataclasses.dataclass(frozen=True)
class Phase:
    """At least one step; `samples` are as many as were asked for, `weights` those of the run's datasets in their order.

    `global_batch_size` is None for that of the run.
    """

    name: str
    samples: int
    weights: tuple[float, ...]
    seq_length: int
    architecture: Architecture
    global_batch_size: int | None = None

    @property
    def form(self) -> tuple[int, Architecture]:
        """What a process is made for."""
        return self.seq_length, self.architecture

    def record(self) -> dict[str, Any]:
        """For people, and to tell whether the order of the samples is that of another run."""
        fields = {"name": self.name, "samples": self.samples, "weights": list(self.weights), "seq_length": self.seq_length}
        own = {"global_batch_size": self.global_batch_size} if self.global_batch_size else {}
        return fields | own | {"rotary_base": self.architecture.rotary_base}

    @property
    def size(self) -> str:
        """For people: tokens per sample, after the samples per step where the phase says them."""
        return f"{self.global_batch_size} x {self.seq_length}" if self.global_batch_size else str(self.seq_length)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The phases of a run, none for a run of one mixture."""

    phases: tuple[Phase, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.phases)

    def last_steps(self, batches: Batches) -> list[int]:
        """The last step of each phase. What is left of one of larger batches may be a step of the next one."""
        if batches.phase_sizes:
            return [*(batches.steps_within(size.begin) for size in batches.phase_sizes[1:]), batches.train_iters]
        ends, samples = [], 0
        for phase in self.phases:
            samples += phase.samples
            ends.append(batches.steps_within(samples))
        return ends

    def place(self, batches: Batches, steps: int) -> int:
        """The number of the phase that the run is in after `steps` steps; the last one at its end."""
        return next((number for number, end in enumerate(self.last_steps(batches)) if steps < end), len(self.phases) - 1)

    def begins(self, batches: Batches, steps: int) -> Phase | None:
        """The phase whose first step follows `steps` steps."""
        firsts = [0, *self.last_steps(batches)]
        return self.phases[firsts.index(steps)] if steps in firsts[:-1] else None

    def end_of_form(self, batches: Batches, steps: int) -> int:
        """The last step, after `steps` steps, for which the ranks need not be made anew."""
        if not self.phases:
            return batches.train_iters
        number = self.place(batches, steps)
        while number + 1 < len(self.phases) and self.phases[number + 1].form == self.phases[number].form:
            number += 1
        return self.last_steps(batches)[number]

    def described(self, batches: Batches) -> list[str]:
        """The steps of each phase."""
        firsts = [1, *(end + 1 for end in self.last_steps(batches))]
        spans = zip(self.phases, itertools.pairwise(firsts), strict=True)
        return [f"{phase.name}, steps {first:,} to {after - 1:,} of {phase.size} tokens" for phase, (first, after) in spans]

    def sample_phases(self, batches: Batches) -> "list[sample_phases.Phase]":
        from lt_shared.sample_order import phases as sample_phases

        firsts = [0, *map(batches.samples_after, self.last_steps(batches))]
        sizes = (end - first for first, end in itertools.pairwise(firsts))
        return [
            sample_phases.Phase(size, phase.seq_length, phase.weights, phase.global_batch_size)
            for size, phase in zip(sizes, self.phases, strict=True)
        ]

    def tokens(self, batches: Batches, samples: int) -> int:
        """In the first `samples` samples of the run."""
        total = 0
        for phase in self.sample_phases(batches):
            within = min(samples, phase.samples)
            total, samples = total + within * phase.sequence_length, samples - within
        return total

    def length(self, batches: Batches) -> Batches:
        """`batches` of the first phase, in a run of all. Raises BadConfig for a phase of no step."""
        made = dataclasses.replace(batches, seq_length=self.phases[0].seq_length)
        has_sizes = any(phase.global_batch_size for phase in self.phases)
        end = samples = 0
        for phase in self.phases:
            if has_sizes:
                size = PhaseSize(made.samples_after(end), phase.global_batch_size)
                made = dataclasses.replace(made, phase_sizes=(*made.phase_sizes, size))
            samples += phase.samples
            begin, end = end, made.steps_within(samples)
            if begin == end:
                raise BadConfig(f"{OPTION}: the phase {phase.name} is shorter than a step: {phase.samples} samples")
        return dataclasses.replace(made, train_iters=end)


def resolve_schedule(options: dict[str, Any], datasets: tuple[Dataset, ...], architecture: Architecture) -> Schedule:
    """Raises UsageError for another length of the run, BadConfig for what is no schedule, and as `storage.read_bytes`."""
    path = options["data_schedule"]
    if path is None:
        return Schedule()
    lengths = [f"--{name.replace('_', '-')}" for name in LENGTHS if options[name]]
    if lengths:
        raise UsageError(f"{OPTION} and {lengths[0]}", "the phases are the length of the run: drop the other")
    if not datasets:
        raise UsageError(f"{OPTION} without datasets", "name the datasets that the phases draw from")
    try:
        phases = _phases(strict_yaml.loads(storage.read_bytes(path).decode()))
        names = streaming.names(datasets)
        known = dict(zip([*names, *(dataset.prefix for dataset in datasets)], [*range(len(names))] * 2, strict=True))
        given = [dataset.weight for dataset in datasets]
        size = sequence_length(options, architecture)
        made = tuple(_phase(phase, known, given, size, architecture) for phase in phases)
        _check_names([phase.name for phase in made])
        return Schedule(made)
    except (ValueError, RecursionError) as error:
        raise BadConfig(f"{path}: {error}", "phases: [{name: main, tokens: 1000000, weights: {NAME: 1.0}}]") from None


def _phases(content: Any) -> list[dict[str, Any]]:
    if not isinstance(content, dict) or set(content) != {"phases"}:
        raise ValueError("it is not a mapping of `phases` alone")
    phases = content["phases"]
    if not isinstance(phases, list) or not phases or not all(isinstance(phase, dict) for phase in phases):
        raise ValueError("phases is not a list of mappings")
    return [{str(key).replace("-", "_"): value for key, value in phase.items()} for phase in phases]


def _phase(
    given: dict[str, Any], known: Mapping[str, int], weights: Sequence[float], seq_length: int, architecture: Architecture
) -> Phase:
    name = given.get("name")
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
        raise ValueError(f"a phase is called {name!r:.80}, and needs a name of at most {LONGEST_NAME} characters")
    for field in given:
        if field not in FIELDS:
            raise ValueError(f"phase {name}: no setting {field!r:.40}; there are {', '.join(FIELDS)}")
    size = _whole(given, "seq_length", name) or seq_length
    tokens, samples = _whole(given, "tokens", name), _whole(given, "samples", name)
    if (tokens is None) == (samples is None):
        raise ValueError(f"phase {name}: give its length, either tokens or samples")
    return Phase(
        name=name,
        samples=samples or (tokens or 0) // size,
        weights=_weights(given["weights"], known, len(weights), name) if "weights" in given else tuple(weights),
        seq_length=size,
        architecture=_architecture(given, architecture, name),
        global_batch_size=_whole(given, "global_batch_size", name),
    )


def _whole(given: dict[str, Any], field: str, name: str) -> int | None:
    value = given.get(field)
    if value is None:
        return None
    try:
        number = float(value) if not isinstance(value, bool) else 0.0
    except (TypeError, ValueError):
        number = 0.0
    if number < 1 or number != int(number):
        raise ValueError(f"phase {name}: {field} is {value!r:.40}, expected a whole number from 1 on")
    return int(number)


def _weights(given: Any, known: Mapping[str, int], count: int, name: str) -> tuple[float, ...]:
    if not isinstance(given, dict) or not given:
        raise ValueError(f"phase {name}: weights is {given!r:.40}, expected a mapping of datasets to numbers")
    weights = [0.0] * count
    for dataset, weight in given.items():
        if dataset not in known:
            raise ValueError(f"phase {name}: no dataset {dataset!r:.80}; there are {', '.join(list(known)[:count])}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
            raise ValueError(f"phase {name}: the weight of {dataset} is {weight!r:.40}, expected a number from 0 on")
        weights[known[dataset]] = float(weight)
    if not any(weights):
        raise ValueError(f"phase {name}: all weights are 0")
    return tuple(weights)


def _architecture(given: dict[str, Any], architecture: Architecture, name: str) -> Architecture:
    changes: dict[str, Any] = {}
    if base := _whole(given, "rotary_base", name):
        changes["rotary_base"] = float(base)
    if scaling := given.get("rope_scaling"):
        changes["rope_scaling"] = given_scaling(scaling if isinstance(scaling, str) else json.dumps(scaling), architecture)
    return dataclasses.replace(architecture, **changes) if changes else architecture


def _check_names(names: list[str]) -> None:
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ValueError(f"two phases are called {name}")


def changes(there: Any, here: Sequence[dict[str, Any]], steps_done: int) -> bool:
    """Whether the phases of a checkpoint's arguments that had begun after `steps_done` samples are others than `here`."""
    if not isinstance(there, list):
        return True
    begin = 0
    for number, phase in enumerate(there):
        if begin >= steps_done:
            break
        if number >= len(here) or phase != here[number]:
            return True
        begin += phase.get("samples", 0) if isinstance(phase, dict) else 0
    return False


def check(schedule: Schedule, batches: Batches, saves: bool) -> Iterator[ToolError]:
    """Yields BadConfig for phases that need another process and a checkpoint between them, when nothing is saved."""
    if schedule and not saves and schedule.end_of_form(batches, 0) < batches.train_iters:
        yield BadConfig(
            f"{OPTION}: a phase with another sequence length or rotary embedding continues from a checkpoint", "add --save"
        )
