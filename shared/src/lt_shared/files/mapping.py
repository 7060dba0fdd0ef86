"""Read files through memory maps that hold no file descriptor, and through descriptors that are opened as needed.

`mmap.mmap` keeps a copy of its descriptor (until `trackfd=False` of Python 3.13), and so does `numpy.memmap`. A blend of 5,000
datasets had 25,000 open files in every rank, and the usual limit is 1,024. A mapping needs none after it was made.
"""

import ctypes
import os
import resource
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from lt_shared.console import IoFailure
from lt_shared.files import ownership

_LEAST_OPEN = 64
_READ, _SHARED, _FAILED = 1, 1, ctypes.c_void_p(-1).value

_library = ctypes.CDLL(None, use_errno=True)
_map, _unmap = _library.mmap, _library.munmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def mapped(path: str | os.PathLike[str]) -> npt.NDArray[np.uint8]:
    """Return the bytes of a file, uint8 [size], read-only. The mapping lives as long as an array that shares its memory.

    Raises: OSError as opening and mapping the file do, BadData for a link that another user made.
    """
    descriptor = ownership.open_checked(os.fspath(path))
    try:
        size = os.fstat(descriptor).st_size
        if not size:
            return np.zeros(0, np.uint8)
        address = _map(None, size, _READ, _SHARED, descriptor, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fspath(path))
    finally:
        os.close(descriptor)
    memory = (ctypes.c_char * size).from_address(address)
    weakref.finalize(memory, _unmap, address, size)
    content = np.frombuffer(memoryview(memory), np.uint8)
    # ctypes takes any memory for writable; a write to this memory would end the process.
    content.flags.writeable = False
    return content


def mapped_npy(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """Return the array of a .npy file, as `numpy.load` with `mmap_mode="r"`. Raises ValueError for a damaged file."""
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_column_major, dtype = read_header(file)
        start = file.tell()
    if dtype.hasobject:
        raise ValueError(f"{path}: an array of Python objects")
    content = mapped(path)
    size_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(content) - start < size_bytes:
        raise ValueError(f"{path}: {len(content)} bytes, its header says {start + size_bytes}")
    values = content[start : start + size_bytes].view(dtype)
    return values.reshape(shape, order="F" if is_column_major else "C")


class OpenFiles:
    """Opens files for reading as needed, and keeps the last `limit` open. Safe to use from many threads.

    By default a quarter of the process's limit: sockets, libraries and checkpoints need the others.
    """

    def __init__(self, limit: int | None = None):
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = limit or max(_LEAST_OPEN, soft // 4)
        self._lock = threading.Lock()
        self._descriptors: OrderedDict[str, int] = OrderedDict()
        self._users: dict[int, int] = {}

    @contextmanager
    def descriptor(self, path: str, identity: tuple[int, ...]) -> Iterator[int]:
        """Lend the descriptor of a file with this `identity`. Raises OSError, and IoFailure for another file at its path."""
        with self._lock:
            number = self._descriptors.get(path)
            if number is None:
                number = self._open(path, identity)
            self._descriptors.move_to_end(path)
            self._users[number] = self._users.get(number, 0) + 1
        try:
            yield number
        finally:
            with self._lock:
                self._users[number] -= 1
                self._close_unused()

    def close(self, path: str) -> None:
        """Close a file that is not read at the moment."""
        with self._lock:
            number = self._descriptors.get(path)
            if number is not None and not self._users.get(number):
                self._forget(path)

    def _open(self, path: str, identity: tuple[int, ...]) -> int:
        number = ownership.open_checked(path)
        if identity_of(os.fstat(number)) != identity:
            os.close(number)
            raise IoFailure(f"{path}: another file than at the start of the run", "the file was changed while the run read it")
        self._descriptors[path] = number
        return number

    def _close_unused(self) -> None:
        """Close the files that were not read for longest, down to the limit."""
        excess = len(self._descriptors) - self._limit
        if excess > 0:
            unused = [path for path, number in self._descriptors.items() if not self._users.get(number)]
            for path in unused[:excess]:
                self._forget(path)

    def _forget(self, path: str) -> None:
        number = self._descriptors.pop(path)
        self._users.pop(number, None)
        os.close(number)


def identity_of(status: os.stat_result) -> tuple[int, ...]:
    """Return the numbers that change when a file is replaced or written: device, inode, bytes, time of the last write in ns."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
