"""`lt-monitor scrape`: the events of logs as JSON lines, with a state only what is new since the last time.

The state is published after the events are out, and not at all when the output broke. A pass that is killed between the two is
noticed by the next one, see `outputs`.
"""

import contextlib
import os
import stat
import time
from collections.abc import Callable, Sequence
from typing import IO, Protocol

from lt_monitor.collect import state_file
from lt_monitor.collect.offsets import LogOffset, LogOffsets, SavedLogOffset, rotated_siblings
from lt_monitor.collect.outputs import Output
from lt_monitor.collect.state_lock import locked
from lt_monitor.events import records
from lt_monitor.logs import log_files
from lt_monitor.logs.deduplication import Deduplicator
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.logs.parsed_block import ParsedBlock
from lt_shared import storage
from lt_shared.console import BadData, NoInput, UsageError, note

FOLLOW_SECONDS = 1.0


def scrape(patterns: Sequence[str], state: str | None, stream: IO[bytes], follow: bool = False) -> None:
    """Write the events of all logs to `stream`, with a file at `state` only the new ones; with `follow` until interrupted.

    Raises: NoInput when a log is missing, before anything is written; UsageError for a log without offsets when there is a state;
    BadData when the state file is not one; TryAgain when another scrape holds it; BrokenPipeError when nobody reads `stream`.
    """
    paths = log_files.expand(patterns)
    if state is None and not follow:
        output = Output(stream)
        for path in paths:
            deduplicator = Deduplicator()
            run, shown = log_files.run_name(path), log_files.printable(path)
            for block in log_files.parsed_blocks(path):
                output.take(block, deduplicator, shown, run)
        return
    option = "--state" if state is not None else "--follow"
    for path in paths:
        _require_offsets(path, option)
    output = Output(stream)
    with contextlib.ExitStack() as stack:
        offsets = LogOffsets([])
        publish: Callable[[LogOffsets], None] = _keep_in_memory
        if state is not None:
            stack.enter_context(locked(state))
            offsets = LogOffsets.read(state)
            publish = _Publisher(state)
        if not output.resume(offsets.output):
            offsets.output = output.state()
            publish(offsets)
        offsets = _pass(paths, offsets, output, publish)
        while follow:
            time.sleep(FOLLOW_SECONDS)
            with contextlib.suppress(NoInput, BadData):
                paths = log_files.expand(patterns, quiet=True)
            offsets = _pass(paths, offsets, output, publish)


def _keep_in_memory(offsets: LogOffsets) -> None:
    """Without a state file nothing outlives the process."""


class _Publisher:
    """Writes the state file whole."""

    def __init__(self, path: str):
        self._path = path

    def __call__(self, offsets: LogOffsets) -> None:
        with storage.publish(self._path, state_file.MODE) as file:
            file.write(offsets.to_bytes())


def _require_offsets(path: str, option: str) -> None:
    if path == log_files.STANDARD_INPUT:
        raise UsageError(
            f"{option} needs files: standard input cannot be read again from an offset", f"name the log, or leave {option} out"
        )
    storage.require_local(path, option)
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise UsageError(f"{option} needs files: {path} is not a regular file", f"leave {option} out to read it once")


def _pass(paths: Sequence[str], offsets: LogOffsets, output: Output, publish: Callable[[LogOffsets], None]) -> LogOffsets:
    """Read what is new in all logs; the offsets after it."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError, BadData):
            scrape_log(path, offsets, output)
    if not offsets.new:
        return offsets
    output.settle()
    settled = offsets.settled(output.state())
    publish(settled)
    return settled


class Sink(Protocol):
    """What takes the events of a log, a block at a time."""

    def take(self, block: ParsedBlock, deduplicator: Deduplicator, path: str, run: str) -> None: ...


def scrape_log(path: str, offsets: LogOffsets, output: Sink) -> None:
    """Give `output` the records of one log that are new since `offsets`, and move these on."""
    absolute = os.path.abspath(path)
    saved = offsets.saved.get(absolute)
    if saved is not None and absolute not in offsets.new and saved.is_unchanged(os.stat(path)):
        return
    with log_files.open_file(path) as log:
        log_offset = offsets.find(absolute, log.fileno())
        earlier = offsets.replaced(log_offset)
        if earlier is not None:
            _finish_rotated(path, earlier, offsets, output)
            _tell_replaced(path, earlier, output)
        _read_on(path, log_files.run_name(path), log, log_offset, output)
    offsets.new[absolute] = log_offset


def _finish_rotated(path: str, earlier: SavedLogOffset, offsets: LogOffsets, output: Sink) -> None:
    """Read the rest of the log that was at `path` before rotation."""
    for sibling in rotated_siblings(earlier.path):
        with contextlib.suppress(PermissionError, FileNotFoundError, BadData), log_files.open_file(sibling) as log:
            log_offset = earlier.resume(log.fileno(), sibling)
            if log_offset is not None:
                if sibling not in offsets.new:
                    shown = os.path.join(os.path.dirname(path), os.path.basename(sibling))
                    _read_on(shown, log_files.run_name(path), log, log_offset, output)
                    offsets.new[sibling] = log_offset
                return
    note(f"{log_files.printable(path)}: was replaced by another log, which is read from its beginning")


def _tell_replaced(path: str, earlier: SavedLogOffset, output: Sink) -> None:
    """An event before those of the new log: two logs may begin alike, and its reader must not take one for a repetition.

    The fields identify the earlier log, so two replacements differ, and a repetition of this event is recognised.
    """
    item = {
        "v": records.VERSION,
        "kind": "note",
        "note": "replaced",
        "message": "another log is there now",
        "fields": {"offset": earlier.offset, "tail_sha256": earlier.tail_sha256},
        "src": {"offset": 0},
    }
    output.take(ParsedBlock([(0, item)], []), Deduplicator(), log_files.printable(path), log_files.run_name(path))


def _read_on(path: str, run: str, log: IO[bytes], log_offset: LogOffset, output: Sink) -> None:
    parser, deduplicator = LogParser(log_offset.parser), Deduplicator(log_offset.deduplicator)
    shown = log_files.printable(path)
    log.seek(log_offset.offset)
    for block in log_files.blocks(log.read):
        if log_offset.offset == 0:
            log_files.warn_of_no_text(block, path)
        output.take(parser.parse(block, log_offset.offset), deduplicator, shown, run)
        log_offset.advance(block)
    log_offset.parser, log_offset.deduplicator = parser.to_record(), deduplicator.to_record()
    log_files.warn_of_malformed(parser, path)
