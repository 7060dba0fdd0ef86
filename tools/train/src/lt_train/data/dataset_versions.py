"""Record in every checkpoint which versions of the datasets a run has read.

A sample is a position in a dataset. If the files at a prefix are replaced between two attempts, the remaining steps would
silently read samples twice or never. So `run.json` records the sizes of `.bin` and `.idx`, the CRC-32 in lt-preprocess's sidecar,
and a CRC-32 over sampled blocks in both files. A dataset on a store is recorded under its URL.

A file of up to `WHOLE_BYTES` is read whole, so any change is noticed. From a larger file, `BLOCKS` blocks of `BLOCK_BYTES` are
read, evenly spread from the first byte to the last. Another dataset is noticed, and so is every change that moves later tokens; a
few tokens changed between two blocks are not. Only the content counts: a dataset may be copied and touched.
"""

import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lt_shared.console import BadData, warn
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data.indexed_dataset import RemoteBin, bin_path, mask_prefix
from lt_shared.files import storage
from lt_shared.files.local_files import read_at

Version = dict[str, int]
WHOLE_BYTES = 1 << 22
BLOCKS = 64
BLOCK_BYTES = 1 << 14


def versions(datasets: Iterable[Dataset]) -> dict[str, Version]:
    """Compute by `origin`: `bin_bytes`, `idx_bytes`, `bin_samples_crc32`, `idx_samples_crc32` and, if recorded, `bin_crc32`,
    `idx_crc32`. With a loss mask, also `loss_mask_bytes` and `loss_mask_samples_crc32`. Raise BadData.
    """
    version_by_dataset = {}
    masked = {dataset.prefix: bool(dataset.loss_mask) for dataset in datasets}
    for prefix, has_mask in masked.items():
        recorded = manifest.recorded_checksums(prefix) or {}
        version = {}
        if has_mask:
            path = bin_path(mask_prefix(prefix))
            version["loss_mask_bytes"] = storage.size_bytes(path)
            version["loss_mask_samples_crc32"] = _crc32(path, version["loss_mask_bytes"])
        for ending in ("bin", "idx"):
            remote = RemoteBin.of(prefix) if ending == "bin" else None
            path = f"{prefix}.{ending}"
            size = remote.size_bytes if remote else storage.size_bytes(path)
            version[f"{ending}_bytes"] = size
            if ending in recorded:
                version[f"{ending}_crc32"] = recorded[ending].crc32
            version[f"{ending}_samples_crc32"] = _crc32(remote.url if remote else path, size)
        version_by_dataset[origin(prefix)] = version
    return version_by_dataset


def _crc32(path: str, size: int) -> int:
    """Compute the CRC-32 of the sampled blocks of a file or an object."""
    crc32 = 0
    for block in _read(path, _blocks(size)):
        crc32 = zlib.crc32(block, crc32)
    return crc32


def _blocks(size: int) -> list[tuple[int, int]]:
    """Return the sampled blocks of a file of `size` bytes: their first byte and their end."""
    if size <= WHOLE_BYTES:
        return [(0, size)] if size else []
    begins = [number * (size - BLOCK_BYTES) // (BLOCKS - 1) for number in range(BLOCKS)]
    return [(begin, begin + BLOCK_BYTES) for begin in begins]


def _read(path: str, blocks: Sequence[tuple[int, int]]) -> Iterable[bytes]:
    if storage.is_remote(path):
        return storage.read_ranges([(path, begin, end) for begin, end in blocks])
    with storage.open_read(path) as file:
        return [read_at(file.fileno(), end - begin, begin) for begin, end in blocks]


def origin(prefix: str) -> str:
    """Return the absolute prefix of a dataset, or the URL of its tokens."""
    if storage.is_remote(prefix):
        return prefix
    remote = RemoteBin.of(prefix)
    return remote.url.removesuffix(".bin") if remote else os.path.abspath(prefix)


def check_unchanged(checkpoint: str, recorded_versions: Mapping[str, Any], current_versions: Mapping[str, Version]) -> None:
    """Raise BadData if the dataset at a prefix has changed since `checkpoint` was saved."""
    for prefix, version in current_versions.items():
        recorded = recorded_versions.get(prefix, {})
        for name, value in version.items():
            if recorded.get(name, value) != value:
                raise BadData(
                    f"{prefix}: is another dataset than the one that {checkpoint} was trained on:"
                    f" {name} was {recorded[name]} and is {value}",
                    "put the dataset back, give the new one a name of its own, or begin another run with the weights: --load with"
                    " --finetune and another --save",
                )


def warn_of_others(checkpoint: str, recorded_versions: Mapping[str, Any], current_versions: Mapping[str, Version]) -> None:
    """Warn about datasets at prefixes that the checkpoint does not have, unless a dataset has only moved."""
    absent = [recorded for prefix, recorded in recorded_versions.items() if prefix not in current_versions]
    for prefix in [prefix for prefix in current_versions if prefix not in recorded_versions]:
        moved = next((recorded for recorded in absent if _is_same(recorded, current_versions[prefix])), None)
        if moved is None:
            warn(
                f"{prefix}: {checkpoint} was not trained on this dataset: the samples that are left come in another order than"
                " before"
            )
        else:
            absent.remove(moved)


def _is_same(recorded: Any, version: Version) -> bool:
    """Whether all values that both versions have are equal."""
    return isinstance(recorded, dict) and all(recorded.get(name, value) == value for name, value in version.items())
