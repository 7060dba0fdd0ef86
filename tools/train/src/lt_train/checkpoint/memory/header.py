"""The step at the begin of a copy's memory, which rank and launcher read without torch."""

import os

COMPLETE_BYTES = 8
HEADER_BYTES = 16


def read_step(descriptor: int) -> int:
    """Return the step of the copy, 0 if it is incomplete."""
    return int.from_bytes(os.pread(descriptor, COMPLETE_BYTES, 0), "little")


def write_step(descriptor: int, step: int) -> None:
    """Set the step when the copy is complete; 0 before it changes."""
    os.pwrite(descriptor, step.to_bytes(COMPLETE_BYTES, "little"), 0)
