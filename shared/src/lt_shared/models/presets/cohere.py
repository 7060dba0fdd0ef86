"""Command R7B and Command A: attention and MLP in parallel, windows on three of four layers, a fourth that rotates nothing."""

import dataclasses

from lt_shared.models.architecture import Architecture
from lt_shared.models.presets.dense import TINY, llama


def _cohere(model: Architecture, logits_scaling: float) -> Architecture:
    return dataclasses.replace(
        model,
        tie_embeddings=True,
        normalization="LayerNorm",
        layernorm_parameters="weight",
        parallel_layers=True,
        logits_scaling=logits_scaling,
    )


def _cohere2(model: Architecture, window: int) -> Architecture:
    return dataclasses.replace(_cohere(model, 4.0), sliding_window=window, window_attn_skip_freq=4, no_rope_freq=4)


_ROTARY_BASE = 50000.0

COHERE = (
    _cohere(dataclasses.replace(TINY, name="tiny-cohere"), 16.0),
    _cohere2(dataclasses.replace(TINY, name="tiny-cohere2"), 256),
    _cohere2(dataclasses.replace(llama("command-r7b", 32, 4096, 14336, 32, 8, 256000, 132096), rotary_base=_ROTARY_BASE), 4096),
    _cohere2(dataclasses.replace(llama("command-a", 64, 12288, 36864, 96, 8, 256000, 131072), rotary_base=_ROTARY_BASE), 4096),
)
