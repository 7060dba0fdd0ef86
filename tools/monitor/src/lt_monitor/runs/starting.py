"""A run before the first step of its present attempt: the time of its start, and its activity.

lt-train's log names each phase of a start with its time. Of other trainers the last line that says something is shown, without
labels, bars' carriage returns and colours.
"""

import contextlib
import dataclasses
import os
import re
import time

from lt_monitor.events.records import Record
from lt_monitor.events.steps import epoch_seconds
from lt_monitor.logs import log_files
from lt_monitor.logs.labels.removal import LabelRemoval
from lt_monitor.logs.lines import CONTROL_SEQUENCE
from lt_monitor.runs.attempts import Attempt, Run
from lt_shared.console import ToolError
from lt_shared.contracts import run_log
from lt_shared.contracts.recovery_notes import Starting
from lt_shared.files import storage

# A start may be silent for so long: compilers, large checkpoints.
LIMIT_SECONDS = 1800
# A log of an unknown trainer that is larger probably has steps in a form that nothing here reads.
MAXIMUM_BYTES = 1 << 18
TAIL_BYTES = 1 << 14
LINE_CHARACTERS = 200
_WORDS = re.compile(rb"[A-Za-z]{3}")
# Kinds of records that a trainer or its launcher prints before the first step.
_KINDS = ("start", "load", "fault", "note", "end")


@dataclasses.dataclass(frozen=True)
class Start:
    """`since` is seconds since 1970, None if the log has no time. `activity` says what the run does, None if its log is empty."""

    since: float | None
    activity: str | None

    @classmethod
    def of(cls, run: Run) -> "Start | None":
        """Return the start of the last attempt, None if it has steps."""
        attempt = run.attempts[-1]
        if len(attempt.steps):
            return None
        notes = [note for note in attempt.of_kind("note") if note["note"] == Starting.NOTE]
        begins = [epoch_seconds(note.get("time")) - _seconds(note) for note in notes]
        since = next((begin for begin in begins if begin == begin), attempt.begin_time)
        phase = str((notes[-1].get("fields") or {}).get("phase") or "") if notes else ""
        arguments = "printed its arguments" if attempt.of_kind("start") else None
        return cls(since, phase or _last_line(attempt) or arguments)

    def seconds(self, now: float) -> float | None:
        """Return how long the run has been starting at the time `now`."""
        return None if self.since is None else max(0.0, now - self.since)


def _seconds(note: Record) -> float:
    seconds = (note.get("fields") or {}).get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def is_run(run: Run) -> bool:
    """Whether the records are a trainer's, although none is a step."""
    return any(event["kind"] in _KINDS for attempt in run.attempts for event in attempt.events)


def unread_run(path: str) -> Run | None:
    """Return the run of a log without any event if it may be a start: short, and changed within LIMIT_SECONDS."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        if os.path.isfile(path) and status.st_size <= MAXIMUM_BYTES and time.time() - status.st_mtime <= LIMIT_SECONDS:
            shown = log_files.printable(path)
            return Run(log_files.run_name(path), [Attempt(1, files=[shown])], [shown])
    return None


def _last_line(attempt: Attempt) -> str | None:
    """Return the last telling line of the attempt's newest log."""
    files = [file for file in attempt.files if not storage.is_remote(file) and os.path.isfile(file)]
    for file in sorted(files, key=os.path.getmtime, reverse=True):
        with contextlib.suppress(OSError, ToolError), log_files.open_log(file) as log:
            log.seek(max(0, log.seek(0, 2) - TAIL_BYTES))
            if (line := _telling_line(log.read(TAIL_BYTES))) is not None:
                return line
    return None


def _telling_line(text: bytes) -> str | None:
    unlabelled = LabelRemoval().remove(text.replace(b"\r", b"\n"))
    lines = (text if unlabelled is None else unlabelled.text).replace(b"\r", b"\n").split(b"\n")
    for line in reversed(lines):
        shown = CONTROL_SEQUENCE.sub(b"", line).strip()
        is_argument = run_log.ARGUMENT.fullmatch(line) is not None or run_log.ARGUMENTS_HEADING.search(line) is not None
        if _WORDS.search(shown) is not None and not is_argument:
            return shown.decode(errors="replace")[:LINE_CHARACTERS]
    return None
