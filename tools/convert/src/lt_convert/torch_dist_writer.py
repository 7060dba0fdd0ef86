"""Write a torch_dist checkpoint that megatron-core's `dist_checkpointing.load` reads, in one process, one chunk at a time.

The layers of a tensor become one stacked key with a chunk a layer, as megatron-core itself stores them; large tensors are cut
into several chunks, so memory stays below `CHUNK_BYTES` twice over, whatever the model's size. `.metadata` is written last.
"""

import contextlib
import json
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from lt_convert.tensors import Tensor, row_blocks
from lt_convert.torch_dist import COMMON, METADATA
from lt_shared import storage

CHUNK_BYTES = 256 << 20
FILE_BYTES = 5_000_000_000
CONFIGURATION = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
# Modules that register an empty `_extra_state` per layer: loading fails without them. The last one is TransformerEngine's alone.
EXTRA_STATE_MODULES = (
    "self_attention.linear_proj",
    "self_attention.linear_qkv",
    "mlp.linear_fc1",
    "mlp.linear_fc2",
    "self_attention.core_attention",
)

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.*)")


def write(
    directory: Path, tensors: Mapping[str, Tensor], layers: int, common: dict[str, Any], advance: Callable[[int], None]
) -> None:
    """Write Megatron's `tensors` (one a layer, named `decoder.layers.3. ...`) into the empty `directory`."""
    metadata = Metadata(state_dict_metadata={}, storage_data={})
    with _Files(directory, metadata) as files:
        for name, tensor in tensors.items():
            _write_tensor(name, tensor, layers, files, advance)
        for layer in range(layers):
            for module in EXTRA_STATE_MODULES:
                key = f"decoder.layers.{module}._extra_state/shard_{layer}_{layers}"
                metadata.state_dict_metadata[key] = BytesStorageMetadata()
                files.add(MetadataIndex(key), [None])
    torch.save(common, directory / COMMON)
    storage.write_bytes(directory / "metadata.json", json.dumps(CONFIGURATION).encode())
    storage.write_bytes(directory / METADATA, pickle.dumps(metadata))


def _write_tensor(name: str, tensor: Tensor, layers: int, files: "_Files", advance: Callable[[int], None]) -> None:
    match = _LAYER.fullmatch(name)
    key = f"decoder.layers.{match[2]}" if match else name
    stack = (layers,) if match else ()
    first_offset = (int(match[1]),) if match else ()
    dtype = getattr(torch, tensor.dtype)
    entries: dict[str, Any] = files.metadata.state_dict_metadata
    whole = TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size((*stack, *tensor.shape)), [])
    chunks = entries.setdefault(key, whole).chunks
    for start, stop in row_blocks(tensor, CHUNK_BYTES):
        values = torch.from_numpy(numpy.ascontiguousarray(tensor.read_rows(start, stop))).view(dtype)
        values = values.reshape((1,) * len(stack) + values.shape)
        offsets = torch.Size((*first_offset, start, *(0 for _ in tensor.shape[1:])))
        chunks.append(ChunkStorageMetadata(offsets, values.shape))
        files.add(MetadataIndex(key, offsets), values)
        advance((stop - start) * (values.nbytes // (stop - start)))


class _Files:
    """The `.distcp` files: one archive of `torch.save` after the other, a new file every `FILE_BYTES`."""

    def __init__(self, directory: Path, metadata: Metadata):
        self.directory, self.metadata = directory, metadata
        self.number = -1
        self._published = contextlib.ExitStack()

    def add(self, index: MetadataIndex, content: Any) -> None:
        if self.number < 0 or self.file.tell() >= FILE_BYTES:
            self._next()
        offset = self.file.tell()
        try:
            torch.save(content, self.file)
        except RuntimeError as error:
            # What torch makes of a failed write, a full disk for one.
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None
        length = self.file.tell() - offset
        self.metadata.storage_data[index] = _StorageInfo(self.name, offset, length)

    def _next(self) -> None:
        self._published.close()
        self.number += 1
        self.name = f"__0_{self.number}.distcp"
        self.file: IO[bytes] = self._published.enter_context(storage.publish(self.directory / self.name))

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, *error: Any) -> None:
        self._published.__exit__(*error)
