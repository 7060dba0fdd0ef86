"""Store how far each log was read: the state of `scrape --state`.

A log is recognised by content: hashes of its beginning and of the bytes just before the offset. Inode and path only narrow the
search. So an offset survives a rename and a copy over the log (rsync), and a truncation is noticed even if the new output is
longer than the old. A log whose inode, size and modification time are unchanged is not opened: ten thousand such logs take 0.2 s.
The state includes the state of the parser and the deduplicator, so the result does not depend on when a log is read.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Self

from lt_monitor.collect import state_file
from lt_monitor.collect.generations import is_rotated, originals
from lt_monitor.events.records import Record
from lt_monitor.logs import rank_series

HEAD_BYTES = 1024
TAIL_BYTES = 256


@dataclasses.dataclass
class LogOffset:
    """The reading position in one log. `head` and `tail` are the first and the last bytes before `offset`.

    `size_bytes` and `mtime_ns` were taken when the log was opened.
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
    run: str | None = None

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
            run=self.run,
        )


@dataclasses.dataclass(frozen=True)
class SavedLogOffset:
    """A LogOffset in the state file. The fields are the JSON keys; `merger` is the state of the deduplicator.

    `run` is the name of the run that the log's events had, None if it had none.
    """

    path: str
    inode: int
    size_bytes: int
    mtime_ns: int
    offset: int
    head_sha256: str
    tail_sha256: str
    parser: Record | None
    merger: Record | None
    run: str | None = None

    def is_unchanged(self, status: os.stat_result) -> bool:
        return (self.inode, self.size_bytes, self.mtime_ns) == (status.st_ino, status.st_size, status.st_mtime_ns)

    def resume(self, log: IO[bytes], path: str) -> LogOffset | None:
        """Return the offset in an open log, or None if the log's content before the offset has changed."""
        log.seek(0)
        head = log.read(min(HEAD_BYTES, self.offset))
        if hashlib.sha256(head).hexdigest() != self.head_sha256:
            return None
        tail_bytes = min(TAIL_BYTES, self.offset)
        log.seek(self.offset - tail_bytes)
        tail = log.read(tail_bytes)
        if hashlib.sha256(tail).hexdigest() != self.tail_sha256:
            return None
        log_offset = LogOffset.at_start(path, os.fstat(log.fileno()))
        return dataclasses.replace(
            log_offset, offset=self.offset, head=head, tail=tail, parser=self.parser, deduplicator=self.merger, run=self.run
        )


class LogOffsets:
    """The offsets of a state file by absolute path, and the state of the output at these offsets.

    `saved` holds the offsets before this pass, `new` the offsets after it.
    """

    def __init__(self, saved: list[SavedLogOffset], output: Record | None = None):
        self.saved = {log_offset.path: log_offset for log_offset in saved}
        self.output = output
        self.new: dict[str, LogOffset] = {}
        self._by_inode: dict[int, list[SavedLogOffset]] = {}
        self._rotated: dict[str, list[SavedLogOffset]] = {}
        for log_offset in saved:
            self._by_inode.setdefault(log_offset.inode, []).append(log_offset)
            if is_rotated(log_offset.path):
                for original in originals(log_offset.path):
                    self._rotated.setdefault(original, []).append(log_offset)

    @classmethod
    def read(cls, path: str) -> Self:
        """Read a state file; a missing file is an empty state. Raises the errors of `state_file.read`."""
        state = state_file.read(path, "scrape")
        if state is None:
            return cls([])
        return cls([SavedLogOffset(**log) for log in state["logs"]], state["output"])

    def settled(self, output: Record | None) -> "LogOffsets":
        """Return the state after this pass, with the output's state after this pass's events."""
        saved = {**self.saved, **{path: log_offset.saved() for path, log_offset in self.new.items()}}
        return LogOffsets(list(saved.values()), output)

    def to_bytes(self) -> bytes:
        """Encode `saved` as a state file. `new` is not included; see `settled`."""
        logs = [vars(log_offset) for _, log_offset in sorted(self.saved.items())]
        return state_file.content("scrape-state", {"output": self.output, "logs": logs})

    def run_names(self, paths: Sequence[str]) -> dict[str, str]:
        """Return the name of each log's run, which a log keeps once it had events. An unchanged log is not opened."""
        settled_names, idle = {}, set()
        for path in paths:
            saved = self.saved.get(os.path.abspath(path))
            if saved is not None and saved.run is not None:
                settled_names[path] = saved.run
            elif saved is not None and os.path.isfile(path) and saved.is_unchanged(os.stat(path)):
                idle.add(path)
        return rank_series.run_names(paths, settled_names, idle)

    def find(self, path: str, log: IO[bytes]) -> LogOffset:
        """Return where to continue in the open log `path`: at the beginning if it was never read or was replaced."""
        if path in self.new:
            return self.new[path]
        status = os.fstat(log.fileno())
        # Offset 0 has no content before it and would match every log.
        candidates = {id(saved): saved for saved in self._candidates(path, status.st_ino) if saved.offset}
        for saved in sorted(candidates.values(), key=lambda saved: -saved.offset):
            log_offset = saved.resume(log, path)
            if log_offset is not None:
                return log_offset
        return LogOffset.at_start(path, status)

    def _candidates(self, path: str, inode: int) -> Iterator[SavedLogOffset]:
        yield from self._by_inode.get(inode, ())
        names = [path, *originals(path)]
        yield from (self.saved[name] for name in names if name in self.saved)
        if is_rotated(path):
            # A log that was read as `path.1` may be `path.2.gz` by now.
            for name in names[1:]:
                yield from self.rotated(name)

    def rotated(self, path: str) -> Iterable[SavedLogOffset]:
        """Return the saved offsets of files that were rotated from the log `path`."""
        return self._rotated.get(path, ()) if path in self.saved else ()

    def replaced(self, path: str, log_offset: LogOffset) -> SavedLogOffset | None:
        """Return the earlier offset at `path` if the open log of `log_offset` may be a different log, else None."""
        saved = self.saved.get(path)
        if saved is None or path in self.new or (log_offset.offset and log_offset.inode == saved.inode):
            return None
        return saved
