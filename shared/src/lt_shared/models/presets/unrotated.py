"""Models with layers that rotate nothing: SmolLM3, and EXAONE 4 with windows; and tiny ones."""

import dataclasses
from typing import Any

from lt_shared.models.architecture import Architecture, RopeScaling
from lt_shared.models.presets.dense import TINY, llama


def _exaone4(model: Architecture, window: int | None) -> Architecture:
    every = 4 if window else None
    return dataclasses.replace(
        model, norm_placement="post", qk_layernorm=True, sliding_window=window, window_attn_skip_freq=every, no_rope_freq=every
    )


_SCALED: dict[str, Any] = {"rotary_base": 1000000.0, "rope_scaling": RopeScaling(factor=16.0)}

UNROTATED = (
    dataclasses.replace(TINY, name="tiny-smollm3", no_rope_freq=4),
    dataclasses.replace(
        llama("smollm3-3b", 36, 2048, 11008, 16, 4, 128256, 65536),
        tie_embeddings=True,
        norm_epsilon=1e-6,
        rotary_base=5000000.0,
        no_rope_freq=4,
    ),
    _exaone4(dataclasses.replace(TINY, name="tiny-exaone4", tie_embeddings=False), 256),
    _exaone4(
        dataclasses.replace(llama("exaone-4.0-1.2b", 30, 2048, 4096, 32, 8, 102400, 65536), tie_embeddings=True, **_SCALED), None
    ),
    _exaone4(dataclasses.replace(llama("exaone-4.0-32b", 64, 5120, 27392, 40, 8, 102400, 131072), **_SCALED), 4096),
)
