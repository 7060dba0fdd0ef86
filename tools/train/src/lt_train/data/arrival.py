"""The arrival of the next step's samples, on which the ranks agree."""

import enum


class Arrival(enum.IntEnum):
    """A rank's answer. The largest answer of all ranks counts."""

    READY = 0
    WAITING = 1
    FAILED = 2
