"""dots.llm1: 128 experts of which 6 are chosen, two shared ones, one dense layer; and a tiny one."""

import dataclasses

from lt_shared.models.architecture import Architecture
from lt_shared.models.presets.dense import TINY, llama


def _dots1(base: Architecture, experts: int, chosen: int, width: int) -> Architecture:
    return dataclasses.replace(
        base,
        qk_layernorm=True,
        num_experts=experts,
        moe_router_topk=chosen,
        moe_ffn_hidden_size=width,
        moe_shared_expert_intermediate_size=2 * width,
        moe_first_dense_layers=1,
        moe_router_topk_scaling_factor=2.5,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        model_type="dots1",
    )


DOTS1 = (
    _dots1(dataclasses.replace(TINY, name="tiny-dots1", tie_embeddings=False), 8, 2, 64),
    _dots1(dataclasses.replace(llama("dots.llm1", 62, 4096, 10944, 32, 32, 152064, 32768), rotary_base=10000000.0), 128, 6, 1408),
)
