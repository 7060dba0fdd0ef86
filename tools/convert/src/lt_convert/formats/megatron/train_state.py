"""Megatron-Bridge's counters: `train_state.pt` in a checkpoint, and `latest_train_state.pt`, its tracker file.

Each is one `torch.save` of a dict of scalar tensors.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from lt_convert.containers import torch_archive
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData

FILE, TRACKER = "train_state.pt", "latest_train_state.pt"


def tracked_step(run: str, files: Files) -> int:
    """The newest iteration of a run. Raises BadData when the tracker file does not say it."""
    return _count(f"{run}/{TRACKER}", "step", files)


def added(arguments: Mapping[str, Any], directory: str, names: Sequence[str], files: Files) -> dict[str, Any]:
    """The arguments with the number of samples that were trained on, if the checkpoint says it."""
    if FILE not in names:
        return dict(arguments)
    return {**arguments, "consumed_train_samples": _count(f"{directory}/{FILE}", "consumed_train_samples", files)}


def _count(path: str, name: str, files: Files) -> int:
    content, locate = torch_archive.read(path, 0, files.size_bytes(path), files, path.rsplit("/", 1)[-1])
    if not isinstance(content, dict) or name not in content:
        raise BadData(f"{path}: has no {name}")
    stored = locate(content[name])
    if stored.dtype != "int64" or stored.view.shape:
        raise BadData(f"{path}: {name} is no count")
    count: int = struct.unpack("<q", files.read(stored.view.file, stored.view.offset_bytes, 8))[0]
    if count < 0:
        raise BadData(f"{path}: {name} is {count}")
    return count
