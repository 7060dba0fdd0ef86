"""Logs that stop among steps without a word: the job still runs, or it was ended with no chance to say so.

The file tells which: a job that runs writes a line every few steps. A file that nobody changed for much longer belongs to a job
that has ended, unless the times in the log contradict the file's time, because then the file is a copy.
"""

import dataclasses
import itertools
import os
import re
import statistics
import time
from collections.abc import Sequence

from lt_monitor.events.records import Record
from lt_monitor.events.steps import epoch_seconds
from lt_monitor.logs.fields import read_time
from lt_monitor.logs.log_tail import LogTail
from lt_shared.files import storage

# A file with times in its lines is silent after so many seconds or steps, whichever is longer; a file without times much later.
MINIMUM_SECONDS, STEPS = 1800, 10
MINIMUM_SECONDS_WITHOUT_TIMES = 6 * 3600
# The clocks of a node and of a file server differ by less, and zones by multiples of this.
CLOCK_SECONDS, ZONE_SECONDS, MAXIMUM_ZONE_SECONDS = 120, 900, 14 * 3600
_LAST_BYTES = 1 << 13
_TIME = re.compile(rb"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?(?![\d:])")


@dataclasses.dataclass(frozen=True)
class SilentEnd:
    """`last_time` is the last time in the log, as printed. `seconds`: since when the file has not changed, None if unknown.

    `has_ended`: the job cannot run any more.
    """

    last_time: str | None
    seconds: float | None
    has_ended: bool

    def __str__(self) -> str:
        last = f"last time {self.last_time}" if self.last_time is not None else ""
        unchanged = f"unchanged for {_duration(self.seconds)}" if self.seconds is not None else ""
        return f" ({', '.join(filter(None, (last, unchanged)))})" if last or unchanged else ""


def silent_end(tails: Sequence[LogTail], is_ended: bool) -> SilentEnd | None:
    """Return how long a job's logs are silent; None if they have no steps. `is_ended`: the job has ended for certain."""
    with_steps = [tail for tail in tails if tail.progress or any(record["kind"] == "step" for record in tail.records)]
    if not with_steps:
        return SilentEnd(None, None, has_ended=True) if is_ended else None
    # All logs are silent as long as the last one.
    ends = [_end(tail, is_ended) for tail in with_steps]
    return min(ends, key=lambda end: (end.has_ended, end.seconds if end.seconds is not None else 0.0))


def _end(tail: LogTail, is_ended: bool) -> SilentEnd:
    last_time = _last_time(tail)
    changed = _changed(tail.path)
    if changed is None:
        return SilentEnd(last_time, None, is_ended)
    seconds = max(0.0, time.time() - changed)
    limit = max(MINIMUM_SECONDS, STEPS * _step_seconds(tail))
    if last_time is None:
        limit = max(MINIMUM_SECONDS_WITHOUT_TIMES, limit)
    elif not _agrees(changed - epoch_seconds(last_time), limit):
        return SilentEnd(last_time, None, is_ended)
    return SilentEnd(last_time, seconds, is_ended or seconds > limit)


def _last_time(tail: LogTail) -> str | None:
    """Return the last time that the program printed, or the last in a label if it printed none."""
    begin = tail.size - _LAST_BYTES
    for text in (tail.context(begin, tail.size), tail.text(begin, tail.size)):
        times = (read_time(match) for match in reversed(_TIME.findall(text)))
        if (last := next((time for time in times if time is not None), None)) is not None:
            return last
    return None


def _changed(path: str) -> float | None:
    """Return when a local file changed, in seconds since 1970; None for a pipe, a remote file or a compressed one."""
    if storage.is_remote(path) or not os.path.isfile(path) or path.endswith((".gz", ".zst", ".xz", ".bz2")):
        return None
    return os.path.getmtime(path)


def _agrees(difference: float, limit: float) -> bool:
    """Whether a file's time is the time of its last line, in any zone. `difference` is NaN for a time that says nothing."""
    if abs(difference) <= limit:
        return True
    distance = (
        abs(difference - round(difference / ZONE_SECONDS) * ZONE_SECONDS) if difference == difference else CLOCK_SECONDS + 1
    )
    return abs(difference) <= MAXIMUM_ZONE_SECONDS and distance <= CLOCK_SECONDS


def _step_seconds(tail: LogTail) -> float:
    """Return the usual seconds of a step, or between the lines of two steps; 0 if unknown."""
    steps = [record for record in tail.records if record["kind"] == "step"]
    times = [epoch_seconds(record.get("time")) for record in steps]
    gaps = [second - first for first, second in itertools.pairwise(times) if second > first]
    printed = [float(record["step_seconds"]) for record in steps if _is_number(record)]
    return max(statistics.median(values) if values else 0.0 for values in (gaps, printed))


def _is_number(record: Record) -> bool:
    return isinstance(record.get("step_seconds"), int | float)


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
