"""Parts of a block that the backward pass computes again instead of keeping what they computed."""

from collections.abc import Callable
from typing import Any

from megatron.core import tensor_parallel
from megatron.core.transformer import TransformerConfig


def is_chosen(config: TransformerConfig, module: str) -> bool:
    """Whether `module` is one of --recompute-modules, in selective recomputation."""
    return config.recompute_granularity == "selective" and module in (config.recompute_modules or ())


def compute(function: Callable[..., Any], is_recomputed: bool, *inputs: Any) -> Any:
    """`function` of tensors, or None, computed again by the backward pass if `is_recomputed`."""
    return tensor_parallel.checkpoint(function, False, *inputs) if is_recomputed else function(*inputs)
