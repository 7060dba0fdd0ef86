"""Ranges of a checkpoint's files, local or on a remote store.

A large run has more shards than a process may open, so the files that were not used for the longest time are closed. One object
serves one thread; each worker of a conversion has its own.
"""

import collections
import os
from typing import Any

from lt_shared import storage
from lt_shared.console import BadData

INCOMPLETE = "the checkpoint is incomplete: copy it again"
OPEN_FILES = 64


class Files:
    """Reads byte ranges of files by path. Raises BadData when a file is missing or ends early."""

    def __init__(self) -> None:
        self._descriptors: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._sizes: dict[str, int] = {}

    def size_bytes(self, path: str) -> int:
        if path not in self._sizes:
            self._sizes[path] = storage.size_bytes(path) if storage.is_remote(path) else os.fstat(self._descriptor(path)).st_size
        return self._sizes[path]

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`."""
        if offset < 0 or length < 0 or offset + length > self.size_bytes(path):
            raise BadData(f"{path}: ends at {self.size_bytes(path)} bytes, {offset + length} are needed", INCOMPLETE)
        buffer = bytearray(length)
        self.read_into(path, offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from `offset`."""
        if storage.is_remote(path):
            data = storage.read_range(path, offset, offset + len(buffer))
            if len(data) != len(buffer):
                raise BadData(f"{path}: ends at {offset + len(data)} bytes, {offset + len(buffer)} are needed", INCOMPLETE)
            buffer[:] = data
            return
        descriptor = self._descriptor(path)
        filled = 0
        while filled < len(buffer):
            count = os.preadv(descriptor, [buffer[filled:]], offset + filled)
            if count == 0:
                raise BadData(f"{path}: ends at {offset + filled} bytes, {offset + len(buffer)} are needed", INCOMPLETE)
            filled += count

    def _descriptor(self, path: str) -> int:
        if path not in self._descriptors:
            if len(self._descriptors) >= OPEN_FILES:
                os.close(self._descriptors.popitem(last=False)[1])
            try:
                self._descriptors[path] = os.open(path, os.O_RDONLY)
            except (FileNotFoundError, NotADirectoryError):
                raise BadData(f"{path}: missing", INCOMPLETE) from None
            except PermissionError:
                raise BadData(f"{path}: permission denied") from None
        self._descriptors.move_to_end(path)
        return self._descriptors[path]

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def __enter__(self) -> "Files":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
