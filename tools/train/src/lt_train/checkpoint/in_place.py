"""Load parameters into their memory, without a copy and without clearing the memory first.

Several tensors in a checkpoint may form a single parameter, such as SwiGLU's two matrices. megatron-core's factories load
separate tensors and concatenate gate and up in new memory, for each weight and both its moments. Here the loaded tensors are
views of the parameter's memory, so no concatenation is needed.

megatron-core writes zeros first if a vocabulary may be padded to another size. For a split master weight, these are gigabytes of
otherwise unused host memory: half a second for Llama 3's two embeddings.
"""

from functools import partial
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory


def merge_in_place(sharded: dict[str, Any]) -> None:
    """Let the factories in `sharded` return the parameter itself if it was loaded in place. Call it before loading."""
    for factory in nested_values(sharded):
        if isinstance(factory, ShardedTensorFactory) and factory.data is not None:
            factory.merge_fn = partial(_merge, factory.data, factory.merge_fn)


def fill_whole(sharded: dict[str, Any]) -> None:
    """Skip clearing in `sharded`, because the checkpoint has the same padded vocabulary."""
    for tensor in nested_values(sharded):
        if isinstance(tensor, ShardedTensor):
            tensor.allow_shape_mismatch = False


def _merge(whole: torch.Tensor, merge: Any, loaded: Any) -> Any:
    parts = list(nested_values(loaded)) if isinstance(loaded, dict | list) else [loaded]
    begin = whole.data_ptr()
    addresses = range(begin, begin + whole.nbytes)
    if sum(part.numel() for part in parts) == whole.numel() and all(part.data_ptr() in addresses for part in parts):
        return whole
    return merge(loaded)
