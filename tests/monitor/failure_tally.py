"""Prints how `lt-monitor tail-cause` names the causes of the logs in samples/failures: right, mislabelled, missed, false alarms.

python tests/monitor/failure_tally.py [FILE...]
"""

import collections
import csv
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from lt_monitor.runs.faults import tail_cause
from lt_monitor.runs.faults.advice import Action

FAILURES = Path(__file__).parent / "samples/failures"
CODES = {Action.NONE: 0, Action.AGAIN: 75, Action.WITHOUT_NODE: 69, Action.STOP: 78, Action.UNKNOWN: 1}


def verdict(log: Path, text: str) -> tuple[str | None, int]:
    """The fault that `log` ends in when it holds `text`, and the exit code for it."""
    log.write_text(text)
    cause = tail_cause.tail_cause([str(log)])
    return cause.fault, CODES[cause.action]


def expected() -> dict[str, tuple[str, int]]:
    """Of each log the fault that a careful reader names, `none` where nothing went wrong, and the exit code."""
    with open(FAILURES / "EXPECTED.tsv") as file:
        return {row["file"]: (row["fault"], int(row["exit_code"])) for row in csv.DictReader(file, delimiter="\t")}


def verdicts(names: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Of each log its name, how it was judged, and what was expected and found where they differ."""
    wanted = expected()
    for name in names:
        fault, code = wanted[name]
        with tempfile.TemporaryDirectory() as directory:
            # A new file: the age of a checkout says nothing about the job.
            log = Path(directory) / name
            log.write_bytes((FAILURES / name).read_bytes())
            cause = tail_cause.tail_cause([str(log)])
        found, found_code = cause.fault or "none", CODES[cause.action]
        if (found, found_code) == (fault, code):
            yield name, "right", ""
            continue
        judged = (
            "missed"
            if found == "none"
            else "false alarm"
            if fault == "none"
            else "mislabelled"
            if found != fault
            else "wrong action"
        )
        yield name, judged, f"expected {fault} {code}, found {found} {found_code}: {cause.message[:100]}"


def main() -> None:
    tally: collections.Counter[str] = collections.Counter()
    for name, judged, difference in verdicts(sys.argv[1:] or expected()):
        tally[judged] += 1
        if difference:
            print(f"{judged}: {name}: {difference}")
    print(", ".join(f"{judged} {count}" for judged, count in tally.most_common()))


if __name__ == "__main__":
    main()
