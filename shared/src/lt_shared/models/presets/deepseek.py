"""DeepSeek-V2, V2-Lite, V3 and V3.2, GLM-4.7-Flash and GLM-5, Kimi K2, Mistral 4: latent attention, shared experts.

The counts match the published weights without the multi-token prediction layer of V3 (11.6 B more, `mtp_parameters`) and
without the router's balancing biases.
"""

import dataclasses
from typing import Any

from lt_shared.models.architecture import Architecture, LatentAttention, SparseAttention
from lt_shared.models.presets.dense import llama
from lt_shared.models.rope_scaling import YarnScaling

_LITE = LatentAttention(q_lora_rank=None, kv_lora_rank=512, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128)
_LARGE = dataclasses.replace(_LITE, q_lora_rank=1536)
_TINY = LatentAttention(q_lora_rank=48, kv_lora_rank=32, qk_head_dim=32, qk_pos_emb_head_dim=16, v_head_dim=32)
_SOFTMAX = {"moe_router_pre_softmax": True, "moe_aux_loss_coeff": 0.001}
_SIGMOID = {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True, "moe_aux_loss_coeff": 0.0001}


def _deepseek(base: Architecture, latent: LatentAttention, yarn: YarnScaling | None, **experts: Any) -> Architecture:
    return dataclasses.replace(
        base,
        num_query_groups=base.num_attention_heads,
        kv_channels=0,
        norm_epsilon=1e-6,
        latent_attention=latent,
        rope_scaling=yarn,
        **experts,
    )


def _experts(count: int, chosen: int, width: int, shared: int, dense: int) -> dict[str, int]:
    """Return the expert fields: `shared` experts of the chosen experts' width, and no experts in the first `dense` layers."""
    return {
        "num_experts": count,
        "moe_router_topk": chosen,
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": shared * width,
        "moe_first_dense_layers": dense,
    }


def _groups(count: int, chosen: int) -> dict[str, int]:
    return {"moe_router_num_groups": count, "moe_router_group_topk": chosen}


def _tiny(name: str) -> Architecture:
    return llama(name, 4, 128, 352, 4, 4, 2048, 1024)


_MISTRAL = LatentAttention(q_lora_rank=1024, kv_lora_rank=256, qk_head_dim=64, qk_pos_emb_head_dim=64, v_head_dim=128)

DEEPSEEK = (
    _deepseek(
        _tiny("tiny-mistral4"),
        _TINY,
        YarnScaling(4.0, 16, mscale=1.0, mscale_all_dim=1.0),
        **_experts(8, 4, 64, 1, 0),
        query_temperature_beta=0.1,
    ),
    _deepseek(
        llama("mistral-small-4", 36, 4096, 12288, 32, 32, 131072, 1048576),
        _MISTRAL,
        YarnScaling(128.0, 8192, mscale=1.0, mscale_all_dim=1.0),
        **_experts(128, 4, 2048, 1, 0),
        query_temperature_beta=0.1,
    ),
    _deepseek(
        _tiny("tiny-deepseek-v3"),
        _TINY,
        YarnScaling(4.0, 256, mscale=1.0, mscale_all_dim=1.0),
        **_experts(8, 4, 64, 1, 1),
        **_groups(4, 2),
        **_SIGMOID,
        moe_router_topk_scaling_factor=2.5,
        mtp_num_layers=1,
    ),
    _deepseek(
        _tiny("tiny-deepseek-v2"),
        dataclasses.replace(_TINY, q_lora_rank=None),
        YarnScaling(4.0, 256, mscale=0.707, mscale_all_dim=0.707),
        **_experts(8, 2, 64, 2, 1),
        **_SOFTMAX,
    ),
    _deepseek(
        llama("deepseek-v2-lite", 27, 2048, 10944, 16, 16, 102400, 163840),
        _LITE,
        YarnScaling(40.0, 4096, mscale=0.707, mscale_all_dim=0.707),
        **_experts(64, 6, 1408, 2, 1),
        **_SOFTMAX,
    ),
    _deepseek(
        llama("deepseek-v2", 60, 5120, 12288, 128, 128, 102400, 163840),
        _LARGE,
        YarnScaling(40.0, 4096, mscale=0.707, mscale_all_dim=0.707),
        **_experts(160, 6, 1536, 2, 1),
        **_groups(8, 3),
        moe_router_group_score_topk=1,
        moe_router_topk_scaling_factor=16.0,
        **_SOFTMAX,
    ),
    _deepseek(
        llama("deepseek-v3", 61, 7168, 18432, 128, 128, 129280, 163840),
        _LARGE,
        YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=1.0),
        **_experts(256, 8, 2048, 1, 3),
        **_groups(8, 4),
        **_SIGMOID,
        moe_router_topk_scaling_factor=2.5,
        mtp_num_layers=1,
    ),
    _deepseek(
        _tiny("tiny-deepseek-v32"),
        _TINY,
        YarnScaling(4.0, 256, mscale=1.0, mscale_all_dim=1.0),
        **_experts(8, 4, 64, 1, 1),
        **_groups(4, 2),
        **_SIGMOID,
        moe_router_topk_scaling_factor=2.5,
        mtp_num_layers=1,
        sparse_attention=SparseAttention(4, 32, 16),
    ),
    _deepseek(
        llama("deepseek-v3.2", 61, 7168, 18432, 128, 128, 129280, 163840),
        _LARGE,
        YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=1.0),
        **_experts(256, 8, 2048, 1, 3),
        **_groups(8, 4),
        **_SIGMOID,
        moe_router_topk_scaling_factor=2.5,
        mtp_num_layers=1,
        sparse_attention=SparseAttention(),
    ),
    dataclasses.replace(
        _deepseek(
            _tiny("tiny-glm-5"),
            _TINY,
            None,
            **_experts(8, 4, 64, 1, 1),
            **_SIGMOID,
            moe_router_topk_scaling_factor=2.5,
            mtp_num_layers=1,
            sparse_attention=SparseAttention(4, 32, 16, dsa_indexer_rope_interleaved=True),
        ),
        norm_epsilon=1e-5,
    ),
    dataclasses.replace(
        _deepseek(
            llama("glm-5", 78, 6144, 12288, 64, 64, 154880, 202752),
            LatentAttention(q_lora_rank=2048, kv_lora_rank=512, qk_head_dim=192, qk_pos_emb_head_dim=64, v_head_dim=256),
            None,
            **_experts(256, 8, 2048, 1, 3),
            **_SIGMOID,
            rotary_base=1000000.0,
            moe_router_topk_scaling_factor=2.5,
            mtp_num_layers=1,
            sparse_attention=SparseAttention(32, dsa_indexer_rope_interleaved=True),
        ),
        norm_epsilon=1e-5,
    ),
    _deepseek(
        llama("kimi-k2", 61, 7168, 18432, 64, 64, 163840, 131072),
        _LARGE,
        # Its config.json has a ramp without width: channels are kept, or divided.
        YarnScaling(32.0, 4096, beta_fast=1.0, mscale=1.0, mscale_all_dim=1.0),
        **_experts(384, 8, 2048, 1, 1),
        **_SIGMOID,
        rotary_base=50000.0,
        moe_router_topk_scaling_factor=2.827,
        model_type="kimi_k2",
    ),
    _deepseek(
        _tiny("tiny-glm4-moe-lite"),
        _TINY,
        None,
        **_experts(8, 2, 64, 1, 1),
        **_SIGMOID,
        moe_router_topk_scaling_factor=1.8,
        model_type="glm4_moe_lite",
    ),
    dataclasses.replace(
        _deepseek(
            dataclasses.replace(
                llama("glm-4.7-flash", 47, 2048, 10240, 16, 16, 154880, 202752), num_attention_heads=20, num_query_groups=20
            ),
            LatentAttention(q_lora_rank=768, kv_lora_rank=512, qk_head_dim=192, qk_pos_emb_head_dim=64, v_head_dim=256),
            None,
            **_experts(64, 4, 1536, 1, 1),
            **_SIGMOID,
            rotary_base=1000000.0,
            moe_router_topk_scaling_factor=1.8,
            mtp_num_layers=1,
            model_type="glm4_moe_lite",
        ),
        norm_epsilon=1e-5,
    ),
)
