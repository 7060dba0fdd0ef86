"""The loss of a whole run in at most 64 means, to see a rise that is too slow for the recent steps.

Each bucket is the mean over as many step lines as any other. When 64 are full, neighbours are joined, so a bucket of a run with a
million lines covers 30,000. A spike counts as at most twice the usual loss, because a few lines must not look like a rise.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

BUCKETS = 64
FIRST_LINES = 10
MAXIMUM_FACTOR = 2.0
# A rise begins at the lowest bucket and is followed through at least so many.
RISE_BUCKETS = 6


@dataclasses.dataclass(frozen=True)
class Rise:
    """From the mean `low` around step `first_step` to `high` around `last_step`. `noise` is the usual change per bucket."""

    first_step: int
    last_step: int
    lines: int
    low: float
    high: float
    noise: float


@dataclasses.dataclass
class LossTrend:
    """`buckets` holds the last step and the mean loss of every full bucket of `lines` step lines, the rest is the open bucket."""

    lines: int = FIRST_LINES
    buckets: list[list[float]] = dataclasses.field(default_factory=list)
    open_lines: int = 0
    open_sum: float = 0.0

    def take(self, step: int, losses: Sequence[float]) -> None:
        """Add the losses of some step lines, the last one of `step`."""
        if self.buckets:
            last_step, last_mean = self.buckets[-1]
            if step <= last_step:
                # A restart repeats steps.
                self.buckets = [bucket for bucket in self.buckets if bucket[0] < step]
                self.open_lines, self.open_sum = 0, 0.0
            if last_mean > 0:
                losses = [min(loss, MAXIMUM_FACTOR * last_mean) for loss in losses]
        self.open_lines += len(losses)
        self.open_sum += sum(losses)
        if self.open_lines < self.lines:
            return
        self.buckets.append([step, self.open_sum / self.open_lines])
        self.open_lines, self.open_sum = 0, 0.0
        if len(self.buckets) == BUCKETS:
            pairs = zip(self.buckets[::2], self.buckets[1::2], strict=True)
            self.buckets = [[second[0], (first[1] + second[1]) / 2] for first, second in pairs]
            self.lines *= 2

    def rise(self) -> Rise | None:
        """Return the rise from the lowest bucket to the last one if the loss still rises, else None.

        A jump that recovers, after a spike or with other data, does not rise any more: the thirds behind the low have to ascend.
        """
        means = [mean for _, mean in self.buckets]
        if len(means) <= RISE_BUCKETS:
            return None
        lowest = min(range(len(means)), key=means.__getitem__)
        behind = means[lowest + 1 :]
        if len(behind) < RISE_BUCKETS:
            return None
        third = len(behind) // 3
        thirds = [statistics.fmean(part) for part in (behind[:third], behind[third:-third], behind[-third:])]
        high = statistics.fmean(behind[-max(1, third // 2) :])
        if not (means[lowest] < thirds[0] < thirds[1] < thirds[2] <= high * 1.02):
            return None
        changes = [abs(after - before) for before, after in itertools.pairwise(means)]
        return Rise(
            int(self.buckets[lowest][0]),
            int(self.buckets[-1][0]),
            len(behind) * self.lines,
            means[lowest],
            high,
            statistics.median(changes),
        )
