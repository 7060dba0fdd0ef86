"""`lt-monitor scrape`: the events of logs as JSON lines, with a state only what is new since the last time.

The state is published after the events are out, and not at all when the output broke. Exactly once is impossible when a process
can be killed between the two, so this is at least once: after a kill the next run repeats what the killed one printed.
"""

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from typing import IO

from lt_monitor import log_files
from lt_monitor.events import Record
from lt_monitor.log_parser import LogParser
from lt_monitor.positions import Position, Positions, SavedPosition, rotated_siblings
from lt_shared import storage
from lt_shared.console import IoFailure, UsageError, note

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def scrape(patterns: Sequence[str], state: str | None, output: IO[bytes]) -> None:
    """Write the events of all logs to `output`, with a file at `state` only the new ones.

    Raises: NoInput when a log is missing, before anything is written; UsageError for a log without offsets when there is a state;
    BadData when the state file is not one; TryAgain when another scrape holds it; BrokenPipeError when nobody reads `output`.
    """
    paths = log_files.expand(patterns)
    if state is None:
        for path in paths:
            for records in log_files.event_blocks(path):
                _write(records, output)
        return
    for path in paths:
        _require_offsets(path)
    with storage.publish(state) as file:
        positions = Positions.read(state)
        for path in paths:
            _scrape_log(path, positions, output)
        _settle(output)
        file.write(positions.to_bytes())


def _require_offsets(path: str) -> None:
    if path == log_files.STANDARD_INPUT:
        raise UsageError("--state needs files: standard input cannot be read again from an offset")
    storage.require_local(path, "--state")
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise UsageError(f"--state needs files: {path} is not a regular file")


def _scrape_log(path: str, positions: Positions, output: IO[bytes]) -> None:
    absolute = os.path.abspath(path)
    with storage.open_read(path) as log:
        position = positions.find(absolute, log.fileno())
        earlier = positions.replaced(position)
        if earlier is not None:
            _finish_rotated(path, earlier, positions, output)
        _read_on(path, log_files.run_name(path), log, position, output)
    positions.new[absolute] = position


def _finish_rotated(path: str, earlier: SavedPosition, positions: Positions, output: IO[bytes]) -> None:
    """Read the rest of the log that was at `path` before rotation."""
    for sibling in rotated_siblings(earlier.path):
        with contextlib.suppress(PermissionError, FileNotFoundError), open(sibling, "rb") as log:
            position = earlier.resume(log.fileno(), sibling)
            if position is not None:
                if sibling not in positions.new:
                    shown = os.path.join(os.path.dirname(path), os.path.basename(sibling))
                    _read_on(shown, log_files.run_name(path), log, position, output)
                    positions.new[sibling] = position
                return
    note(f"{path}: another log is there now, read from its beginning")


def _read_on(path: str, run: str, log: IO[bytes], position: Position, output: IO[bytes]) -> None:
    parser = LogParser(position.arguments, position.arguments_offset)
    log.seek(position.offset)
    for lines in log_files.line_blocks(log.read, position.offset):
        _write(log_files.parse_lines(parser, lines, path, run), output)
        position.advance(b"".join(line for _, line in lines))
    position.arguments, position.arguments_offset = parser.arguments, parser.arguments_offset
    log_files.warn_of_malformed(parser, path)


def _write(records: Sequence[Record], output: IO[bytes]) -> None:
    if records:
        with _writing():
            output.write("".join(f"{_ENCODER.encode(record)}\n" for record in records).encode(errors="replace"))
            output.flush()


def _settle(output: IO[bytes]) -> None:
    """Make the events durable before the state says that they are out; only files can be synced."""
    with _writing():
        if stat.S_ISREG(os.fstat(output.fileno()).st_mode):
            os.fsync(output.fileno())


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Name the output in its errors: the state file is open at the same time."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise IoFailure(f"standard output: {error.strerror or error}") from None
