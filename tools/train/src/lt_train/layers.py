"""What megatron-core's local layers lack without TransformerEngine: `attention`, and here a norm for sequence parallelism.

Its own norm wrapper refuses sequence parallelism, although only one attribute on the weight is needed for it.
"""

from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from torch import Tensor

from lt_train.attention import CausalAttention


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


def block_spec(config: TransformerConfig, virtual_stage: int | None) -> TransformerBlockSubmodules:
    """The layers of a pipeline stage of this rank, from megatron-core's local layers with ours in their places."""
    layer: ModuleSpec = get_gpt_layer_local_spec(normalization=config.normalization)
    layer.submodules.input_layernorm = Norm
    layer.submodules.pre_mlp_layernorm = Norm
    layer.submodules.self_attention.submodules.core_attention = CausalAttention
    return TransformerBlockSubmodules(layer_specs=[layer] * get_num_layers_to_build(config, virtual_stage), layer_norm=Norm)
