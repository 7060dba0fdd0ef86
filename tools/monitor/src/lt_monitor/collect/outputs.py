"""Write scraped events. A regular file gets each event exactly once, even if a pass is killed in the middle.

The state file stores the size of the output when both last agreed. A killed pass wrote the bytes after that size. The next pass
produces the same events again, skips those that are already in the file, and completes the line that was cut off. A pipe cannot
be read back, so a kill repeats events there; (run, src.file, src.offset) identifies the repetitions.
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
        """Return the identity and size of the output for the state file, or None if it is not a regular file."""
        if not self._is_file:
            return None
        return {"file": self._identity, "size_bytes": os.fstat(self._stream.fileno()).st_size}

    def resume(self, saved: Record | None) -> bool:
        """Read the events that a killed pass wrote after the `saved` state. Return False if `saved` is about another file."""
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
        """Write and flush the events of a block of the log `path` that are new and not yet in the output."""
        lines = deduplicator.new_lines(block, path, run)
        # The empty line ends the last line; adding the newline to the text would copy the text.
        text = b"\n".join([*lines, b""])
        if not text.isascii() or b"\x7f" in text:
            lines = [json_for_terminals(line) for line in lines]
            text = b"\n".join([*lines, b""])
        if self._written:
            lines = [line for line in lines if not self._is_written(line)]
            text = b"\n".join([*lines, b""])
        if not lines:
            return
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
    """Name standard output in write errors, because the state file is open at the same time."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise IoFailure(f"standard output: {error.strerror or error}") from None
