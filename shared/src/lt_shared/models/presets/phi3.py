"""Phi-3, Phi-3.5 and Phi-4.

Of the models for 128k positions, Microsoft's divisors of LongRoPE are only in their config.json: name that file in place of a
preset. `tiny-phi3` has made-up ones.
"""

import dataclasses

from lt_shared.models.architecture import Architecture
from lt_shared.models.presets.dense import TINY, llama
from lt_shared.models.rope_scaling import LongRopeScaling


def _phi3(
    name: str, layers: int, hidden: int, ffn: int, heads: int, groups: int, vocab: int, positions: int, window: int | None
) -> Architecture:
    base = llama(name, layers, hidden, ffn, heads, groups, vocab, positions)
    return dataclasses.replace(base, sliding_window=window, model_type="phi3")


_SCALING = LongRopeScaling(
    short_factor=tuple(1.0 + 0.05 * channel for channel in range(12)),
    long_factor=tuple(1.0 + channel**1.5 for channel in range(12)),
    original_max_position_embeddings=32,
)

PHI3 = (
    dataclasses.replace(TINY, name="tiny-phi3", rope_scaling=_SCALING, rotary_percent=0.75, model_type="phi3"),
    _phi3("phi3-mini-4k", 32, 3072, 8192, 32, 32, 32064, 4096, 2047),
    _phi3("phi3-medium-4k", 40, 5120, 17920, 40, 10, 32064, 4096, 2047),
    dataclasses.replace(_phi3("phi4", 40, 5120, 17920, 40, 10, 100352, 16384, None), rotary_base=250000.0),
)
