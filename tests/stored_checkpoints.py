"""The tensors of a DCP checkpoint as torch reads them."""

from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata


def stored_values(directory: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, as torch reads them. megatron-core has two names for main weights."""
    reader = FileSystemReader(directory)
    tensors: dict[str, Any] = {
        name: torch.full(tuple(entry.size), 7.0).to(entry.properties.dtype)
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    checkpoint.load(tensors, storage_reader=reader, no_dist=True)
    return {name.replace("state.fp32_param.", "state.param."): tensor for name, tensor in tensors.items()}
