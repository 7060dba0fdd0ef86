"""Which version of each dataset a run has read: what lay at a prefix when a checkpoint was saved.

A sample is a position in a dataset. When the files at a prefix were replaced between two attempts, the steps that are left would
read samples twice or never, in silence. So `run.json` records the sizes of `.bin` and `.idx` and the CRC-32 that lt-preprocess
has put into the sidecar; the data itself is not read. Files without a sidecar are known by their sizes alone. What was copied
from a URL, or is read from there, is recorded under it.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from lt_shared import manifest, storage
from lt_shared.console import BadData
from lt_shared.indexed_dataset import RemoteBin
from lt_shared.manifest import Dataset

Version = dict[str, int]


def versions(datasets: Iterable[Dataset]) -> dict[str, Version]:
    """By `origin`: `bin_bytes`, `idx_bytes` and, as far as recorded, `bin_crc32`, `idx_crc32`. Raises BadData."""
    found = {}
    for prefix in dict.fromkeys(dataset.prefix for dataset in datasets):
        recorded = manifest.recorded_checksums(prefix) or {}
        version = {}
        for ending in ("bin", "idx"):
            remote = RemoteBin.of(prefix) if ending == "bin" else None
            version[f"{ending}_bytes"] = remote.size_bytes if remote else storage.size_bytes(f"{prefix}.{ending}")
            if ending in recorded:
                version[f"{ending}_crc32"] = recorded[ending].crc32
        found[origin(prefix)] = version
    return found


def origin(prefix: str) -> str:
    """The absolute prefix of a dataset, or the URL at which its tokens are."""
    if storage.is_remote(prefix):
        return prefix
    remote = RemoteBin.of(prefix)
    return remote.url.removesuffix(".bin") if remote else os.path.abspath(prefix)


def check_unchanged(checkpoint: str, then: Mapping[str, Any], now: Mapping[str, Version]) -> None:
    """Raises BadData when another dataset lies at a prefix than when `checkpoint` was saved."""
    for prefix, version in now.items():
        before = then.get(prefix, {})
        for name, value in version.items():
            if before.get(name, value) != value:
                raise BadData(
                    f"{prefix}: is another dataset than the one that {checkpoint} was trained on:"
                    f" {name} was {before[name]} and is {value}",
                    "put the dataset back, give the new one a name of its own, or begin another run with the weights: --load with"
                    " --finetune and another --save",
                )
