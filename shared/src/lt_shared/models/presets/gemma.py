"""Gemma, Gemma 2 and the text models of Gemma 3: tied embeddings, and from Gemma 2 on windows and norms behind the layers.

The vocabulary of Gemma 3 from 4B on has 64 rows more, for images. Gemma 2 27B and Gemma 3 27B scale their scores by a head's
share of the hidden size, not by the head size.
"""

import dataclasses

from lt_shared.models.architecture import Architecture
from lt_shared.models.presets.dense import TINY, llama
from lt_shared.models.rope_scaling import LinearScaling


def _gemma(model: Architecture, head: int) -> Architecture:
    model = dataclasses.replace(model, kv_channels=head)
    return dataclasses.replace(_of_gemma(model), norm_placement="pre", softmax_scale=None)


def _gemma2(name: str, layers: int, hidden: int, ffn: int, heads: int, groups: int, head: int) -> Architecture:
    model = llama(name, layers, hidden, ffn, heads, groups, 256000, 8192)
    return _of_gemma2(dataclasses.replace(model, kv_channels=head), 4096)


def _of_gemma2(model: Architecture, window: int) -> Architecture:
    return dataclasses.replace(
        _of_gemma(model),
        sliding_window=window,
        window_attn_skip_freq=2,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
    )


def _gemma3(name: str, layers: int, hidden: int, ffn: int, heads: int, groups: int, window: int, positions: int) -> Architecture:
    """Models with a vision tower beside them, of 131,072 positions, have a scaling in the layers without a window."""
    seeing = positions > 32768
    model = llama(name, layers, hidden, ffn, heads, groups, 262208 if seeing else 262144, positions)
    head = 128 if hidden == 5376 else 256
    return _of_gemma3(dataclasses.replace(model, kv_channels=head), window, LinearScaling(8.0) if seeing else None)


def _of_gemma3(model: Architecture, window: int, scaling: LinearScaling | None) -> Architecture:
    return dataclasses.replace(
        _of_gemma(model),
        sliding_window=window,
        window_attn_skip_freq=6,
        rotary_base=1000000.0,
        rope_scaling=scaling,
        local_rotary_base=10000.0,
        qk_layernorm=True,
    )


def _of_gemma(model: Architecture) -> Architecture:
    share = model.hidden_size // model.num_attention_heads
    return dataclasses.replace(
        model,
        norm_epsilon=1e-6,
        tie_embeddings=True,
        activation="gelu_tanh",
        norm_placement="both",
        layernorm_zero_centered_gamma=True,
        embedding_multiplier=model.hidden_size**0.5,
        softmax_scale=share**-0.5 if model.kv_channels == 128 else None,
    )


_TINY = dataclasses.replace(TINY, num_layers=6)

GEMMA = (
    _gemma(dataclasses.replace(_TINY, name="tiny-gemma", num_layers=4), 64),
    _gemma(llama("gemma-2b", 18, 2048, 16384, 8, 1, 256000, 8192), 256),
    _gemma(llama("gemma-7b", 28, 3072, 24576, 16, 16, 256000, 8192), 256),
    _of_gemma2(dataclasses.replace(_TINY, name="tiny-gemma2", num_layers=4), 256),
    _of_gemma3(dataclasses.replace(_TINY, name="tiny-gemma3"), 256, LinearScaling(8.0)),
    _gemma2("gemma2-2b", 26, 2304, 9216, 8, 4, 256),
    _gemma2("gemma2-9b", 42, 3584, 14336, 16, 8, 256),
    _gemma2("gemma2-27b", 46, 4608, 36864, 32, 16, 128),
    _gemma3("gemma3-270m", 18, 640, 2048, 4, 1, 512, 32768),
    _gemma3("gemma3-1b", 26, 1152, 6912, 4, 1, 512, 32768),
    _gemma3("gemma3-4b", 34, 2560, 10240, 8, 4, 1024, 131072),
    _gemma3("gemma3-12b", 48, 3840, 15360, 16, 8, 1024, 131072),
    _gemma3("gemma3-27b", 62, 5376, 21504, 32, 16, 1024, 131072),
)
