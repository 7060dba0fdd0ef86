"""The arrival of the next step's samples, agreed between the ranks."""

import enum


class Arrival(enum.IntEnum):
    """A rank's answer. The ranks' largest answer counts."""

    READY = 0
    WAITING = 1
    FAILED = 2
