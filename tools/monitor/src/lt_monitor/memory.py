"""The state file of a command that runs again and again: what it knows of each run, and how far it read each log.

Both are published together, in one step: a pass that is killed leaves the state as it was, and the next one takes the same
records again. So each event counts once in the state, which a pipeline of two commands with two states cannot promise by
itself; there, a record that comes again is recognised (`run_state.LogState`).
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import orjson

from lt_monitor import log_files
from lt_monitor.events import Record
from lt_monitor.findings import Finding
from lt_monitor.log_parser import Block
from lt_monitor.merging import Merger
from lt_monitor.positions import Positions, SavedPosition
from lt_monitor.run_state import RunState
from lt_monitor.scrape import scrape_log
from lt_shared import storage
from lt_shared.console import BadData, UsageError

STATE_VERSION = 2


class Memory:
    """What a pass knows: `runs` by name, `known` findings with the time each was first seen, and `undelivered` ones.

    Without a state file all of it is empty at first and forgotten at the end.
    """

    def __init__(self, command: str, patterns: Sequence[str]):
        self.kind = f"{command}-state"
        self.patterns = patterns
        self.runs: dict[str, RunState] = {}
        self.known: dict[str, float] = {}
        self.undelivered: list[Record] = []
        self._positions: Positions | None = None
        self._file: IO[bytes] | None = None

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: str | None, command: str, patterns: Sequence[str]) -> "Iterator[Memory]":
        """The memory in the file `path`, locked until the block ends; `save` in the block makes what it then holds the new state.

        Raises: BadData when the file holds something else, TryAgain when another pass holds it, CannotCreate and IoFailure when
        it cannot be written, UsageError for a remote path.
        """
        memory = cls(command, patterns)
        if path is None:
            yield memory
            return
        if storage.is_remote(path):
            raise UsageError(f"{path}: a state file needs a local or mounted path")
        with storage.publish(path) as memory._file:
            memory._positions = Positions([])
            memory._read(path)
            yield memory

    def feed(self, take: Callable[[Record], object]) -> None:
        """Call `take` with each record of the logs, with a state only with those that are new.

        Standard input, pipes and remote logs are taken as they come. Raises NoInput when a log is missing.
        """
        for path in log_files.expand(self.patterns):
            if self._positions is None or path == log_files.STANDARD_INPUT or not os.path.isfile(path):
                for block in log_files.event_blocks(path):
                    for record in block:
                        take(record)
            else:
                scrape_log(path, self._positions, _Taker(take))

    def save(self) -> None:
        """Write the state; it is published when the block of `open` ends."""
        if self._file is not None and self._positions is not None:
            state = {
                "v": STATE_VERSION,
                "kind": self.kind,
                "runs": list(self.runs.values()),
                "known": self.known,
                "undelivered": self.undelivered,
                "logs": [vars(position) for position in self._positions.settled(None).saved.values()],
            }
            self._file.write(orjson.dumps(state, option=orjson.OPT_APPEND_NEWLINE))

    def _read(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return
        if not content:
            return
        try:
            state: dict[str, Any] = orjson.loads(content)
            if state["v"] != STATE_VERSION or state["kind"] != self.kind:
                raise ValueError("written by another version or another command")
            self.runs = {run["run"]: RunState.from_record(run) for run in state["runs"]}
            self.known = {str(key): float(time) for key, time in state["known"].items()}
            undelivered = [(Finding(**one["finding"]), list(one["channels"])) for one in state["undelivered"]]
            self.undelivered = [{"finding": vars(finding), "channels": channels} for finding, channels in undelivered]
            self._positions = Positions([SavedPosition(**log) for log in state["logs"]])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadData(f"{path}: not a state of lt-monitor {self.kind.removesuffix('-state')}: {error}", "delete it") from None


class _Taker:
    """Takes the records of a log one by one."""

    def __init__(self, take: Callable[[Record], object]):
        self._take = take

    def take(self, block: Block, merger: Merger, path: str, run: str) -> None:
        for record in merger.news(block.records(path, run)):
            self._take(record)
