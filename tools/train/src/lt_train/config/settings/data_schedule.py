"""Phases of a run, each with its own mixture of the datasets, and perhaps its own sequence length, positions and batch size.

A phase has whole steps. Where the next one has another length or another embedding, what was made for it is made anew: the ranks
save, end, and are started again by the same command, which costs a start of some seconds once. To exchange the tables of every
attention, the buffers of pipelines and the choice of kernels in place would have to be right for each layout.

`schedule_file.py` reads the phases from a file.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from lt_shared import console
from lt_shared.console import BadConfig, ToolError
from lt_shared.data.sample_order.batch_sizes import PhaseSize
from lt_shared.models.architecture import Architecture
from lt_train.config.settings.batches import Batches

if TYPE_CHECKING:
    from lt_shared.data.sample_order import phases as sample_phases

OPTION = "--data-schedule"

OPTIONS = console.section(
    "Data",
    click.option(
        "--data-schedule",
        type=click.Path(dir_okay=False),
        help="Train in the phases of this YAML or JSON file: name, tokens, weights of the datasets. They set the length"
        " of the run.",
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
        from lt_shared.data.sample_order import phases as sample_phases

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
