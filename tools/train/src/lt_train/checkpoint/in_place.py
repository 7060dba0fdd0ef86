"""Parameters that are several tensors of a checkpoint, as SwiGLU's two matrices are, loaded without a copy.

megatron-core lets a factory make the tensors that are loaded, and then puts them together: gate and up in new memory, of each
weight and both its moments. The tensors are parts of the parameter's own memory, so they are together once they are loaded.
"""

from functools import partial
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory


def merge_in_place(sharded: dict[str, Any]) -> None:
    """Let the factories in `sharded`, which is about to be loaded, give the parameter itself where all of it was loaded into."""
    for factory in nested_values(sharded):
        if isinstance(factory, ShardedTensorFactory) and factory.data is not None:
            factory.merge_fn = partial(_merged, factory.data, factory.merge_fn)


def _merged(whole: torch.Tensor, merge: Any, loaded: Any) -> Any:
    parts = list(nested_values(loaded)) if isinstance(loaded, dict | list) else [loaded]
    begin = whole.data_ptr()
    addresses = range(begin, begin + whole.nbytes)
    if sum(part.numel() for part in parts) == whole.numel() and all(part.data_ptr() in addresses for part in parts):
        return whole
    return merge(loaded)
