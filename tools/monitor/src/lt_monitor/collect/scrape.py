"""`lt-monitor scrape`: print the events of logs as JSON lines; with a state file, only events that are new since the last pass.

The state is published after the events are written, and not at all if the output fails. If a pass is killed between the two, the
next pass notices; see `outputs`.
"""

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Protocol

from lt_monitor.collect import generations, state_file
from lt_monitor.collect.generations import Generation
from lt_monitor.collect.offsets import LogOffset, LogOffsets, SavedLogOffset
from lt_monitor.collect.outputs import Output
from lt_monitor.events import records
from lt_monitor.logs import compressed_logs, line_blocks, log_files, rank_series
from lt_monitor.logs.deduplication import Deduplicator
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.logs.parsed_block import ParsedBlock
from lt_shared.console import BadData, NoInput, UsageError, note, warn
from lt_shared.files import resumable_files, storage

FOLLOW_SECONDS = 1.0


def scrape(patterns: Sequence[str], state: str | None, stream: IO[bytes], follow: bool = False) -> None:
    """Write the events of every log to `stream`: only new events if `state` names a file, and until interrupted with `follow`.

    Raises: NoInput when a log is missing, before anything is written; UsageError for a log without offsets if there is a state;
    BadData for an invalid state file; TryAgain when another scrape holds it; BrokenPipeError when nobody reads `stream`.
    """
    paths = log_files.expand(patterns)
    if state is None and not follow:
        log_files.require_text(paths)
        output = Output(stream)
        for path, run in rank_series.run_names(paths).items():
            deduplicator = Deduplicator()
            shown = log_files.printable(path)
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
            stack.enter_context(_locked(state))
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
    """Publish nothing: without a state file, the offsets live in this process only."""


class _Publisher:
    """Replaces the state file atomically."""

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
    """Read the new records of every log; return the offsets after this pass."""
    for path, run in offsets.run_names(paths).items():
        with contextlib.suppress(FileNotFoundError, BadData):
            scrape_log(path, run, offsets, output)
    if not offsets.new:
        return offsets
    output.settle()
    settled = offsets.settled(output.state())
    publish(settled)
    return settled


class Sink(Protocol):
    """A receiver of a log's events, one block at a time."""

    def take(self, block: ParsedBlock, deduplicator: Deduplicator, path: str, run: str) -> None: ...


def scrape_log(path: str, run: str, offsets: LogOffsets, output: Sink) -> None:
    """Pass the records of a log of `run` since its offset to `output`, and store the new offset in `offsets.new`."""
    absolute = os.path.abspath(path)
    for rotated in offsets.rotated(absolute):
        _read_appended(path, run, rotated, offsets, output)
    saved = offsets.saved.get(absolute)
    if saved is not None and absolute not in offsets.new and saved.is_unchanged(os.stat(path)):
        return
    with log_files.open_log(path) as log:
        log_offset = offsets.find(absolute, log)
        earlier = offsets.replaced(absolute, log_offset)
        if earlier is not None:
            with generations.opened(absolute, log) as rotated_logs:
                if _is_renamed(earlier, rotated_logs):
                    # The new log may begin with the same lines as the earlier log, so `find` may have matched it by content.
                    log_offset = LogOffset.at_start(absolute, os.fstat(log.fileno()))
                if log_offset.offset == 0:
                    _read_generations(path, run, earlier, rotated_logs, offsets, output)
                    if earlier.offset:
                        _tell_replaced(path, run, earlier, output)
        _read_on(path, run, log, log_offset, output)
    offsets.new[absolute] = log_offset


def _read_appended(path: str, run: str, rotated: SavedLogOffset, offsets: LogOffsets, output: Sink) -> None:
    """Read lines appended to a rotated file, because a program writes there until it reopens the log."""
    if rotated.path in offsets.new:
        return
    with contextlib.suppress(*generations.UNREADABLE):
        status = os.stat(rotated.path)
        if rotated.is_unchanged(status) or status.st_ino != rotated.inode:
            return
        with log_files.open_log(rotated.path) as log:
            log_offset = offsets.find(rotated.path, log)
            if log_offset.offset >= rotated.offset:
                _read_on(_shown(path, rotated.path), run, log, log_offset, output)
                offsets.new[rotated.path] = log_offset


def _read_generations(
    path: str, run: str, earlier: SavedLogOffset, rotated_logs: Sequence[Generation], offsets: LogOffsets, output: Sink
) -> None:
    """Read the rest of the earlier log at `path`, and every log that was at `path` between it and the current one."""
    first = _continuation(earlier, rotated_logs)
    unread = _unread(earlier, rotated_logs, first)
    if first is None and earlier.offset and not generations.is_rotated(path):
        note(
            f"{log_files.printable(path)}: was replaced by another log, which is read from its beginning; what the one before "
            f"got after its byte {earlier.offset} is in no rotated file beside it and is not read"
        )
    for one in unread:
        if one.path in offsets.new:
            continue
        shown = _shown(path, one.path)
        try:
            log_offset = offsets.find(one.path, one.log)
            if one is first and log_offset.offset < earlier.offset:
                log_offset = earlier.resume(one.log, one.path) or log_offset
            before = offsets.saved.get(one.path)
            if log_offset.offset == 0 and before is not None and before.offset:
                _tell_replaced(shown, run, before, output)
            _read_on(shown, run, one.log, log_offset, output)
            problem = compressed_logs.problem_of(one.log)
            if problem is not None:
                # Its job or its compressor may still write it: the next pass reads on.
                warn(f"{log_files.printable(one.path)}: {problem}")
            elif one.is_compressed and log_offset.offset < one.log.tell():
                _read_on(shown, run, one.log, log_offset, output, final=True)
        except generations.UNREADABLE as error:
            warn(f"{log_files.printable(one.path)}: cannot be read to its end: {error}")
            continue
        offsets.new[one.path] = log_offset


def _unread(earlier: SavedLogOffset, rotated_logs: Sequence[Generation], first: Generation | None) -> list[Generation]:
    """Return `first` and the generations rotated after it; without `first`, the generations written since `earlier`.

    If `earlier` has offset 0, no content was read and only the inode identifies the log. A later log may have reused the inode,
    so modification times decide as well.
    """
    begin = rotated_logs.index(first) if first is not None else len(rotated_logs)
    is_sure = first is not None and earlier.offset > 0
    return [
        one
        for index, one in enumerate(rotated_logs)
        if one is first
        or (
            _is_generation(one, first)
            and one.status.st_mtime_ns >= earlier.mtime_ns + (index < begin)
            and (index > begin or not is_sure)
        )
    ]


def _is_generation(one: Generation, first: Generation | None) -> bool:
    """Whether the name alone identifies a generation of the log: it is numbered, or in the series of `first`."""
    return one.is_numbered or (first is not None and one.series is not None and one.series == first.series)


def _continuation(earlier: SavedLogOffset, rotated_logs: Sequence[Generation]) -> Generation | None:
    """Return the generation that continues the earlier log: the one with its inode, else the newest with its content."""
    with_content = None
    for one in reversed(rotated_logs):
        with contextlib.suppress(*generations.UNREADABLE):
            has_inode = _has_inode(one, earlier)
            if (has_inode or earlier.offset) and earlier.resume(one.log, one.path) is not None:
                if has_inode:
                    return one
                with_content = with_content or one
    return with_content


def _is_renamed(earlier: SavedLogOffset, rotated_logs: Sequence[Generation]) -> bool:
    logs = [one for one in rotated_logs if one.is_numbered or one.series is not None]
    first = _continuation(earlier, [one for one in logs if _has_inode(one, earlier)])
    return first is not None


def _has_inode(one: Generation, earlier: SavedLogOffset) -> bool:
    return not one.is_compressed and one.status.st_ino == earlier.inode


def _shown(path: str, rotated_path: str) -> str:
    """Return the path of a rotated file in the form that the command line uses for its log."""
    directory = os.path.dirname(os.path.abspath(path))
    return os.path.join(os.path.dirname(path), os.path.relpath(rotated_path, directory))


def _tell_replaced(path: str, run: str, earlier: SavedLogOffset, output: Sink) -> None:
    """Write a `replaced` note before the new log's events.

    Two logs may begin with the same lines, and a reader of the events must not mistake the new ones for repetitions. The fields
    identify the earlier log, so two replacements differ and a repetition of this note is recognised.
    """
    item = {
        "v": records.VERSION,
        "kind": "note",
        "note": "replaced",
        "message": "another log is there now",
        "fields": {"offset": earlier.offset, "tail_sha256": earlier.tail_sha256},
        "src": {"offset": 0},
    }
    output.take(ParsedBlock([(0, item)], []), Deduplicator(), log_files.printable(path), run)


def _read_on(path: str, run: str, log: IO[bytes], log_offset: LogOffset, output: Sink, final: bool = False) -> None:
    parser, deduplicator = LogParser(log_offset.parser), Deduplicator(log_offset.deduplicator)
    shown = log_files.printable(path)
    log.seek(log_offset.offset)
    for block in line_blocks.blocks(line_blocks.whole_lines(log), final):
        if log_offset.offset == 0:
            log_files.warn_of_no_text(block, path)
        parsed = parser.parse(block, log_offset.offset)
        if parsed.items or parsed.rows:
            log_offset.run = run
        output.take(parsed, deduplicator, shown, run)
        log_offset.advance(block)
    log_offset.parser, log_offset.deduplicator = parser.to_record(), deduplicator.to_record()
    log_files.warn_of_malformed(parser, path)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the lock on the state at `path`.

    Raises TryAgain when another process holds it; CannotCreate if the directory is missing or the lock file is another user's.
    """
    # The lock is on a separate file, because publishing the state replaces the state file. The kernel releases the lock when its
    # process ends, however it ends.
    lock_path = os.path.join(os.path.dirname(path) or ".", f".{os.path.basename(path)}.lock")
    with resumable_files.locked(lock_path, path):
        yield
