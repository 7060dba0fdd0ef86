"""The transformer layers: TransformerEngine's, or megatron-core's local ones with attention, norms and compilation of our own.

megatron-core's local norm refuses sequence parallelism, although only one attribute on the weight is needed for it. Its rotary
embedding is a dozen passes over queries and keys; compiled, as norms are here and SwiGLU is there, it is one each way. With them
compiled, a 1 B Llama on an H200 went from 47,559 to 55,361 tokens per second; the kernels that replace them where they fit
(`lt_train.models.fused_layer`) have 62,834. On a CPU nothing is compiled.
"""

from functools import partial
from typing import Any

from megatron.core.models.common.embeddings import rope_utils
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor

from lt_shared.architecture import Architecture
from lt_shared.console import BadConfig
from lt_train.config.kernels import FLASH_ATTENTION_4, Kernels
from lt_train.config.settings.layers import TRANSFORMER_ENGINE
from lt_train.models.attention import CausalAttention
from lt_train.models.flash_attention import FlashAttention
from lt_train.models.grouped_experts import GroupedExperts
from lt_train.models.latent_attention import LatentAttention
from lt_train.models.norms import Norm, compiled
from lt_train.models.post_norm import place_norms

_ROTATE = rope_utils._apply_rotary_pos_emb_bshd


def exclude_padding(logits: Tensor, first: int, vocab_size: int) -> Tensor:
    """Take the padding out of the softmax, in place: columns of `logits` [s, b, columns] with a token id from `vocab_size` on.

    `first` is the token id of column 0. Megatron leaves the padding in; the loss then depends on how much of it the tensor
    parallel size asks for, and differs from that of the converted model, which has none.
    """
    real = max(0, vocab_size - first)
    if real < logits.shape[-1]:
        logits[..., real:] = float("-inf")
    return logits


def block_spec(
    config: TransformerConfig, architecture: Architecture, virtual_stage: int | None, kernels: Kernels
) -> TransformerBlockSubmodules:
    """The layers of a pipeline stage of this rank, by the implementations of `kernels`."""
    first = get_transformer_layer_offset(config, virtual_stage)
    numbers = range(first, first + get_num_layers_to_build(config, virtual_stage))
    kinds = {
        has_experts: layer_spec(config, architecture, kernels, has_experts)
        for has_experts in {_has_experts(config, n) for n in numbers}
    }
    norm = _te_norm() if kernels.layers == TRANSFORMER_ENGINE else Norm
    return TransformerBlockSubmodules([kinds[_has_experts(config, number)] for number in numbers], norm)


def _has_experts(config: TransformerConfig, layer: int) -> bool:
    frequency = config.moe_layer_freq
    return bool(config.num_moe_experts) and (not isinstance(frequency, list) or frequency[layer] == 1)


def layer_spec(config: TransformerConfig, architecture: Architecture, kernels: Kernels, has_experts: bool) -> ModuleSpec:
    make = _transformer_engine_layer if kernels.layers == TRANSFORMER_ENGINE else _torch_layer
    layer = make(config, config.num_moe_experts if has_experts else None)
    place_norms(layer.submodules, architecture)
    if has_experts and kernels.groups_experts:
        _submodules(layer.submodules.mlp).experts = GroupedExperts
    core_attention = FlashAttention if kernels.attention == FLASH_ATTENTION_4 else CausalAttention
    if architecture.latent_attention:
        _put_latent_attention(layer, architecture, core_attention)
    elif kernels.attention != TRANSFORMER_ENGINE:
        layer.submodules.self_attention.submodules.core_attention = core_attention
    return layer


def _submodules(spec: Any) -> Any:
    """Of a specification of megatron-core: of 0.16, or of 0.19, which has made some of them functions."""
    return spec.keywords["submodules"] if isinstance(spec, partial) else spec.submodules


def _put_latent_attention(layer: ModuleSpec, architecture: Architecture, core_attention: type[CausalAttention]) -> None:
    """The norms get the names in checkpoints that megatron-core has for them in layers with latent attention: their own."""
    parts = layer.submodules
    parts.self_attention = ModuleSpec(
        module=LatentAttention,
        params={
            "architecture": architecture,
            "norm": Norm,
            "core_attention": core_attention,
            "attn_mask_type": AttnMaskType.causal,
        },
    )
    parts.sharded_state_dict_keys_map = {}


def _te_norm() -> Any:
    from megatron.core.extensions.transformer_engine import TENorm

    return TENorm


def _transformer_engine_layer(config: TransformerConfig, experts: int | None) -> ModuleSpec:
    try:
        import transformer_engine.pytorch  # noqa: F401
    except (ImportError, OSError, RuntimeError, AssertionError) as error:
        raise BadConfig(f"TransformerEngine cannot be imported: {error}", "mend it, or use --transformer-impl torch") from error
    layer: ModuleSpec = get_gpt_layer_with_transformer_engine_spec(
        num_experts=experts, moe_grouped_gemm=config.moe_grouped_gemm, qk_layernorm=config.qk_layernorm
    )
    return layer


def _torch_layer(config: TransformerConfig, experts: int | None) -> ModuleSpec:
    """megatron-core's local layer with our attention and norm in it, and its rotary embedding compiled."""
    _compile_rotary_embedding()
    layer: ModuleSpec = get_gpt_layer_local_spec(
        num_experts=experts, qk_layernorm=config.qk_layernorm, normalization=config.normalization
    )
    parts = layer.submodules
    parts.input_layernorm = Norm
    parts.pre_mlp_layernorm = Norm
    attention = parts.self_attention.submodules
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = Norm
    if experts:
        # TransformerEngine's layer keeps this norm apart when experts follow; the local one would store it as part of a matrix
        # that is not there, and a checkpoint of the one would not load into the other.
        parts.sharded_state_dict_keys_map.pop("pre_mlp_layernorm.")
        _define_absent_names()
    return layer


def _compile_rotary_embedding() -> None:
    if rope_utils._apply_rotary_pos_emb_bshd is _ROTATE:
        rope_utils._apply_rotary_pos_emb_bshd = compiled(_ROTATE)


def _define_absent_names() -> None:
    """megatron-core 0.16's router asks whether `te_general_gemm` is None, and has no such name without TransformerEngine."""
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
