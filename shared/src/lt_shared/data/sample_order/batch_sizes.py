"""The number of samples in each step of a run: constant, Megatron's ramp-up or step-wise schedule, or another in each phase.

A phase with a size of its own has it throughout, whatever the ramp-up or the schedule says; phases have whole steps.
"""

import dataclasses
import functools
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class RampUp:
    """Megatron's batch size ramp-up: `start` samples per step, `increment` more after each equal part of `samples`."""

    start: int
    increment: int
    samples: int


@dataclasses.dataclass(frozen=True)
class ScheduledSize:
    """From sample `begin` of the run on, until the next scheduled size, steps have `size` samples."""

    begin: int
    size: int


@dataclasses.dataclass(frozen=True)
class PhaseSize:
    """From sample `begin` of the run on, until the next phase, steps have `size` samples. None is the run's batch size."""

    begin: int
    size: int | None


class _Stretch(NamedTuple):
    """Consecutive steps with one batch `size`. `step` steps precede them; their first sample has number `begin` in the run."""

    step: int
    begin: int
    size: int


@dataclasses.dataclass(frozen=True)
class BatchSizes:
    """`global_batch_size` is the size after the ramp-up, and the last size of the `schedule`.

    The `schedule` begins at sample 0; it is empty for a run without one. `phases` are empty if all have the run's size.
    """

    global_batch_size: int
    ramp_up: RampUp | None = None
    phases: tuple[PhaseSize, ...] = ()
    schedule: tuple[ScheduledSize, ...] = ()

    @property
    def all(self) -> tuple[int, ...]:
        """All sizes that there may be."""
        ramp = self.ramp_up
        scheduled = (entry.size for entry in self.schedule)
        sizes = (*scheduled, *(range(ramp.start, self.global_batch_size, ramp.increment) if ramp else ()), self.global_batch_size)
        return tuple(dict.fromkeys((*sizes, *(phase.size for phase in self.phases if phase.size is not None))))

    def size_at(self, consumed_samples: int) -> int:
        """Samples of the step that begins when `consumed_samples` have been trained on."""
        phase = self._phase_at(consumed_samples)
        if phase is not None and phase.size is not None:
            return phase.size
        if self.schedule:
            return next(entry.size for entry in reversed(self.schedule) if entry.begin <= max(0, consumed_samples))
        ramp = self.ramp_up
        if ramp is None or consumed_samples > ramp.samples:
            return self.global_batch_size
        increments = (self.global_batch_size - ramp.start) // ramp.increment
        return ramp.start + int(consumed_samples / (ramp.samples / increments)) * ramp.increment

    def samples_between(self, consumed_samples: int, steps: int) -> int:
        """Samples that `steps` steps take which begin when `consumed_samples` have been trained on."""
        end = consumed_samples
        while steps > 0:
            size, alike = self.size_at(end), self._alike(end)
            steps_alike = steps if alike is None else min(steps, alike)
            end, steps = end + steps_alike * size, steps - steps_alike
        return end - consumed_samples

    def steps_between(self, consumed_samples: int, end: int) -> int:
        """Whole steps after `consumed_samples` that end at or before sample `end`."""
        steps = 0
        while True:
            size, alike = self.size_at(consumed_samples), self._alike(consumed_samples)
            fitting = (end - consumed_samples) // size
            if alike is None or fitting < alike:
                return steps + max(0, fitting)
            consumed_samples, steps = consumed_samples + alike * size, steps + alike

    def samples_after(self, steps: int) -> int:
        """Samples of the first `steps` steps of the run."""
        stretch = next(candidate for candidate in reversed(_stretches(self)) if candidate.step <= max(0, steps))
        return stretch.begin + (max(0, steps) - stretch.step) * stretch.size

    def steps_within(self, samples: int) -> int:
        """Whole steps, from the beginning of the run, that take no more than `samples` together."""
        stretches = _stretches(self)
        number = next(number for number in reversed(range(len(stretches))) if stretches[number].begin <= max(0, samples))
        stretch = stretches[number]
        return stretch.step + max(0, samples - stretch.begin) // stretch.size

    def _phase_at(self, consumed_samples: int) -> PhaseSize | None:
        return next((phase for phase in reversed(self.phases) if phase.begin <= consumed_samples), None)

    def _alike(self, consumed_samples: int) -> int | None:
        """Return how many steps from `consumed_samples` on have the same size, perhaps fewer than there are; None for all."""
        current, ramp = self._phase_at(consumed_samples), self.ramp_up
        has_own_size = current is not None and current.size is not None
        if not has_own_size and ramp is not None and consumed_samples <= ramp.samples:
            return 1
        begins = [phase.begin for phase in self.phases]
        begins += [] if has_own_size else [entry.begin for entry in self.schedule]
        following = min((begin for begin in begins if begin > consumed_samples), default=None)
        return None if following is None else -(-(following - consumed_samples) // self.size_at(consumed_samples))


@functools.lru_cache(maxsize=16)
def _stretches(sizes: BatchSizes) -> tuple[_Stretch, ...]:
    """From the beginning of the run: a ramp-up may have a million steps, and the training loop asks at each of its own."""
    stretches: list[_Stretch] = []
    step = begin = 0
    while True:
        size, alike = sizes.size_at(begin), sizes._alike(begin)
        if not stretches or stretches[-1].size != size:
            stretches.append(_Stretch(step, begin, size))
        if alike is None:
            return tuple(stretches)
        step, begin = step + alike, begin + alike * size
