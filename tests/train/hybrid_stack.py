"""megatron-core's own HybridModel (0.19 and newer) on the CPU, with local layers: its published specs need TransformerEngine.

The names of the tensors are those of the published specs: local layers map the names of their norms to TransformerEngine's.
"""

import functools
from typing import Any

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.hybrid import hybrid_block
from megatron.core.models.hybrid.hybrid_block import HybridStack, HybridStackSubmodules
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.ssm.mlp_layer import MLPLayer
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_layer import MoETransformerLayer, TransformerLayer, TransformerLayerSubmodules

from lt_shared.models import hybrid_pattern
from lt_shared.models.architecture import Architecture

hybrid_block.TENorm = WrappedTorchNorm


def layer_fields(architecture: Architecture) -> dict[str, Any]:
    """The fields of TransformerConfig that count the layers of HybridModel."""
    arguments = hybrid_pattern.from_decoder({}, architecture)
    names = ("num_layers", "window_attn_skip_freq", "no_rope_freq")
    return {name: arguments[name] for name in names if name in arguments} | {"moe_layer_freq": 1, "is_hybrid_model": True}


def _spec(
    config: Any, experts: int = 2, qk_layernorm: bool = False, latent: bool = False, query_latent: bool = True
) -> ModuleSpec:
    """Layers of every kind. With `latent`, attention is latent attention, with `query_latent` for queries, too."""
    layer = functools.partial(
        get_gpt_layer_local_spec,
        qk_layernorm=qk_layernorm or latent,
        multi_latent_attention=latent,
        normalization=config.normalization,
    )
    dense = layer().submodules
    if latent and not query_latent:
        dense.self_attention.submodules.q_layernorm = IdentityOp
    attention = TransformerLayerSubmodules(
        input_layernorm=dense.input_layernorm,
        self_attention=dense.self_attention,
        self_attn_bda=dense.self_attn_bda,
        sharded_state_dict_keys_map={} if latent else {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"},
    )
    mlp = TransformerLayerSubmodules(
        pre_mlp_layernorm=dense.pre_mlp_layernorm,
        mlp=dense.mlp,
        mlp_bda=dense.mlp_bda,
        sharded_state_dict_keys_map={"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"},
    )
    with_experts = layer(num_experts=experts).submodules
    moe = TransformerLayerSubmodules(
        pre_mlp_layernorm=with_experts.pre_mlp_layernorm, mlp=with_experts.mlp, mlp_bda=with_experts.mlp_bda
    )
    submodules = HybridStackSubmodules(
        attention_layer=ModuleSpec(module=TransformerLayer, submodules=attention),
        mla_layer=ModuleSpec(module=TransformerLayer, submodules=attention),
        mlp_layer=ModuleSpec(module=MLPLayer, submodules=mlp),
        moe_layer=ModuleSpec(module=MoETransformerLayer, submodules=moe),
    )
    return ModuleSpec(module=HybridStack, submodules=submodules)


def dense_model(config: Any, pattern: str, **options: Any) -> HybridModel:
    """A model of attention and MLPs with the pattern."""
    return HybridModel(config=config, hybrid_stack_spec=_spec(config), hybrid_layer_pattern=pattern, **options)


def build(config: Any, architecture: Architecture, **options: Any) -> HybridModel:
    """The part of a model that this rank has. `options` are those of GPTModel; HybridModel has no scaling of RoPE but YaRN."""
    assert not options.pop("rope_scaling")
    del options["rope_scaling_factor"]
    latent = architecture.latent_attention
    spec = _spec(
        config,
        architecture.num_experts or 2,
        architecture.qk_layernorm,
        latent is not None,
        latent is not None and latent.q_lora_rank is not None,
    )
    return HybridModel(
        config=config,
        hybrid_stack_spec=spec,
        hybrid_layer_pattern=hybrid_pattern.of_architecture(architecture),
        **options,
    )
