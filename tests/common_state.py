"""Megatron's common state, the arguments among it, in either of its places: 0.16 has it in common.pt, 0.19 among the tensors."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

FILE, OBJECT = "common.pt", "common_state/shard_0_1"


def edit_metadata(checkpoint: Path, change: Callable[[Any], None]) -> None:
    """Let `change` edit what `.metadata` says of the tensors and objects."""
    path = checkpoint / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))


def move_beside_the_tensors(checkpoint: Path) -> None:
    """Store it as 0.16 does, whichever megatron-core saved it: 0.19 reads that, too."""
    if (checkpoint / FILE).exists():
        return

    def remove(metadata: Any) -> None:
        key = next(key for key in metadata.storage_data if key.fqn == OBJECT)
        place = metadata.storage_data.pop(key)
        del metadata.state_dict_metadata[OBJECT]
        content = (checkpoint / place.relative_path).read_bytes()[place.offset : place.offset + place.length]
        (common,) = torch.load(io.BytesIO(content), weights_only=False)
        torch.save(common, checkpoint / FILE)

    edit_metadata(checkpoint, remove)


def move_among_the_tensors(checkpoint: Path) -> None:
    """Store the content of common.pt as 0.19 does, whichever megatron-core saved it."""
    store_among_the_tensors(checkpoint, torch.load(checkpoint / FILE, weights_only=False))


def store_among_the_tensors(checkpoint: Path, common: Any) -> None:
    """Store `common` as 0.19 does, in place of common.pt: an object in a list, at the end of a file of tensors."""
    (checkpoint / FILE).unlink()
    content = io.BytesIO()
    torch.save([common], content)

    def add(metadata: Any) -> None:
        key, place = next(iter(metadata.storage_data.items()))
        shard = checkpoint / place.relative_path
        start = shard.stat().st_size
        shard.write_bytes(shard.read_bytes() + content.getvalue())
        metadata.state_dict_metadata[OBJECT] = BytesStorageMetadata()
        metadata.storage_data[type(key)(OBJECT)] = type(place)(place.relative_path, start, content.tell())

    edit_metadata(checkpoint, add)
