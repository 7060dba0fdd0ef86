"""GLM-4.5 and Air: sigmoid routers over 160 and 128 experts, a shared one, and a prediction layer, which the counts leave out."""

import dataclasses

from lt_shared.models.architecture import Architecture
from lt_shared.models.presets.dense import TINY, llama


def _glm(
    base: Architecture, experts: int, chosen: int, width: int, dense: int, scaling: float, qk_layernorm: bool
) -> Architecture:
    return dataclasses.replace(
        base,
        rotary_percent=0.5,
        add_qkv_bias=True,
        qk_layernorm=qk_layernorm,
        num_experts=experts,
        moe_router_topk=chosen,
        moe_ffn_hidden_size=width,
        moe_shared_expert_intermediate_size=width,
        moe_first_dense_layers=dense,
        moe_router_topk_scaling_factor=scaling,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        mtp_num_layers=1,
    )


def _published(name: str, layers: int, hidden: int, ffn: int) -> Architecture:
    base = llama(name, layers, hidden, ffn, 8, 8, 151552, 131072)
    return dataclasses.replace(base, num_attention_heads=96, kv_channels=128, rotary_base=1000000.0)


GLM4_MOE = (
    _glm(dataclasses.replace(TINY, name="tiny-glm4-moe", tie_embeddings=False), 8, 2, 64, 1, 2.5, qk_layernorm=True),
    _glm(_published("glm-4.5", 92, 5120, 12288), 160, 8, 1536, 3, 2.5, qk_layernorm=True),
    _glm(_published("glm-4.5-air", 46, 4096, 10944), 128, 8, 1408, 1, 1.0, qk_layernorm=False),
)
