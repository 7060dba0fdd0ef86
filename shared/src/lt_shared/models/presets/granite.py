"""Granite 3: tied embeddings, and multipliers in four places. Versions 3.1 and later have other rotary bases."""

import dataclasses

from lt_shared.models.architecture import Architecture
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


GRANITE = (
    dataclasses.replace(
        TINY, name="tiny-granite", softmax_scale=0.0625, logits_scaling=8.0, embedding_multiplier=12.0, residual_multiplier=0.22
    ),
    _granite("granite-3.0-2b", 2048, 8192, 0.015625, 8.0, 10000.0, 4096),
    _granite("granite-3.0-8b", 4096, 12800, 0.0078125, 16.0, 10000.0, 4096),
    _granite("granite-3.1-2b", 2048, 8192, 0.015625, 8.0, 5000000.0, 131072),
    _granite("granite-3.1-8b", 4096, 12800, 0.0078125, 16.0, 10000000.0, 131072),
)
