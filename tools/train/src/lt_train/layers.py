"""The two layers that megatron-core lacks without TransformerEngine: fused causal attention, and a norm for sequence parallelism.

megatron-core's own local attention builds the full score matrix; PyTorch's scaled_dot_product_attention does not. Its norm
wrapper refuses sequence parallelism, although only one attribute on the weight is needed for it.
"""

from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from torch import Tensor


class CausalAttention(torch.nn.Module):
    """Causal self-attention over [sequence, batch, heads, head size]; grouped queries share their key and value heads."""

    def __init__(self, config: TransformerConfig, *args: Any, softmax_scale: float | None = None, **kwargs: Any):
        super().__init__()
        self.softmax_scale = softmax_scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """query [s, b, heads, d], key and value [s, b, groups, d]; returns [s, b, heads * d]."""
        sequence, batch, heads, size = query.shape
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query.permute(1, 2, 0, 3),
            key.permute(1, 2, 0, 3),
            value.permute(1, 2, 0, 3),
            is_causal=True,
            scale=self.softmax_scale,
            enable_gqa=heads != key.shape[2],
        )
        return mixed.permute(2, 0, 1, 3).reshape(sequence, batch, heads * size)


class Norm:
    """Builds torch's RMSNorm or LayerNorm, marked so that megatron-core sums its gradient over sequence-parallel ranks.

    A class, because megatron-core takes a function in a layer specification for the finished module.
    """

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> Any:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        module = kind(hidden_size, eps=eps, dtype=config.params_dtype, device=torch.cuda.current_device())
        for parameter in module.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        return module


def exclude_padding(logits: Tensor, first: int, vocab_size: int) -> Tensor:
    """Take the padding out of the softmax, in place: columns of `logits` [s, b, columns] with a token id from `vocab_size` on.

    `first` is the token id of column 0. Megatron leaves the padding in; the loss then depends on how much of it the tensor
    parallel size asks for, and differs from that of the converted model, which has none.
    """
    real = max(0, vocab_size - first)
    if real < logits.shape[-1]:
        logits[..., real:] = float("-inf")
    return logits


def block_spec(config: TransformerConfig) -> TransformerBlockSubmodules:
    """This pipeline stage's layers, from megatron-core's local layers with the two above in their places."""
    layer: ModuleSpec = get_gpt_layer_local_spec(normalization=config.normalization)
    layer.submodules.input_layernorm = Norm
    layer.submodules.pre_mlp_layernorm = Norm
    layer.submodules.self_attention.submodules.core_attention = CausalAttention
    return TransformerBlockSubmodules(layer_specs=[layer] * get_num_layers_to_build(config), layer_norm=Norm)
