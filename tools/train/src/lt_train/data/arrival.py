"""Whether the samples of the next step are there, as the ranks tell each other."""

import enum


class Arrival(enum.IntEnum):
    """Of several ranks' answers the largest counts."""

    READY = 0
    WAITING = 1
    FAILED = 2
