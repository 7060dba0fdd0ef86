"""How long the ranks of a run wait for the slowest one, from Megatron's and lt-train's timers (`--timing-log-level`)."""

import dataclasses

from lt_monitor.events.records import Record

RECENT_REPORTS = 8
MAXIMUM_TIMERS = 64
# Timers of a rank's own work. In others, such as forward-backward, the waiting of the fast ranks is included.
DATA_TIMERS = ("batch-generator", "data-iterator")
COMPUTE_TIMERS = ("forward-compute", "backward-compute", "optimizer-inner-step")


@dataclasses.dataclass
class RankWaits:
    """`reports` has, for each timer, the last reports: seconds of the fastest and of the slowest rank, and the slowest rank."""

    reports: dict[str, list[list[float | int | None]]] = dataclasses.field(default_factory=dict)

    def take(self, timers: Record) -> None:
        """Add a table of timers."""
        for name, times in list(timers.items())[:MAXIMUM_TIMERS]:
            if name not in (*DATA_TIMERS, *COMPUTE_TIMERS) or not isinstance(times, dict):
                continue
            fastest, slowest, rank = (times.get(key) for key in ("min_seconds", "max_seconds", "max_rank"))
            if isinstance(fastest, int | float) and isinstance(slowest, int | float):
                reports = self.reports.setdefault(name, [])
                reports.append([fastest, slowest, rank if isinstance(rank, int) else None])
                del reports[:-RECENT_REPORTS]
