"""OpenAI's gpt-oss: windows of 128 on every other layer, sinks, biases everywhere, YaRN from 4096 to 131072 positions.

The published config.json says 0.9 for the weight of the balancing loss, which was the default of its class in transformers 4.55.
transformers 5 has 0.001, as these presets.
"""

import dataclasses

from lt_shared.models.architecture import Architecture
from lt_shared.models.presets.dense import TINY
from lt_shared.models.rope_scaling import YarnScaling

_TINY = dataclasses.replace(
    TINY,
    name="tiny-gpt-oss",
    ffn_hidden_size=64,
    rotary_base=150000.0,
    rope_scaling=YarnScaling(32.0, 32, truncate=False),
    tie_embeddings=False,
    sliding_window=16,
    window_attn_skip_freq=2,
    attention_sinks=True,
    add_bias_linear=True,
    activation="clamped_swiglu",
    num_experts=8,
    moe_router_topk=2,
    moe_aux_loss_coeff=0.001,
)


def _gpt_oss(name: str, layers: int, experts: int) -> Architecture:
    return dataclasses.replace(
        _TINY,
        name=name,
        num_layers=layers,
        hidden_size=2880,
        ffn_hidden_size=2880,
        num_attention_heads=64,
        num_query_groups=8,
        kv_channels=64,
        vocab_size=201088,
        max_position_embeddings=131072,
        rope_scaling=YarnScaling(32.0, 4096, truncate=False),
        sliding_window=128,
        num_experts=experts,
        moe_router_topk=4,
    )


GPT_OSS = (_TINY, _gpt_oss("gpt-oss-20b", 24, 32), _gpt_oss("gpt-oss-120b", 36, 128))
