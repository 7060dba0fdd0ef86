"""A remote `.bin` for the loader: its first `cached_bytes` are read in cached blocks, the bytes behind them by exact ranges.

The samples of Megatron's order are shuffled, and so are the documents in them: a sample of 4096 tokens of documents of 500 reads
at nine places of 1 kB. If the cache has room for a block, the whole block is used sooner or later, and the dataset comes over the
network once. Without room, a block is deleted before its next document is due, and 1 MiB is fetched for 1 kB: at 64,000 tokens/s
that would be 147 MB/s for each rank, compared with 0.13 MB/s for exact ranges. So bytes without room are not cached at all.

The ranges of a sample are asked for at the same time, over the connections of the process, and the loader reads several samples
ahead: with 32 connections and 50 ms a request, 640 ranges a second at most. At 64,000 tokens/s the loader is as fast as on local
files, also with an empty cache, and with a separate range for each document: 6,500 requests in 30 s, for 38% of a core
(`nox -s bench -- train-data --only store`, which answers after 50 ms; 2 idle cores, 2026-11-27).
"""

import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lt_shared.data.indexed_dataset import RemoteBin
from lt_shared.files import object_versions
from lt_train.data.block_cache import BLOCKS, BlockCache

BLOCK_BYTES = 1 << 20

Piece = tuple[memoryview, int]


class CachedBin:
    """`remote`, of whose first `cached_bytes` the directory `folder` keeps blocks, as far as `cache` allows."""

    def __init__(self, remote: RemoteBin, cache: BlockCache, folder: Path, cached_bytes: int):
        self._remote = remote
        self._cache = cache
        self._folder = folder / BLOCKS
        self._cached_bytes = cached_bytes

    def read_into(self, pieces: Sequence[Piece]) -> None:
        """As `TokenFile.read_into`. Raises as `RemoteBin.read`."""
        missing = [part for piece in pieces for part in self._parts(*piece) if not self._is_read_from_disk(*part)]
        if len(missing) < 2:
            for part in missing:
                self._read_from_store(*part)
            return
        for future in [_connections().submit(self._read_from_store, *part) for part in missing]:
            future.result()

    def _parts(self, target: memoryview, offset: int) -> list[Piece]:
        """A piece, cut where blocks end."""
        parts = []
        while target:
            size = min(len(target), BLOCK_BYTES - offset % BLOCK_BYTES) if offset < self._cached_bytes else len(target)
            parts.append((target[:size], offset))
            target, offset = target[size:], offset + size
        return parts

    def _is_read_from_disk(self, target: memoryview, offset: int) -> bool:
        if offset >= self._cached_bytes:
            return False
        path, begin, end = self._block(offset)
        try:
            descriptor = self._cache.found(path, end - begin)
            return descriptor is not None and _is_filled(target, descriptor, offset - begin)
        except OSError:
            # A disk that fails is no reason to end: the store has the bytes.
            return False

    def _read_from_store(self, target: memoryview, offset: int) -> None:
        if offset < self._cached_bytes:
            path, begin, end = self._block(offset)
            descriptor = self._cache.fetched(path, end - begin, lambda: self._remote.read(begin, end))
            if descriptor is not None and _is_filled(target, descriptor, offset - begin):
                return
        target[:] = self._remote.read(offset, offset + len(target))

    def _block(self, offset: int) -> tuple[Path, int, int]:
        """The block that has the byte at `offset`: its file, and where it begins and ends."""
        number = offset // BLOCK_BYTES
        begin = number * BLOCK_BYTES
        return self._folder / str(number), begin, min(begin + BLOCK_BYTES, self._remote.size_bytes)


def _is_filled(target: memoryview, descriptor: int, offset: int) -> bool:
    """Read from the open block, and close it; False when the disk fails."""
    try:
        while target:
            count = os.preadv(descriptor, [target], offset)
            if not count:
                return False
            target, offset = target[count:], offset + count
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


@functools.cache
def _connections() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(object_versions.CONNECTIONS, "store")
