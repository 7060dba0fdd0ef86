"""Apertus: Qwen3's attention, and an MLP without gates with xIELU."""

import dataclasses

from lt_shared.models.architecture import Architecture, RopeScaling
from lt_shared.models.presets.dense import TINY, llama


def _apertus(model: Architecture) -> Architecture:
    return dataclasses.replace(
        model,
        activation="xielu",
        gated_linear_unit=False,
        qk_layernorm=True,
        rotary_base=12000000.0,
        rope_scaling=RopeScaling(factor=8.0),
    )


APERTUS = (
    _apertus(dataclasses.replace(TINY, name="tiny-apertus", tie_embeddings=False)),
    _apertus(llama("apertus-8b", 32, 4096, 21504, 32, 8, 131072, 65536)),
    _apertus(llama("apertus-70b", 80, 8192, 43008, 64, 8, 131072, 65536)),
)
