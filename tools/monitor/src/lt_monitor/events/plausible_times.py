"""Remove impossible times, which come from broken digits and from clocks that were never set.

One line of the year 9999 would stretch a run of an hour to 8,000 years. A time is plausible if it is after the year 2000 and at
most 26 hours in the future: times may have no zone, and the time zones of two machines differ by up to 26 hours.
"""

from lt_monitor.events.escaping import printable
from lt_monitor.events.records import Record
from lt_monitor.events.steps import epoch_seconds
from lt_shared.console import counted, warn

EARLIEST_SECONDS = 946684800.0
MAXIMUM_AHEAD_SECONDS = 26 * 3600.0


class PlausibleTimes:
    """Removes implausible times from records and counts them by run. `latest` (seconds since 1970) is the upper limit."""

    def __init__(self, now: float):
        self.latest = now + MAXIMUM_AHEAD_SECONDS
        self._dropped: dict[str, tuple[int, str]] = {}

    def with_plausible_time(self, record: Record) -> Record:
        """Return the record, without its time if the time is implausible."""
        time = record.get("time")
        if time is None:
            return record
        seconds = epoch_seconds(time)
        if EARLIEST_SECONDS <= seconds <= self.latest:
            return record
        count, first = self._dropped.get(record["run"], (0, str(time)))
        self._dropped[record["run"]] = count + 1, first
        return {key: value for key, value in record.items() if key != "time"}

    def warn(self) -> None:
        """Warn once for each run about the times that were removed."""
        for run, (count, first) in self._dropped.items():
            warn(
                f"{printable(run)}: left out {counted(count, 'time')} before 2000 or in the future, the first {printable(first)}"
            )
