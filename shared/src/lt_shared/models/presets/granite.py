"""Granite 3: tied embeddings, and multipliers in four places. Versions 3.1 and later have other rotary bases.

Granite 4 has the same layers under other names in its files, and may rotate nothing; most layers of its hybrids have Mamba-2."""

import dataclasses

from lt_shared.models.architecture import Architecture
from lt_shared.models.presets.bamba import mamba_without
from lt_shared.models.presets.dense import TINY, llama


def _granite(
    name: str, hidden: int, ffn: int, softmax_scale: float, logits_scaling: float, rotary: float, positions: int
) -> Architecture:
    return dataclasses.replace(
        llama(name, 40, hidden, ffn, 32, 8, 49155, positions),
        rotary_base=rotary,
        tie_embeddings=True,
        softmax_scale=softmax_scale,
        logits_scaling=logits_scaling,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
    )


def _mixture(name: str, layers: int, hidden: int, experts: int) -> Architecture:
    """Granite 3.1 with heads of 64 channels, and experts of 512 in every layer, 8 per token."""
    return dataclasses.replace(
        _granite(name, hidden, 512, 0.015625, 6.0, 1500000.0, 131072),
        num_layers=layers,
        num_attention_heads=hidden // 64,
        kv_channels=64,
        num_experts=experts,
        moe_router_topk=8,
        moe_aux_loss_coeff=0.001,
        model_type="granitemoe",
    )


def _hybrid(name: str, hidden: int, ffn: int, heads: tuple[int, int], scores: float, logits: float) -> Architecture:
    """Granite 4 with Mamba-2 in all layers but four, attention that rotates nothing, and `heads` of queries and of keys."""
    queries, keys = heads
    return dataclasses.replace(
        _granite(name, hidden, ffn, scores, logits, 10000.0, 131072),
        vocab_size=100352,
        num_attention_heads=queries,
        num_query_groups=keys,
        kv_channels=hidden // queries,
        no_rope_freq=1,
        mamba=mamba_without((5, 15, 25, 35), 40, 2 * hidden // 64),
        model_type="granitemoehybrid",
    )


def _experts(model: Architecture, experts: int, chosen: int) -> Architecture:
    return dataclasses.replace(
        model,
        num_experts=experts,
        moe_router_topk=chosen,
        moe_shared_expert_intermediate_size=2 * model.ffn_hidden_size,
        moe_aux_loss_coeff=0.001,
    )


_TINY = dataclasses.replace(
    TINY, name="tiny-granite", softmax_scale=0.0625, logits_scaling=8.0, embedding_multiplier=12.0, residual_multiplier=0.22
)

GRANITE = (
    _TINY,
    _granite("granite-3.0-2b", 2048, 8192, 0.015625, 8.0, 10000.0, 4096),
    _granite("granite-3.0-8b", 4096, 12800, 0.0078125, 16.0, 10000.0, 4096),
    _granite("granite-3.1-2b", 2048, 8192, 0.015625, 8.0, 5000000.0, 131072),
    _granite("granite-3.1-8b", 4096, 12800, 0.0078125, 16.0, 10000000.0, 131072),
    _mixture("granite-3.1-1b-a400m", 24, 1024, 32),
    _mixture("granite-3.1-3b-a800m", 32, 1536, 40),
    dataclasses.replace(_TINY, name="tiny-granitemoe", num_experts=4, ffn_hidden_size=128, model_type="granitemoe"),
    dataclasses.replace(
        _TINY,
        name="tiny-granitemoeshared",
        num_experts=4,
        ffn_hidden_size=128,
        moe_shared_expert_intermediate_size=96,
        model_type="granitemoeshared",
    ),
    dataclasses.replace(_TINY, name="tiny-granite4", model_type="granitemoehybrid", no_rope_freq=1),
    dataclasses.replace(
        _granite("granite-4.0-micro", 2560, 8192, 0.015625, 10.0, 10000000.0, 131072),
        vocab_size=100352,
        num_attention_heads=40,
        kv_channels=64,
        model_type="granitemoehybrid",
    ),
    dataclasses.replace(
        _TINY, name="tiny-granite4-h", model_type="granitemoehybrid", no_rope_freq=1, mamba=mamba_without((2,), 4, 16, 16, 32)
    ),
    _hybrid("granite-4.0-h-micro", 2048, 8192, (32, 8), 0.015625, 8.0),
    _experts(_hybrid("granite-4.0-h-tiny", 1536, 512, (12, 4), 0.0078125, 6.0), 64, 6),
    _experts(_hybrid("granite-4.0-h-small", 4096, 768, (32, 8), 0.0078125, 16.0), 72, 10),
)
