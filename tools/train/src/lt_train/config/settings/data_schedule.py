"""Phases of a run: each sets the mixture of the datasets, and may set the sequence length, positions and batch size.

A phase has whole steps. If the next phase changes the sequence length or the rotary embedding, the ranks save, end, and the same
command starts them again, which costs some seconds once. Changing them in place would have to replace the tables of every
attention, the pipeline buffers and the choice of kernels, correctly for each layout.

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
from lt_train.config.settings import size_schedule
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
    """A phase of at least one step, with the requested number of `samples`. `weights` follow the order of the run's datasets.

    `global_batch_size` is None if the phase keeps the run's.
    """

    name: str
    samples: int
    weights: tuple[float, ...]
    seq_length: int
    architecture: Architecture
    global_batch_size: int | None = None

    @property
    def form(self) -> tuple[int, Architecture]:
        """Sequence length and model: a process cannot change them, so a new form needs new processes."""
        return self.seq_length, self.architecture

    def record(self) -> dict[str, Any]:
        """Return the phase as stored in checkpoints, for people and to detect a changed sample order."""
        fields = {"name": self.name, "samples": self.samples, "weights": list(self.weights), "seq_length": self.seq_length}
        batch_size = {"global_batch_size": self.global_batch_size} if self.global_batch_size else {}
        return fields | batch_size | {"rotary_base": self.architecture.rotary_base}

    @property
    def size(self) -> str:
        """Tokens per sample, for people; preceded by the samples per step if the phase sets them."""
        return f"{self.global_batch_size} x {self.seq_length}" if self.global_batch_size else str(self.seq_length)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The phases of a run; empty if the run has one mixture."""

    phases: tuple[Phase, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.phases)

    def last_steps(self, batches: Batches) -> list[int]:
        """Return the last step in each phase. Samples that do not fill a large batch may fill a step in the next phase."""
        if batches.phase_sizes:
            return [*(batches.steps_within(size.begin) for size in batches.phase_sizes[1:]), batches.train_iters]
        ends, samples = [], 0
        for phase in self.phases:
            samples += phase.samples
            ends.append(batches.steps_within(samples))
        return ends

    def place(self, batches: Batches, steps: int) -> int:
        """Return the index of the phase after `steps` steps; at the end of the run, the last phase's."""
        return next((number for number, end in enumerate(self.last_steps(batches)) if steps < end), len(self.phases) - 1)

    def begins(self, batches: Batches, steps: int) -> Phase | None:
        """Return the phase whose first step follows `steps` steps, or None."""
        firsts = [0, *self.last_steps(batches)]
        return self.phases[firsts.index(steps)] if steps in firsts[:-1] else None

    def end_of_form(self, batches: Batches, steps: int) -> int:
        """Return the last step that the ranks can reach from step `steps` without being started again."""
        if not self.phases:
            return batches.train_iters
        number = self.place(batches, steps)
        while number + 1 < len(self.phases) and self.phases[number + 1].form == self.phases[number].form:
            number += 1
        return self.last_steps(batches)[number]

    def described(self, batches: Batches) -> list[str]:
        """Describe the phases with their steps, for people."""
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
        """Count the tokens in the first `samples` samples of the run."""
        total = 0
        for phase in self.sample_phases(batches):
            within = min(samples, phase.samples)
            total, samples = total + within * phase.sequence_length, samples - within
        return total

    def length(self, batches: Batches) -> Batches:
        """Return `batches` with the first phase's sequence length and the number of steps in all phases.

        Raises BadConfig for a phase shorter than a step, and for a phase of another sequence length beside a schedule of batch
        sizes, whose entries count tokens.
        """
        if batches.size_schedule:
            for phase in self.phases:
                if phase.seq_length != batches.seq_length:
                    raise BadConfig(
                        f"{OPTION}: the phase {phase.name} has samples of {phase.seq_length} tokens, and the tokens of"
                        f" {size_schedule.OPTION} count samples of {batches.seq_length} tokens",
                        "drop it, and give the phases a global-batch-size each",
                    )
        scheduled = dataclasses.replace(batches, seq_length=self.phases[0].seq_length)
        has_sizes = any(phase.global_batch_size for phase in self.phases)
        end = samples = 0
        for phase in self.phases:
            if has_sizes:
                size = PhaseSize(scheduled.samples_after(end), phase.global_batch_size)
                scheduled = dataclasses.replace(scheduled, phase_sizes=(*scheduled.phase_sizes, size))
            samples += phase.samples
            begin, end = end, scheduled.steps_within(samples)
            if begin == end:
                raise BadConfig(f"{OPTION}: the phase {phase.name} is shorter than a step: {phase.samples} samples")
        return dataclasses.replace(scheduled, train_iters=end)


def changes(stored: Any, current: Sequence[dict[str, Any]], steps_done: int) -> bool:
    """Return whether the phases that a checkpoint had begun after `steps_done` samples differ from the phases in `current`."""
    if not isinstance(stored, list):
        return True
    begin = 0
    for number, phase in enumerate(stored):
        if begin >= steps_done:
            break
        if number >= len(current) or phase != current[number]:
            return True
        begin += phase.get("samples", 0) if isinstance(phase, dict) else 0
    return False


def check(schedule: Schedule, batches: Batches, saves: bool) -> Iterator[ToolError]:
    """Yield BadConfig if a phase needs new processes, which resume from a checkpoint, but the run saves none."""
    if schedule and not saves and schedule.end_of_form(batches, 0) < batches.train_iters:
        yield BadConfig(
            f"{OPTION}: a phase with another sequence length or rotary embedding continues from a checkpoint", "add --save"
        )
