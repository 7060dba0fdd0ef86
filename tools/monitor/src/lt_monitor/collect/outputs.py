"""Where scraped events go. Into a regular file each event goes exactly once, even if a pass is killed in the middle.

The state file has the size of the output when both last agreed. Bytes after that were written by a pass that was killed: the next
pass finds the same events again, leaves those out and completes the line that was cut off. A pipe cannot be read back: there a
kill repeats events, which (run, src.file, src.offset) identifies.
"""

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Iterator
from typing import IO

from lt_monitor.events.escaping import json_for_terminals
from lt_monitor.events.records import Record
from lt_monitor.logs.deduplication import Deduplicator
from lt_monitor.logs.parsed_block import ParsedBlock
from lt_shared.console import IoFailure, streams, warn


class Output:
    """Standard output, or another binary stream.

    Raises IoFailure when it cannot be written, BrokenPipeError when nobody reads.
    """

    def __init__(self, stream: IO[bytes]):
        self._stream = stream
        status = os.fstat(stream.fileno())
        self._is_file = stat.S_ISREG(status.st_mode)
        self._identity = [status.st_dev, status.st_ino]
        self._written: Counter[bytes] = Counter()
        self._unfinished = b""

    def state(self) -> Record | None:
        """Which file it is and its size, for the state file; None unless it is a regular file."""
        if not self._is_file:
            return None
        return {"file": self._identity, "size_bytes": os.fstat(self._stream.fileno()).st_size}

    def resume(self, saved: Record | None) -> bool:
        """Read what a killed pass wrote after the `saved` state of the output. False when that was another file."""
        if not self._is_file:
            return True
        now = self.state()
        if saved is None or now is None or saved["file"] != now["file"] or now["size_bytes"] < saved["size_bytes"]:
            return False
        if now["size_bytes"] > saved["size_bytes"]:
            self._read_written(saved["size_bytes"])
        return True

    def _read_written(self, begin: int) -> None:
        try:
            # The stream itself is usually open for writing only.
            with open(f"/proc/self/fd/{self._stream.fileno()}", "rb") as file:
                file.seek(begin)
                lines = file.read().split(b"\n")
        except OSError as error:
            warn(f"standard output cannot be read ({error.strerror}): events of a scrape that was killed may be in it twice")
            return
        self._unfinished = lines.pop()
        self._written.update(line for line in lines if line)

    def take(self, block: ParsedBlock, deduplicator: Deduplicator, path: str, run: str) -> None:
        """Write what is new in a block of the log `path` and not there yet, and pass it on at once."""
        lines = deduplicator.new_lines(block, path, run)
        together = b"".join(lines)
        if not together.isascii() or b"\x7f" in together:
            lines = [json_for_terminals(line) for line in lines]
        if self._written:
            lines = [line for line in lines if not self._is_written(line)]
        if not lines:
            return
        text = b"\n".join(lines) + b"\n"
        if self._unfinished:
            text = text[len(self._unfinished) :] if lines[0].startswith(self._unfinished) else b"\n" + text
            self._unfinished = b""
        with writing():
            streams.write_all(self._stream, text)
            self._stream.flush()

    def _is_written(self, line: bytes) -> bool:
        if self._written[line] == 0:
            return False
        self._written[line] -= 1
        return True

    def settle(self) -> None:
        """Sync the events to disk before the state is saved; only files can be synced."""
        if self._is_file:
            with writing():
                os.fsync(self._stream.fileno())


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Name standard output in its errors: the state file is open at the same time."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise IoFailure(f"standard output: {error.strerror or error}") from None
