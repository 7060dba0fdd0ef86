"""Times that a log cannot have: broken digits and clocks that were never set.

One line of the year 9999 would make a run of an hour one of 8,000 years. A time counts when it is after FIRST and at most
AHEAD_SECONDS from now: a log without zones may come from a machine whose day began 26 hours before ours.
"""

from lt_monitor.events.escaping import counted, printable
from lt_monitor.events.records import Record
from lt_monitor.events.steps import epoch_seconds
from lt_shared.console import warn

FIRST = 946684800.0
AHEAD_SECONDS = 26 * 3600.0


class PlausibleTimes:
    """Takes impossible times from records and counts them by run. `latest` is the last possible one, seconds since 1970."""

    def __init__(self, now: float):
        self.latest = now + AHEAD_SECONDS
        self._dropped: dict[str, tuple[int, str]] = {}

    def checked(self, record: Record) -> Record:
        """The record, without its time where that cannot be."""
        time = record.get("time")
        if time is None:
            return record
        seconds = epoch_seconds(time)
        if FIRST <= seconds <= self.latest:
            return record
        count, first = self._dropped.get(record["run"], (0, str(time)))
        self._dropped[record["run"]] = count + 1, first
        return {key: value for key, value in record.items() if key != "time"}

    def warn(self) -> None:
        """Say once for each run what was dropped."""
        for run, (count, first) in self._dropped.items():
            warn(
                f"{printable(run)}: left out {counted(count, 'time')} before 2000 or in the future, the first {printable(first)}"
            )
