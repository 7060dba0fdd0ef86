"""Datasets on s3:// and other stores, copied once per node before the ranks start.

Training reads some kilobytes at random offsets all the time: a store answers each such request in tens of milliseconds, a local
disk in a tenth of one. A copy is made in ranges by several threads, which one connection could not do as fast. Its name holds the
versions of the objects, so a dataset that was written anew is copied anew; the old copy stays until someone deletes it.
"""

import dataclasses
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lt_shared import console, indexed_dataset, manifest, storage
from lt_shared.console import IoFailure, TryAgain
from lt_shared.manifest import Dataset
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.data import check_datasets
from lt_train.data.index_cache import make_once

CONNECTIONS = 16
RANGE_BYTES = 32 << 20


def fetch(config: RunConfig) -> RunConfig:
    """The configuration with checked local copies instead of remote datasets. Raises as `storage` and `check_datasets`."""
    if not any(storage.is_remote(dataset.prefix) for dataset in config.data.all_datasets):
        return config
    cache = Path(str(config.data.object_cache_path))
    lists = ("datasets", "validation_datasets", "test_datasets")
    local: dict[str, Any] = {name: tuple(local_copy(dataset, cache) for dataset in getattr(config.data, name)) for name in lists}
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **local))
    check_datasets(config.data, config.architecture.vocab_size)
    return config


def local_copy(dataset: Dataset, cache: Path) -> Dataset:
    """The dataset itself, or of one on a store its copy, which is made when there is none."""
    if not storage.is_remote(dataset.prefix):
        return dataset
    files = {path: storage.fingerprint(path, refresh=True) for path in _files(dataset.prefix)}
    digest = hashlib.blake2b(json.dumps(sorted(map(str, files.values()))).encode(), digest_size=16).hexdigest()
    copy = make_once(cache, f"dataset-{digest}", lambda directory: _copy(files, directory))
    return dataclasses.replace(dataset, prefix=str(copy / dataset.prefix.rsplit("/", 1)[-1]))


def _files(prefix: str) -> list[str]:
    sidecar = manifest.sidecar_path(prefix)
    return [indexed_dataset.idx_path(prefix), indexed_dataset.bin_path(prefix), *([sidecar] if storage.exists(sidecar) else [])]


def _copy(files: dict[str, dict[str, str | int]], directory: Path) -> None:
    for path, version in files.items():
        copy_file(path, directory / path.rsplit("/", 1)[-1])
        if storage.fingerprint(path, refresh=True) != version:
            raise TryAgain(f"{path}: it was written anew while it was copied", "wait until the dataset is finished")


def copy_file(path: str, target: Path) -> None:
    """Copy an object to the new local file `target`, durably. Raises IoFailure when it is shorter than the store said."""
    size = storage.size_bytes(path)
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)

    def copy(begin: int) -> int:
        content = storage.read_range(path, begin, min(begin + RANGE_BYTES, size))
        if len(content) != min(RANGE_BYTES, size - begin):
            raise IoFailure(f"{path}: {len(content)} bytes from byte {begin} on, {min(RANGE_BYTES, size - begin)} were expected")
        view, offset = memoryview(content), begin
        while view:
            written = os.pwrite(file, view, offset)
            view, offset = view[written:], offset + written
        return len(content)

    try:
        # A full disk is noticed now and not after hours.
        if size:
            os.posix_fallocate(file, 0, size)
        with ThreadPoolExecutor(CONNECTIONS) as pool, console.Progress(f"copying {path}", size, "B") as progress:
            for copied in pool.map(copy, range(0, size, RANGE_BYTES)):
                progress.advance(copied)
        os.fsync(file)
    finally:
        os.close(file)
