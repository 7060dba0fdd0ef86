"""How far each log was read: the state of `scrape --state`.

A log is recognised by content: hashes of its beginning and of the bytes just before the offset. Inode and path only narrow the
search. So an offset survives a rename and a copy over the log (rsync), and a truncation is noticed even when the new output is
longer than the old. A log whose inode, size and modification time are unchanged is not opened: ten thousand of them take 0.2 s.
The state keeps what the parser and the deduplicator carry from line to line, so the result does not depend on when a log is read.
"""

import dataclasses
import hashlib
import os
from typing import Self

from lt_monitor.collect import state_file
from lt_monitor.events.records import Record

HEAD_BYTES = 1024
TAIL_BYTES = 256


@dataclasses.dataclass
class LogOffset:
    """How far one log was read. `head` and `tail` are the first and last bytes before `offset`.

    `size_bytes` and `mtime_ns` are the log's when it was opened.
    """

    path: str
    inode: int
    size_bytes: int
    mtime_ns: int
    offset: int = 0
    head: bytes = b""
    tail: bytes = b""
    parser: Record | None = None
    deduplicator: Record | None = None

    @classmethod
    def at_start(cls, path: str, status: os.stat_result) -> Self:
        return cls(path, status.st_ino, status.st_size, status.st_mtime_ns)

    def advance(self, data: bytes) -> None:
        """Move past `data`, which lies at `offset`."""
        self.offset += len(data)
        self.head += data[: HEAD_BYTES - len(self.head)]
        self.tail = (self.tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]

    def saved(self) -> "SavedLogOffset":
        return SavedLogOffset(
            path=self.path,
            inode=self.inode,
            size_bytes=self.size_bytes,
            mtime_ns=self.mtime_ns,
            offset=self.offset,
            head_sha256=hashlib.sha256(self.head).hexdigest(),
            tail_sha256=hashlib.sha256(self.tail).hexdigest(),
            parser=self.parser,
            merger=self.deduplicator,
        )


@dataclasses.dataclass(frozen=True)
class SavedLogOffset:
    """A LogOffset as it is stored: the fields are the keys in the state file, `merger` is the state of the deduplicator."""

    path: str
    inode: int
    size_bytes: int
    mtime_ns: int
    offset: int
    head_sha256: str
    tail_sha256: str
    parser: Record | None
    merger: Record | None

    def is_unchanged(self, status: os.stat_result) -> bool:
        return (self.inode, self.size_bytes, self.mtime_ns) == (status.st_ino, status.st_size, status.st_mtime_ns)

    def resume(self, descriptor: int, path: str) -> LogOffset | None:
        """The offset in an open file, or None when that file does not begin with what was read."""
        status = os.fstat(descriptor)
        head = os.pread(descriptor, min(HEAD_BYTES, self.offset), 0)
        tail_bytes = min(TAIL_BYTES, self.offset)
        tail = os.pread(descriptor, tail_bytes, self.offset - tail_bytes)
        if hashlib.sha256(head).hexdigest() != self.head_sha256 or hashlib.sha256(tail).hexdigest() != self.tail_sha256:
            return None
        log_offset = LogOffset.at_start(path, status)
        return dataclasses.replace(
            log_offset, offset=self.offset, head=head, tail=tail, parser=self.parser, deduplicator=self.merger
        )


class LogOffsets:
    """All offsets of a state file by absolute path, and the state of the output that they agree with.

    `saved` is where logs were when this pass began, `new` where it left them.
    """

    def __init__(self, saved: list[SavedLogOffset], output: Record | None = None):
        self.saved = {log_offset.path: log_offset for log_offset in saved}
        self.output = output
        self.new: dict[str, LogOffset] = {}
        self._by_inode = {log_offset.inode: log_offset for log_offset in saved}

    @classmethod
    def read(cls, path: str) -> Self:
        """A missing file is an empty state. Raises what `state_file.read` does."""
        state = state_file.read(path, "scrape")
        if state is None:
            return cls([])
        return cls([SavedLogOffset(**log) for log in state["logs"]], state["output"])

    def settled(self, output: Record | None) -> "LogOffsets":
        """The state after this pass, whose events end at `output`."""
        saved = {**self.saved, **{path: log_offset.saved() for path, log_offset in self.new.items()}}
        return LogOffsets(list(saved.values()), output)

    def to_bytes(self) -> bytes:
        """As a state file; without what `new` holds (see `settled`)."""
        logs = [vars(log_offset) for _, log_offset in sorted(self.saved.items())]
        return state_file.content("scrape-state", {"output": self.output, "logs": logs})

    def find(self, path: str, descriptor: int) -> LogOffset:
        """Where to continue in the open log `path`: at the beginning when it was never read or was replaced."""
        if path in self.new:
            return self.new[path]
        status = os.fstat(descriptor)
        candidates = [self._by_inode.get(status.st_ino), self.saved.get(path)]
        candidates += [self.saved.get(original) for original in _originals(path)]
        for saved in candidates:
            log_offset = saved.resume(descriptor, path) if saved is not None else None
            if log_offset is not None:
                return log_offset
        return LogOffset.at_start(path, status)

    def replaced(self, log_offset: LogOffset) -> SavedLogOffset | None:
        """How far the earlier file at this path was read, when another file is there now."""
        saved = self.saved.get(log_offset.path)
        return saved if log_offset.offset == 0 and saved is not None and saved.offset > 0 else None


def rotated_siblings(path: str) -> list[str]:
    """Files beside `path` that log rotation names after it, such as `path.1` and `path-20261121`."""
    beginnings = (path + ".", path + "-")
    directory = os.path.dirname(path)
    return sorted(entry.path for entry in os.scandir(directory) if entry.path.startswith(beginnings) and entry.is_file())


def _originals(path: str) -> list[str]:
    """The paths that log rotation may have renamed to `path`."""
    first = len(path) - len(os.path.basename(path)) + 1
    return [path[:end] for end in range(first, len(path)) if path[end] in ".-"]
