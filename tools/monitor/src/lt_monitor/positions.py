"""How far each log was read: the state of `scrape --state`.

A position is recognised by content (hashes of the log's beginning and of the bytes just before the offset); inode and path only
lead to it. So it survives a rename, a copy over the log (rsync), and truncation followed by new output, even when
the new output is longer than the old. Cost: two small reads for each log. The state keeps the begun argument dump too, so a dump
that is written while it is read is not lost.
"""

import dataclasses
import hashlib
import json
import os
from typing import Any, Self

from lt_monitor.events import Record
from lt_shared.console import BadData

STATE_VERSION = 1
HEAD_BYTES = 1024
TAIL_BYTES = 256


@dataclasses.dataclass
class Position:
    """The place in one log up to which its lines were read. `head` and `tail` are bytes before `offset`."""

    path: str
    inode: int
    offset: int = 0
    head: bytes = b""
    tail: bytes = b""
    arguments: Record | None = None
    arguments_offset: int = 0

    def advance(self, data: bytes) -> None:
        """Move past `data`, which lies at `offset`."""
        self.offset += len(data)
        self.head += data[: HEAD_BYTES - len(self.head)]
        self.tail = (self.tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]

    def to_record(self) -> Record:
        return {
            "path": self.path,
            "inode": self.inode,
            "offset": self.offset,
            "head_sha256": hashlib.sha256(self.head).hexdigest(),
            "tail_sha256": hashlib.sha256(self.tail).hexdigest(),
            "arguments": self.arguments,
            "arguments_offset": self.arguments_offset,
        }


@dataclasses.dataclass(frozen=True)
class SavedPosition:
    """A position as the state file has it."""

    path: str
    inode: int
    offset: int
    head_sha256: str
    tail_sha256: str
    arguments: Record | None
    arguments_offset: int

    def resume(self, descriptor: int, path: str) -> Position | None:
        """The same position in an open file, or None when that file does not hold what was read."""
        head = os.pread(descriptor, min(HEAD_BYTES, self.offset), 0)
        tail_bytes = min(TAIL_BYTES, self.offset)
        tail = os.pread(descriptor, tail_bytes, self.offset - tail_bytes)
        if hashlib.sha256(head).hexdigest() != self.head_sha256 or hashlib.sha256(tail).hexdigest() != self.tail_sha256:
            return None
        return Position(path, os.fstat(descriptor).st_ino, self.offset, head, tail, self.arguments, self.arguments_offset)


class Positions:
    """All positions of a state file: those read from it, and the new ones of this pass. Paths are absolute."""

    def __init__(self, saved: list[SavedPosition]):
        self.saved = saved
        self.new: dict[str, Position] = {}

    @classmethod
    def read(cls, path: str) -> Self:
        """A missing file is an empty state. Raises BadData when it holds something else."""
        try:
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return cls([])
        try:
            state: dict[str, Any] = json.loads(content)
            if state["v"] != STATE_VERSION or state["kind"] != "scrape-state":
                raise ValueError("written by another version or another program")
            return cls([SavedPosition(**log) for log in state["logs"]])
        except (ValueError, KeyError, TypeError) as error:
            raise BadData(
                f"{path}: not a state of lt-monitor scrape: {error}", "delete it to read every log from its beginning"
            ) from None

    def to_bytes(self) -> bytes:
        logs = [dataclasses.asdict(saved) for saved in self.saved if saved.path not in self.new]
        logs += [position.to_record() for position in self.new.values()]
        state = {"v": STATE_VERSION, "kind": "scrape-state", "logs": sorted(logs, key=lambda log: str(log["path"]))}
        return json.dumps(state, indent=1).encode() + b"\n"

    def find(self, path: str, descriptor: int) -> Position:
        """Where to go on in the open log `path`: at the beginning when it was never read or was replaced."""
        if path in self.new:
            return self.new[path]
        inode = os.fstat(descriptor).st_ino
        for saved in self.saved:
            if saved.inode == inode or saved.path == path or _is_rotated(path, saved.path):
                position = saved.resume(descriptor, path)
                if position is not None:
                    return position
        return Position(path, inode)

    def replaced(self, position: Position) -> SavedPosition | None:
        """What was read at this path before, when the file that is there now is another one."""
        if position.offset > 0:
            return None
        return next((saved for saved in self.saved if saved.path == position.path and saved.offset > 0), None)


def rotated_siblings(path: str) -> list[str]:
    """Files beside `path` that log rotation names after it, such as `path.1` and `path-20261121`."""
    directory = os.path.dirname(path)
    return sorted(entry.path for entry in os.scandir(directory) if _is_rotated(entry.path, path) and entry.is_file())


def _is_rotated(path: str, original: str) -> bool:
    return path.startswith((original + ".", original + "-"))
