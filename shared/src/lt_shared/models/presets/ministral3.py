"""Ministral 3, its language model: Mistral with YaRN, and queries whose temperature grows with the position."""

import dataclasses

from lt_shared.models.architecture import Architecture
from lt_shared.models.presets.dense import TINY, llama
from lt_shared.models.rope_scaling import YarnScaling


def _ministral(model: Architecture, rotary_base: float, original_positions: int, tied: bool = False) -> Architecture:
    return dataclasses.replace(
        model,
        kv_channels=128,
        rotary_base=rotary_base,
        rope_scaling=YarnScaling(16.0, original_positions, mscale=1.0, mscale_all_dim=1.0),
        query_temperature_beta=0.1,
        tie_embeddings=tied,
    )


MINISTRAL3 = (
    # Samples of 64 tokens have four temperatures.
    _ministral(dataclasses.replace(TINY, name="tiny-ministral3", max_position_embeddings=256), 10000.0, 16),
    _ministral(llama("ministral3-3b", 26, 3072, 9216, 32, 8, 131072, 262144), 1000000.0, 16384, tied=True),
    _ministral(llama("ministral3-8b", 34, 4096, 14336, 32, 8, 131072, 262144), 1000000.0, 16384),
    _ministral(llama("ministral3-14b", 40, 5120, 16384, 32, 8, 131072, 262144), 1000000000.0, 16384),
)
