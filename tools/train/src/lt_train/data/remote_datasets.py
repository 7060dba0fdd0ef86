"""Use datasets on s3:// and other stores: a node copies the index before the ranks start, and ranks read ranges of tokens.

Training reads some kilobytes at random offsets all the time: a store answers such a request in tens of milliseconds, a local disk
in 0.1 ms. So samples are read ahead (`loader`) over many connections, and a local disk caches the bytes as far as it has room
(`cached_bin`, `block_cache`). The name of a copy has the versions of the objects, so a dataset that was written anew is copied
anew, and ranges are read from this version only. Old indices stay until someone deletes them.
"""

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lt_shared import console
from lt_shared.console import IoFailure, TryAgain
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset
from lt_shared.data.indexed_dataset import RemoteBin
from lt_shared.data.sample_order.samples import MaskedSequences, StoredSequences
from lt_shared.files import storage
from lt_shared.files.local_files import write_at
from lt_train.config.settings.data import Data, check_datasets
from lt_train.data.block_cache import BLOCKS, BlockCache
from lt_train.data.cached_bin import BLOCK_BYTES, CachedBin
from lt_train.data.index_cache import make_once

CONNECTIONS = 16
RANGE_BYTES = 32 << 20
# A stream reads one window, the window before it, and ahead in the next window.
WINDOWS = 3
GIB = 1 << 30


def fetch(data: Data, vocab_size: int) -> Data:
    """Copy the indices of remote datasets to this node and check them.

    Returns `data` with the prefixes of the copies and the size of the token cache. Raises as `storage` and `check_datasets`.
    """
    if not any(storage.is_remote(dataset.prefix) for dataset in data.all_datasets):
        return data
    cache = Path(str(data.object_cache_path))
    lists = ("datasets", "validation_datasets", "test_datasets")
    copies: dict[str, Any] = {name: tuple(local_copy(dataset, cache) for dataset in getattr(data, name)) for name in lists}
    local = dataclasses.replace(data, **copies, object_cache_gib=_cache_gib(data))
    check_datasets(local, vocab_size)
    return local


def _cache_gib(data: Data) -> float:
    """Return the requested cache size, at most the free disk space; the default is half of the free space. Delete any excess."""
    directory = Path(str(data.object_cache_path))
    used = BlockCache(directory, 1 << 62).count()
    available_gib = (shutil.disk_usage(directory).free + used) / GIB
    if data.object_cache_gib is not None and data.object_cache_gib > available_gib:
        console.warn(f"{directory}: the disk has {available_gib:,.1f} GiB for the cache of {data.object_cache_gib:g} GiB")
    size = min(data.object_cache_gib or available_gib / 2, available_gib)
    BlockCache(directory, int(size * GIB)).count()
    return size


def local_copy(dataset: Dataset, cache: Path) -> Dataset:
    """Return `dataset`, or for a remote dataset its local index, sidecar and RemoteBin. Copy them if they are missing."""
    if not storage.is_remote(dataset.prefix):
        return dataset
    prefixes = [dataset.prefix, *([indexed_dataset.mask_prefix(dataset.prefix)] if dataset.loss_mask else [])]
    files = {path: storage.fingerprint(path, refresh=True) for prefix in prefixes for path in _files(prefix)}
    digest = hashlib.blake2b(json.dumps(sorted(map(str, files.values()))).encode(), digest_size=16).hexdigest()
    copy = make_once(cache, f"dataset-{digest}", lambda directory: _copy(files, directory))
    return dataclasses.replace(dataset, prefix=str(copy / dataset.prefix.rsplit("/", 1)[-1]))


def _files(prefix: str) -> list[str]:
    sidecar = manifest.sidecar_path(prefix)
    return [indexed_dataset.idx_path(prefix), indexed_dataset.bin_path(prefix), *([sidecar] if storage.exists(sidecar) else [])]


def _copy(files: dict[str, dict[str, str | int]], directory: Path) -> None:
    (directory / BLOCKS).mkdir()
    for path, version in files.items():
        target = directory / path.rsplit("/", 1)[-1]
        # A loss mask has a byte a token, and is read with every sample: it is copied whole.
        if path.endswith(".bin") and not indexed_dataset.is_mask(path.removesuffix(".bin")):
            remote = RemoteBin(path, str(version["version"]), storage.size_bytes(path))
            storage.write_bytes(f"{target}.remote", json.dumps(remote.record).encode())
        else:
            copy_file(path, target)
        if storage.fingerprint(path, refresh=True) != version:
            raise TryAgain(f"{path}: it was written anew while it was copied", "wait until the dataset is finished")


def open_sequences(data: Data, dataset: Dataset, is_shard: bool = False) -> StoredSequences | MaskedSequences:
    """Open the sequences of a dataset of the run, or of a shard of a stream, at a local prefix."""
    tokens = _open_tokens(data, dataset.prefix, is_shard)
    if not dataset.loss_mask:
        return tokens
    return MaskedSequences(tokens, StoredSequences(indexed_dataset.mask_prefix(dataset.prefix)))


def _open_tokens(data: Data, prefix: str, is_shard: bool) -> StoredSequences:
    remote = RemoteBin.of(prefix)
    if remote is None or data.object_cache_path is None or data.object_cache_gib is None:
        return StoredSequences(prefix)
    cache = BlockCache(Path(data.object_cache_path), int(data.object_cache_gib * GIB))
    cached = remote.size_bytes if is_shard and _keeps_streams(data) else 0 if is_shard else cached_bytes(data)[prefix]
    return StoredSequences(prefix, CachedBin(remote, cache, Path(prefix).parent, cached))


def cached_bytes(data: Data) -> Mapping[str, int]:
    """Map remote datasets to the bytes that the cache keeps from their start. The smallest datasets are kept whole."""
    room = int((data.object_cache_gib or 0) * GIB)
    room -= _stream_bytes(data) if _keeps_streams(data) else 0
    bytes_by_dataset = {}
    sizes = {dataset.prefix: remote.size_bytes for dataset in data.all_datasets if (remote := RemoteBin.of(dataset.prefix))}
    for prefix, size in sorted(sizes.items(), key=lambda entry: (entry[1], entry[0])):
        bytes_by_dataset[prefix] = size if size <= room else room // BLOCK_BYTES * BLOCK_BYTES
        room -= bytes_by_dataset[prefix]
    return bytes_by_dataset


def _keeps_streams(data: Data) -> bool:
    """Whether the cache has room for the streams' windows, so that a block is fetched once per epoch."""
    return 0 < _stream_bytes(data) <= int((data.object_cache_gib or 0) * GIB)


def _stream_bytes(data: Data) -> int:
    if data.streaming is None:
        return 0
    heads = zip(data.datasets, data.streaming.lists, strict=True)
    windows = [
        max(
            indexed_dataset.Reader(head.prefix, thorough=False, remote=True).dtype.itemsize * data.streaming.window_tokens,
            remote.size_bytes,
        )
        for head, place in heads
        if place is not None and (remote := RemoteBin.of(head.prefix))
    ]
    return WINDOWS * sum(windows)


def copy_file(path: str, target: Path) -> None:
    """Copy an object durably to the new local file `target`. Raise IoFailure if it is shorter than the store said."""
    size = storage.size_bytes(path)
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)

    def copy(begin: int) -> int:
        content = storage.read_range(path, begin, min(begin + RANGE_BYTES, size))
        if len(content) != min(RANGE_BYTES, size - begin):
            raise IoFailure(f"{path}: {len(content)} bytes from byte {begin} on, {min(RANGE_BYTES, size - begin)} were expected")
        write_at(file, content, begin)
        return len(content)

    try:
        # Allocate the file first, so that a full disk is noticed now and not after hours.
        if size:
            os.posix_fallocate(file, 0, size)
        if size > RANGE_BYTES:
            with ThreadPoolExecutor(CONNECTIONS) as pool, console.Progress(f"copying {path}", size, "B") as progress:
                for copied in pool.map(copy, range(0, size, RANGE_BYTES)):
                    progress.advance(copied)
        elif size:
            copy(0)
        os.fsync(file)
    finally:
        os.close(file)
