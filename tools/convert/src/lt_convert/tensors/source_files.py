"""Read byte ranges of a checkpoint's files, local or on a remote store.

A large run has more shards than a process may open, so the least recently used files are closed. A remote store takes tens of
milliseconds to answer, so short reads are served from cached blocks; `prefetch` fetches many blocks at once. A `Files` is for one
thread; each thread of a conversion has its own.
"""

import collections
import errno
import os
import stat
from collections.abc import Iterable
from typing import Any

from lt_shared.console import BadData
from lt_shared.files import ownership, storage

INCOMPLETE = "the checkpoint is incomplete: copy it again"
UNFINISHED = "wait until the run has saved it, or use another one; if the run has ended, the save was cut off"
DAMAGED = "copy it again, or use another one; --no-verify takes it as it is"
# The beginning of what git-lfs leaves in place of a file that was not downloaded, about 130 bytes.
LFS_POINTER, LFS_POINTER_BYTES = b"version https://git-lfs.github.com/spec/", 1024
OPEN_FILES = 64
# The end of an archive and the beginning of the next one are mostly in the same block.
REMOTE_BLOCK_BYTES = 16 << 10
CACHED_BLOCKS = 4096
BLOCKS_PER_REQUEST = 64


Extent = tuple[str, int, int]
"""A path, the first byte, and the byte after the last."""
Interval = tuple[str, int, int, int]
"""An extent that was read, and its CRC-32."""


class Reader:
    """Receives every read with its file; the one in `source_checksums` checks the bytes. Each method may raise BadData."""

    def opened(self, path: str, size_bytes: int) -> None:
        """A file is read for the first time."""

    def was_read(self, path: str, offset: int, data: memoryview | bytes) -> None:
        """These bytes were read from `offset` of a file."""

    def is_recorded(self, path: str) -> bool:
        """Return whether the file has a recorded checksum."""
        return False

    def named(self, path: str, offset: int, name: str) -> None:
        """What lies at an offset of a file is called `name` in messages."""

    def expect(self, path: str, offset: int, size_bytes: int, crc32: int, name: str) -> None:
        """The file itself says that these bytes have this CRC-32."""

    def planned(self, views: Iterable[Extent], files: "Files", other_views: Iterable[Extent] = ()) -> None:
        """These views will be read here, and `other_views` by other processes; `files` has the bytes around them at hand."""

    def finish(
        self, views: Iterable[Extent], other_views: Iterable[Extent] = (), share: tuple[int, int] = (0, 1)
    ) -> list[Interval]:
        """End the reading; the output was made from these views, and by other processes from `other_views`.

        `share` is the number of this process among how many. Returns the reads in ranges that several processes read.
        """
        return []

    def join(self, intervals: Iterable[Interval]) -> None:
        """Check the ranges that several processes have read, from what their `finish` has returned."""


class Files:
    """Reads byte ranges of files by path. Raises BadData when a file is missing, ends early, or is not what `reader` expects."""

    def __init__(self, reader: Reader | None = None) -> None:
        self.reader = reader or Reader()
        self._descriptors: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._sizes: dict[str, int] = {}
        self._blocks: collections.OrderedDict[tuple[str, int], bytes] = collections.OrderedDict()

    def size_bytes(self, path: str) -> int:
        if path not in self._sizes:
            size = storage.size_bytes(path) if storage.is_remote(path) else os.fstat(self._descriptor(path)).st_size
            self.reader.opened(path, size)
            self._sizes[path] = size
            if size <= LFS_POINTER_BYTES and not storage.is_remote(path):
                check_downloaded(path, os.pread(self._descriptor(path), len(LFS_POINTER), 0))
        return self._sizes[path]

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`."""
        if offset < 0 or length < 0 or offset + length > self.size_bytes(path):
            raise BadData(f"{path}: ends at {self.size_bytes(path)} bytes, {offset + length} are needed", INCOMPLETE)
        if storage.is_remote(path) and length <= REMOTE_BLOCK_BYTES:
            data = self._from_blocks(path, offset, length)
            self.reader.was_read(path, offset, data)
            return data
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
            self.reader.was_read(path, offset, buffer)
            return
        descriptor = self._descriptor(path)
        filled = 0
        while filled < len(buffer):
            count = os.preadv(descriptor, [buffer[filled:]], offset + filled)
            if count == 0:
                raise BadData(f"{path}: ends at {offset + filled} bytes, {offset + len(buffer)} are needed", INCOMPLETE)
            filled += count
        self.reader.was_read(path, offset, buffer)

    def prefetch(self, ranges: Iterable[tuple[str, int, int]]) -> None:
        """Fetch the blocks of short ranges (path, offset, length) of remote files at once; they will be read next."""
        numbers = dict.fromkeys(
            (path, number)
            for path, offset, length in ranges
            if storage.is_remote(path) and 0 <= offset < offset + length <= self.size_bytes(path)
            for number in range(offset // REMOTE_BLOCK_BYTES, (offset + length - 1) // REMOTE_BLOCK_BYTES + 1)
        )
        missing = sorted(key for key in numbers if key not in self._blocks)
        runs: list[list[tuple[str, int]]] = []
        for path, number in missing:
            if runs and runs[-1][-1] == (path, number - 1) and len(runs[-1]) < BLOCKS_PER_REQUEST:
                runs[-1].append((path, number))
            else:
                runs.append([(path, number)])
        requests = [(run[0][0], run[0][1] * REMOTE_BLOCK_BYTES, (run[-1][1] + 1) * REMOTE_BLOCK_BYTES) for run in runs]
        contents = storage.read_ranges([(path, begin, min(end, self.size_bytes(path))) for path, begin, end in requests])
        for run, data in zip(runs, contents, strict=True):
            for index, key in enumerate(run):
                self._blocks[key] = data[index * REMOTE_BLOCK_BYTES : (index + 1) * REMOTE_BLOCK_BYTES]
        while len(self._blocks) > CACHED_BLOCKS:
            self._blocks.popitem(last=False)

    def _from_blocks(self, path: str, offset: int, length: int) -> bytes:
        """A range of at most a block's length: it spans at most two blocks."""
        if length == 0:
            return b""
        self.prefetch([(path, offset, length)])
        first = offset // REMOTE_BLOCK_BYTES
        data = b"".join(self._blocks.get((path, number), b"") for number in (first, first + 1))
        begin = offset - first * REMOTE_BLOCK_BYTES
        return data[begin : begin + length]

    def _descriptor(self, path: str) -> int:
        if path not in self._descriptors:
            if len(self._descriptors) >= OPEN_FILES:
                os.close(self._descriptors.popitem(last=False)[1])
            self._descriptors[path] = _open(path)
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


def check_downloaded(path: str, beginning: bytes) -> None:
    """Raises BadData if a file begins as a git-lfs pointer, which stands in place of a file that was not downloaded."""
    if beginning.startswith(LFS_POINTER):
        raise BadData(
            f"{path}: a git-lfs pointer: the file itself was not downloaded",
            "run `git lfs pull` in the repository, or download it with: hf download REPOSITORY",
        )


def _open(path: str) -> int:
    """A descriptor of a regular file. The kind is checked first, because opening a pipe waits for a writer."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise BadData(f"{path}: not a regular file")
        return ownership.open_checked(path)
    except (FileNotFoundError, NotADirectoryError):
        raise BadData(f"{path}: missing", INCOMPLETE) from None
    except PermissionError:
        raise BadData(f"{path}: permission denied") from None
    except ValueError:
        raise BadData(f"{path!r}: cannot be the name of a file") from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENAMETOOLONG):
            raise
        raise BadData(f"{path}: {error.strerror}") from None
