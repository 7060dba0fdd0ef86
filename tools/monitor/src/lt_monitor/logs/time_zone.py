"""Infer the time zone of a log whose times have none, from the file's modification time.

Times without a zone are read as local times. If containers log in UTC and the login node is 8 hours ahead, that would look like a
hang of 8 hours; in the other direction it would hide a hang. A line is written right after its time is taken. So if the last
line's time and the file's modification time differ by a multiple of a quarter of an hour, to within a minute, the difference is
the offset between the zones. A copied file agrees by accident in 13% of cases if its times are at most 26 hours old, so with a
state file only logs that grew are examined. If the last line has no time, the zone stays unknown.
"""

import datetime
import os

from lt_monitor.events.records import Record
from lt_monitor.events.steps import epoch_seconds, is_local
from lt_monitor.logs.lines import Line
from lt_monitor.logs.log_parser import LogParser
from lt_shared.console import warn

QUARTER_SECONDS = 900
TOLERANCE_SECONDS = 60
MAXIMUM_OFFSET_SECONDS = 26 * 3600
TAIL_BYTES = 1 << 16


def behind_seconds(path: str) -> float | None:
    """Return how many seconds the times in a log are behind this machine's zone; None if the log does not show it."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        file.seek(max(0, status.st_size - TAIL_BYTES))
        tail = file.read(TAIL_BYTES).replace(b"\r", b"\n").rstrip(b"\n")
    line = tail[tail.rfind(b"\n") + 1 :]
    if line.lstrip().startswith(b"{"):
        return None
    records = LogParser().parse(line + b"\n", 0).records(path, path)
    time = next((record["time"] for record in records if "time" in record), Line(line, 0).time)
    if not isinstance(time, str) or not is_local(time):
        return None
    difference = status.st_mtime - epoch_seconds(time)
    if not abs(difference) <= MAXIMUM_OFFSET_SECONDS:
        return None
    quarters = round(difference / QUARTER_SECONDS) * QUARTER_SECONDS
    return float(quarters) if abs(difference - quarters) <= TOLERANCE_SECONDS else None


def describe(seconds: float) -> str:
    return f"{abs(seconds) / 3600:g} h {'behind' if seconds > 0 else 'ahead of'}"


class TimeZoneCorrection:
    """Shifts the times of a log to this machine's zone, and warns once about times that are still in the future."""

    def __init__(self, path: str, behind: float, now: float):
        self._path = path
        self._behind = behind
        self._now = now
        self._is_warned = False

    def correct(self, record: Record) -> Record:
        """Return the record; a time without a zone is converted to this machine's zone."""
        time = record.get("time")
        if not isinstance(time, str) or not is_local(time):
            return record
        seconds = epoch_seconds(time) + self._behind
        if not self._is_warned and seconds > self._now + QUARTER_SECONDS - TOLERANCE_SECONDS:
            self._is_warned = True
            ahead = describe(-round((seconds - self._now) / QUARTER_SECONDS) * QUARTER_SECONDS)
            remedy = "set the log's time zone, e.g. TZ=UTC lt-monitor ..."
            warn(f"{self._path}: its times have no time zone and are {ahead} this machine's clock: {remedy}")
        if not self._behind or not 0 < seconds < 1e11:
            return record
        return {**record, "time": datetime.datetime.fromtimestamp(seconds).isoformat()}
