"""Read a remote `.bin` for the loader: the first `cached_bytes` in cached blocks, the following bytes by exact ranges.

In Megatron's order, samples are shuffled, and so are the documents in a sample: a sample of 4096 tokens from documents of 500
tokens reads nine ranges of 1 kB. If the cache has room for a block, the whole block is used sooner or later, and the dataset
comes over the network once. Without room, a block would be deleted before its next document is due, and 1 MiB would be fetched
for 1 kB: 147 MB/s per rank at 64,000 tokens/s, compared with 0.13 MB/s for exact ranges. So bytes without room are not cached at
all.

The ranges of a sample are requested at the same time, over the process's connections, and the loader reads several samples ahead:
with 32 connections and 50 ms per request, 640 ranges a second at most. At 64,000 tokens/s the loader is as fast as on local
files, also with an empty cache, and with a separate range per document: 6,500 requests in 30 s, for 38% of a core (`nox -s bench
-- train-data --only store`, which answers after 50 ms; 2 idle cores, 2026-11-27).
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
    """Reads `remote`. Blocks of its first `cached_bytes` are cached in the directory `folder`, as far as `cache` has room."""

    def __init__(self, remote: RemoteBin, cache: BlockCache, folder: Path, cached_bytes: int):
        self._remote = remote
        self._cache = cache
        self._folder = folder / BLOCKS
        self._cached_bytes = cached_bytes

    def read_into(self, pieces: Sequence[Piece]) -> None:
        """Fill the pieces as `TokenFile.read_into` does. Raises as `RemoteBin.read`."""
        missing = [part for piece in pieces for part in self._parts(*piece) if not self._is_read_from_disk(*part)]
        if len(missing) < 2:
            for part in missing:
                self._read_from_store(*part)
            return
        for future in [_connections().submit(self._read_from_store, *part) for part in missing]:
            future.result()

    def _parts(self, target: memoryview, offset: int) -> list[Piece]:
        """Cut a piece at the ends of blocks."""
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
            descriptor = self._cache.open_block(path, end - begin)
            return descriptor is not None and _is_filled(target, descriptor, offset - begin)
        except OSError:
            # If the disk fails, the bytes are read from the store.
            return False

    def _read_from_store(self, target: memoryview, offset: int) -> None:
        if offset < self._cached_bytes:
            path, begin, end = self._block(offset)
            descriptor = self._cache.fetch_block(path, end - begin, lambda: self._remote.read(begin, end))
            if descriptor is not None and _is_filled(target, descriptor, offset - begin):
                return
        target[:] = self._remote.read(offset, offset + len(target))

    def _block(self, offset: int) -> tuple[Path, int, int]:
        """Return the block with the byte at `offset`: its file, its first byte and its end."""
        number = offset // BLOCK_BYTES
        begin = number * BLOCK_BYTES
        return self._folder / str(number), begin, min(begin + BLOCK_BYTES, self._remote.size_bytes)


def _is_filled(target: memoryview, descriptor: int, offset: int) -> bool:
    """Fill `target` from an open block, and close the block. False if the disk fails."""
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
