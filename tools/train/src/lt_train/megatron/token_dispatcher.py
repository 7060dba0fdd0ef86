"""`megatron.core.transformer.moe.token_dispatcher`: token counts become arrays without a CUDA stream, on a CPU.

With experts on other ranks, the dispatcher copies token counts to the host on a separate stream. On a CPU the counts only have to
become arrays, which the copy does, too.
"""

from typing import Any

import torch

from lt_train.megatron.upstream import MEGATRON_CORE, Upstream

UPSTREAM = Upstream(
    "megatron.core.transformer.moe.token_dispatcher",
    MEGATRON_CORE,
    versions=("0.16.1", "0.19.2"),
    signatures={"MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize": "(self, point, tokens_per_expert=None)"},
    values=("MoEAlltoAllTokenDispatcher.cuda_dtoh_stream",),
)


def use_host_counts() -> None:
    """Let the all-to-all dispatcher read token counts without copying them."""
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    MoEAlltoAllTokenDispatcher.cuda_dtoh_stream = "none"
    MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = _counts_as_arrays


def _counts_as_arrays(
    self: Any, point: str, tokens_per_expert: torch.Tensor | None = None, *unknown: Any, **unknown_named: Any
) -> torch.Tensor | None:
    UPSTREAM.refuse_unknown("MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize", unknown, unknown_named)
    for name in ("input_splits", "output_splits"):
        splits = getattr(self, name)
        if isinstance(splits, torch.Tensor):
            setattr(self, name, splits.numpy())
    return tokens_per_expert
