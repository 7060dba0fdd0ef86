"""What a checkpoint holds, read with torch alone."""

from pathlib import Path

import torch
from torch.distributed.checkpoint import FileSystemReader, load
from torch.distributed.checkpoint.metadata import TensorStorageMetadata


def tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All tensors of `checkpoint`, whole, by Megatron's names; those of layers are stacked."""
    reader = FileSystemReader(checkpoint)
    found: dict[str, torch.Tensor] = {
        key: torch.empty(info.size, dtype=info.properties.dtype)
        for key, info in reader.read_metadata().state_dict_metadata.items()
        if isinstance(info, TensorStorageMetadata)
    }
    load(found, storage_reader=reader, no_dist=True)
    return found
