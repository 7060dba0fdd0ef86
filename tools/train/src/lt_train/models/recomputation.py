"""Activation recomputation of parts of a block."""

from collections.abc import Callable
from typing import Any

from megatron.core import tensor_parallel
from megatron.core.transformer import TransformerConfig


def is_chosen(config: TransformerConfig, module: str) -> bool:
    """Return whether selective recomputation is on and --recompute-modules includes `module`."""
    return config.recompute_granularity == "selective" and module in (config.recompute_modules or ())


def compute(function: Callable[..., Any], is_recomputed: bool, *inputs: Any) -> Any:
    """Call `function` on tensors or None. If `is_recomputed`, the backward pass calls it again instead of saving activations."""
    return tensor_parallel.checkpoint(function, False, *inputs) if is_recomputed else function(*inputs)
