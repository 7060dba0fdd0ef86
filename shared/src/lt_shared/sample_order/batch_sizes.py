"""How many samples each step of a run takes: the same number, or with Megatron's ramp-up more and more."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class RampUp:
    """Megatron's batch size ramp-up: `start` samples per step, `increment` more after each equal part of `samples`."""

    start: int
    increment: int
    samples: int


def size_at(consumed_samples: int, global_batch_size: int, ramp: RampUp | None) -> int:
    """Samples of the step that begins when `consumed_samples` have been trained on."""
    if ramp is None or consumed_samples > ramp.samples:
        return global_batch_size
    increments = (global_batch_size - ramp.start) // ramp.increment
    return ramp.start + int(consumed_samples / (ramp.samples / increments)) * ramp.increment


def samples_between(consumed_samples: int, steps: int, global_batch_size: int, ramp: RampUp | None) -> int:
    """Samples that `steps` steps take which begin when `consumed_samples` have been trained on."""
    end = consumed_samples
    while steps and (size := size_at(end, global_batch_size, ramp)) < global_batch_size:
        end, steps = end + size, steps - 1
    return end + steps * global_batch_size - consumed_samples
