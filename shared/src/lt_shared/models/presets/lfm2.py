"""LFM2: short convolutions in most layers; and tiny ones."""

import dataclasses

from lt_shared.models.architecture import Architecture, ShortConvolution
from lt_shared.models.presets.dense import TINY, llama


def _lfm2(model: Architecture, name: str, attention: tuple[int, ...]) -> Architecture:
    """`attention` are the layers without a convolution."""
    return dataclasses.replace(
        model,
        name=name,
        tie_embeddings=True,
        qk_layernorm=True,
        rotary_base=1000000.0,
        short_convolution=ShortConvolution(tuple(layer for layer in range(model.num_layers) if layer not in attention)),
    )


def _mixture(model: Architecture, experts: int, chosen: int, width: int) -> Architecture:
    return dataclasses.replace(
        model,
        num_experts=experts,
        moe_router_topk=chosen,
        moe_ffn_hidden_size=width,
        moe_first_dense_layers=2,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
    )


_ATTENTION = (2, 5, 8, 10, 12, 14)
_LARGE = _lfm2(llama("", 24, 2048, 7168, 32, 8, 65536, 128000), "lfm2-8b-a1b", (2, 6, 10, 14, 18, 21))
LFM2 = (
    _lfm2(TINY, "tiny-lfm2", (2,)),
    _mixture(_lfm2(TINY, "tiny-lfm2-moe", (2,)), 8, 2, 64),
    _lfm2(llama("", 16, 1024, 4608, 16, 8, 65536, 128000), "lfm2-350m", _ATTENTION),
    _lfm2(llama("", 16, 1536, 6912, 24, 8, 65536, 128000), "lfm2-700m", _ATTENTION),
    _lfm2(llama("", 16, 2048, 8192, 32, 8, 65536, 128000), "lfm2-1.2b", _ATTENTION),
    _mixture(_LARGE, 32, 4, 1792),
)
