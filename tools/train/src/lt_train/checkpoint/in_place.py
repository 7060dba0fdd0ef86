"""Parameters that are loaded to where they are, without a copy and without being cleared before.

Several tensors of a checkpoint may be one parameter, as SwiGLU's two matrices are. megatron-core lets a factory make the tensors
that are loaded, and then puts them together: gate and up in new memory, of each weight and both its moments. The tensors are
parts of the parameter's own memory, so they are together once they are loaded.

Where a vocabulary may be padded to another size, megatron-core writes zeros first. Of a split master weight these are gigabytes
of host memory that nothing else touches, half a second for Llama 3's two embeddings.
"""

from functools import partial
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory


def merge_in_place(sharded: dict[str, Any]) -> None:
    """Let the factories in `sharded`, which is about to be loaded, give the parameter itself where all of it was loaded into."""
    for factory in nested_values(sharded):
        if isinstance(factory, ShardedTensorFactory) and factory.data is not None:
            factory.merge_fn = partial(_merged, factory.data, factory.merge_fn)


def fill_whole(sharded: dict[str, Any]) -> None:
    """Let nothing in `sharded` be cleared: the checkpoint has the same padded vocabulary."""
    for tensor in nested_values(sharded):
        if isinstance(tensor, ShardedTensor):
            tensor.allow_shape_mismatch = False


def _merged(whole: torch.Tensor, merge: Any, loaded: Any) -> Any:
    parts = list(nested_values(loaded)) if isinstance(loaded, dict | list) else [loaded]
    begin = whole.data_ptr()
    addresses = range(begin, begin + whole.nbytes)
    if sum(part.numel() for part in parts) == whole.numel() and all(part.data_ptr() in addresses for part in parts):
        return whole
    return merge(loaded)
