"""Which time zone a log without zones was written in, by the time of its file.

Such times are read as local ones. A log of containers in UTC on a login node 8 hours ahead would look as if it hung for 8 hours,
one of a zone behind would hide a hang. A line is written right after its time was taken, so where the last line of a log has a
time that differs from the file's by whole quarters of an hour, and by a minute at most besides, the difference is that of the
zones. A copied file may agree by accident (13% of those whose times are of the last 26 hours), so with a state only logs that
grew are looked at. Other lines behind the last time would make any difference possible; such logs tell nothing.
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
WIDEST_SECONDS = 26 * 3600
LINE_BYTES = 1 << 16


def behind_seconds(path: str) -> float | None:
    """How far the times in a log are behind this machine's zone; None where that cannot be told."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        file.seek(max(0, status.st_size - LINE_BYTES))
        tail = file.read(LINE_BYTES).replace(b"\r", b"\n").rstrip(b"\n")
    line = tail[tail.rfind(b"\n") + 1 :]
    if line.lstrip().startswith(b"{"):
        return None
    records = LogParser().parse(line + b"\n", 0).records(path, path)
    time = next((record["time"] for record in records if "time" in record), Line(line, 0).time)
    if not isinstance(time, str) or not is_local(time):
        return None
    difference = status.st_mtime - epoch_seconds(time)
    if not abs(difference) <= WIDEST_SECONDS:
        return None
    quarters = round(difference / QUARTER_SECONDS) * QUARTER_SECONDS
    return float(quarters) if abs(difference - quarters) <= TOLERANCE_SECONDS else None


def describe(seconds: float) -> str:
    return f"{abs(seconds) / 3600:g} h {'behind' if seconds > 0 else 'ahead of'}"


class TimeZoneCorrection:
    """Puts the times of one log right, and warns once where they lie in the future all the same."""

    def __init__(self, path: str, behind: float, now: float):
        self._path = path
        self._behind = behind
        self._now = now
        self._is_warned = False

    def correct(self, record: Record) -> Record:
        """The record, with the time of this machine's zone when it had none."""
        time = record.get("time")
        if not isinstance(time, str) or not is_local(time):
            return record
        seconds = epoch_seconds(time) + self._behind
        if not self._is_warned and seconds > self._now + QUARTER_SECONDS - TOLERANCE_SECONDS:
            self._is_warned = True
            ahead = describe(-round((seconds - self._now) / QUARTER_SECONDS) * QUARTER_SECONDS)
            remedy = "say the log's, e.g. TZ=UTC lt-monitor ..."
            warn(f"{self._path}: its times are {ahead} this machine's clock and have no zone: {remedy}")
        if not self._behind or not 0 < seconds < 1e11:
            return record
        return {**record, "time": datetime.datetime.fromtimestamp(seconds).isoformat()}
