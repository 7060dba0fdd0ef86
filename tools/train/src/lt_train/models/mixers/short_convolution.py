"""The gated short convolution of LFM2 (Liquid AI, 2025) in place of attention:

    B, C, x = in_proj(hidden states)
    output = out_proj(C * causal convolution(B * x))

megatron-core has no such layer. Checkpoints have a tensor for each of B, C and x, as megatron-core's layers with a state do.
"""

from typing import Any

import torch
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from lt_shared.models.architecture import ShortConvolution
from lt_train.models import recomputation
from lt_train.models.linear import Linears, Outputs
from lt_train.models.mixers.convolution import Convolution, split_rows
from lt_train.models.mixers.core_attention import document_numbers
from lt_train.models.norms import compiled
from lt_train.parallel.head_exchange import heads_of_all_tokens, tokens_of_all_heads


class GatedConvolution(MegatronModule):  # type: ignore[misc]
    """Mix hidden states [s, b, h] of whole samples; needs no positions. The backward pass computes the convolution again."""

    def __init__(self, config: TransformerConfig, sizes: ShortConvolution, linears: Linears):
        super().__init__(config=config)
        hidden = config.hidden_size
        self.local_channels = hidden // config.tensor_model_parallel_size
        self.parts = [(self.local_channels, self.local_channels)]
        self.in_proj = linears.column(hidden, 3 * hidden, bias=False)
        self.conv1d = Convolution(config, hidden, sizes.taps, has_silu=False)
        self.out_proj = linears.row(hidden, hidden, bias=False)

    def forward(self, hidden_states: Tensor, documents: Tensor | None, angles: Tensor | None) -> Outputs:
        """Return [s, b, h], and no bias. `documents` [b, n + 1] are document borders; `angles` is unused."""
        projected, _ = self.in_proj(hidden_states)
        projected = heads_of_all_tokens(projected, 3 * self.parts)
        numbers = None if documents is None else document_numbers(documents, len(projected)).t()
        is_recomputed = self.training and torch.is_grad_enabled()
        mixed = recomputation.compute(self._mix, is_recomputed, projected, numbers)
        return self.out_proj(tokens_of_all_heads(mixed))  # type: ignore[no-any-return]

    def _mix(self, projected: Tensor, numbers: Tensor | None) -> Tensor:
        """Return [s, b, channels] for `projected` [s, b, 3 x channels] and the tokens' document `numbers` [s, b]."""
        input_gates, output_gates, channels = projected.chunk(3, dim=-1)
        return compiled(_product)(output_gates, self.conv1d(compiled(_product)(input_gates, channels), numbers, self.parts))

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        state: dict[str, Any] = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        projection = f"{prefix}in_proj.weight"
        return state | {projection: split_rows(state[projection], dict.fromkeys(("B", "C", "x"), self.local_channels))}


def _product(gates: Tensor, channels: Tensor) -> Tensor:
    return gates * channels
