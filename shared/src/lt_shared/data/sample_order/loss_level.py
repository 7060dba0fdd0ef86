"""Detect losses that stand out from earlier losses, for a run's steps and for single samples.

The difference between a step's loss and the median of the five losses before it is compared with the same difference at earlier
steps. A steeply falling loss has a large difference at every step, and a jump is still detected. A loss that stands out is not
compared with later losses, so text of one kind that returns is detected every time. Deviations are median absolute deviations; a
threshold of six deviations alone would call the ripples of a flat loss a jump.
"""

import collections
import math
import statistics
from collections.abc import Collection, Iterable

DEVIATIONS = 6.0
SMALLEST_RISE = 0.1
TO_DEVIATION = 1.4826
NEAREST = 5
# A loss that stays up is a level of its own.
MOST_IN_A_ROW = 10


class LossLevel:
    """The level of a run's losses. At most `window` losses count, and no loss stands out before there are `fewest`."""

    def __init__(self, window: int, fewest: int):
        self.fewest = fewest
        self.recent: collections.deque[float] = collections.deque(maxlen=window)
        self._nearest: collections.deque[float] = collections.deque(maxlen=NEAREST)
        self._rises: collections.deque[float] = collections.deque(maxlen=window)
        self._in_a_row = 0

    def compare(self, loss: float) -> int:
        """1 when the next loss of the run is far above the level, -1 when it is far below, 0 otherwise."""
        side = self._side(loss)
        if side or not math.isfinite(loss):
            self._in_a_row += 1
            if self._in_a_row <= MOST_IN_A_ROW:
                return side
            self._begin_anew()
            return 0
        self._in_a_row = 0
        if self._nearest:
            self._rises.append(loss - statistics.median(self._nearest))
        self._nearest.append(loss)
        self.recent.append(loss)
        return 0

    def _side(self, loss: float) -> int:
        if len(self.recent) < self.fewest:
            return 0
        level = statistics.median(self._nearest)
        margin = _margin(level, self._rises)
        if not loss <= level + margin:
            return 1
        # A loss that falls is below the level each time.
        return -1 if loss < level + min(0.0, statistics.median(self._rises)) - margin else 0

    def _begin_anew(self) -> None:
        for losses in (self.recent, self._nearest, self._rises):
            losses.clear()
        self._in_a_row = 0


def usual(losses: Iterable[float]) -> tuple[float, float]:
    """Return the median loss and the distance from it that makes a loss stand out; infinity and 0 if no loss is finite."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    if not finite:
        return math.inf, 0.0
    median = statistics.median(finite)
    return median, _margin(median, finite)


def _margin(level: float, values: Collection[float]) -> float:
    median = statistics.median(values)
    deviation = TO_DEVIATION * statistics.median(abs(value - median) for value in values)
    return max(DEVIATIONS * deviation, SMALLEST_RISE * abs(level))
