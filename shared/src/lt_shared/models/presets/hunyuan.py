"""Hunyuan: Qwen3 with its norms of queries and keys behind the rotation. Its rotary base is raised for long texts."""

import dataclasses

from lt_shared.models.architecture import Architecture
from lt_shared.models.presets.dense import TINY, llama


def _dense(model: Architecture) -> Architecture:
    return dataclasses.replace(model, tie_embeddings=True, qk_layernorm=True, qk_layernorm_after_rope=True)


def _moe(model: Architecture, experts: int, chosen: int) -> Architecture:
    width = model.ffn_hidden_size
    return dataclasses.replace(
        _dense(model), num_experts=experts, moe_router_topk=chosen, moe_shared_expert_intermediate_size=width
    )


# The base of 10,000 times alpha, 1,000, to the power of 128 / 126.
_RAISED_BASE = 10000.0 * 1000.0 ** (128 / 126)

HUNYUAN = (
    _dense(dataclasses.replace(TINY, name="tiny-hunyuan")),
    _dense(dataclasses.replace(llama("hunyuan-1.8b", 32, 2048, 6144, 16, 4, 120818, 262144), rotary_base=_RAISED_BASE)),
    _moe(dataclasses.replace(TINY, name="tiny-hunyuan-moe", ffn_hidden_size=128), 8, 2),
    _moe(dataclasses.replace(llama("hunyuan-a13b", 32, 4096, 3072, 32, 8, 128167, 32768), rotary_base=_RAISED_BASE), 64, 8),
    _dense(dataclasses.replace(llama("hunyuan-7b", 32, 4096, 14336, 32, 8, 128167, 262144), rotary_base=_RAISED_BASE)),
)
