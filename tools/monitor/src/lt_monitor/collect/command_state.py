"""Keep the state of `alert` and `prom` between two runs of cron: the states of training runs, and how far logs were read.

One file holds both and is replaced atomically. A killed pass does not change the file, and the next pass reads the same records
again, so each event counts once in the state. A pipeline of two commands has two state files and no such guarantee; there,
`log_state.LogState` recognises repeated records.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from lt_monitor.collect import state_file
from lt_monitor.collect.offsets import LogOffsets, SavedLogOffset
from lt_monitor.collect.scrape import scrape_log
from lt_monitor.events.records import Record
from lt_monitor.logs import log_files, rank_series, time_zone
from lt_monitor.logs.deduplication import Deduplicator
from lt_monitor.logs.parsed_block import ParsedBlock
from lt_monitor.logs.time_zone import TimeZoneCorrection
from lt_monitor.runs.run_state import RunState
from lt_monitor.runs.state_lookup import MAXIMUM_RUNS
from lt_shared.console import UsageError, note, warn
from lt_shared.files import storage


class CommandState:
    """A command's state: `runs` by name, the times at which `known` findings were first seen, and `undelivered` findings.

    `behind` maps a log's absolute path to how many seconds the log's times are behind this machine's time zone. Without a state
    file, the state starts empty and is discarded at the end.
    """

    def __init__(self, command: str, patterns: Sequence[str]):
        self.command = command
        self.patterns = patterns
        self.runs: dict[str, RunState] = {}
        self.known: dict[str, float] = {}
        self.undelivered: list[Record] = []
        self.behind: dict[str, float] = {}
        self._offsets: LogOffsets | None = None
        self._file: IO[bytes] | None = None

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: str | None, command: str, patterns: Sequence[str]) -> "Iterator[CommandState]":
        """Read the state file `path` and lock it until the block ends. `save` inside the block replaces the file's content.

        Raises: the errors of `state_file.read`; TryAgain when another pass holds the file; CannotCreate and IoFailure when the
        file cannot be written; UsageError for a remote path.
        """
        state = cls(command, patterns)
        if path is None:
            yield state
            return
        if storage.is_remote(path):
            raise UsageError(f"{path}: a state file needs a local or mounted path")
        with storage.publish(path, state_file.MODE) as state._file:
            state._offsets = LogOffsets([])
            state._read(path)
            yield state

    def feed(self, take: Callable[[Record], object]) -> None:
        """Call `take` with each record of the logs; with a state file, only with new records.

        Standard input, pipes and remote logs have no offsets, so all their records count as new. Raises NoInput when a log is
        missing, and without a state file also NoInput or BadData when no log has text.
        """
        paths = log_files.expand(self.patterns)
        if self._offsets is None:
            log_files.require_text(paths)
        names = rank_series.run_names(paths) if self._offsets is None else self._offsets.run_names(paths)
        for path, run in names.items():
            clock = self._clock(path)
            if self._offsets is None or path == log_files.STANDARD_INPUT or not os.path.isfile(path):
                for block in log_files.event_blocks(path, run):
                    for record in block:
                        take(clock.correct(record))
            else:
                scrape_log(path, run, self._offsets, _Taker(take, clock))
        if len(self.runs) >= MAXIMUM_RUNS:
            warn(f"{len(self.runs):,} runs: of more, the oldest are forgotten; name fewer logs, or use a state for each project")

    def _clock(self, path: str) -> TimeZoneCorrection:
        """Return the time zone correction of a log, measured on the growing file now or in an earlier pass."""
        shown, absolute = log_files.printable(path), os.path.abspath(path)
        if path == log_files.STANDARD_INPUT or not os.path.isfile(path):
            return TimeZoneCorrection("standard input" if path == log_files.STANDARD_INPUT else shown, 0.0, time.time())
        before = self.behind.get(absolute, 0.0)
        saved = self._offsets.saved.get(absolute) if self._offsets is not None else None
        if saved is not None and saved.is_unchanged(os.stat(path)):
            return TimeZoneCorrection(shown, before, time.time())
        behind = time_zone.behind_seconds(path)
        if behind is None:
            behind = before
        if behind != before:
            zone = f"{time_zone.describe(behind)} the time of the file" if behind else "in this machine's time zone"
            note(f"{shown}: its times have no time zone and are taken to be {zone}; set TZ=... for another one")
        self.behind[absolute] = behind
        return TimeZoneCorrection(shown, behind, time.time())

    def save(self) -> None:
        """Write the state. The block of `open` publishes the file when it ends."""
        if self._file is not None and self._offsets is not None:
            state = {
                "runs": list(self.runs.values()),
                "known": self.known,
                "undelivered": self.undelivered,
                "behind": {path: seconds for path, seconds in self.behind.items() if seconds},
                "logs": [vars(log_offset) for log_offset in self._offsets.settled(None).saved.values()],
            }
            self._file.write(state_file.content(f"{self.command}-state", state))

    def _read(self, path: str) -> None:
        state = state_file.read(path, self.command)
        if state is None:
            return
        self.runs = {run["run"]: RunState.from_record(run) for run in state["runs"]}
        self.behind = state["behind"]
        self.known = state["known"]
        self.undelivered = state["undelivered"]
        self._offsets = LogOffsets([SavedLogOffset(**log) for log in state["logs"]])


class _Taker:
    """Takes the records of a log one by one."""

    def __init__(self, take: Callable[[Record], object], clock: TimeZoneCorrection):
        self._take = take
        self._clock = clock

    def take(self, block: ParsedBlock, deduplicator: Deduplicator, path: str, run: str) -> None:
        for record in deduplicator.new_records(block.records(path, run)):
            self._take(self._clock.correct(record))
