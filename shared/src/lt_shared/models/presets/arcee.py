"""Models whose MLP has no gate: Nemotron-4 (arXiv:2402.16819, arXiv:2406.11704) and StarCoder 2; and tiny ones, also of Arcee."""

import dataclasses

from lt_shared.models.architecture import Architecture
from lt_shared.models.presets.dense import TINY, llama

_TINY = dataclasses.replace(TINY, tie_embeddings=False, activation="relu2", gated_linear_unit=False)


def _nemotron(model: Architecture) -> Architecture:
    return dataclasses.replace(
        model,
        rotary_percent=0.5,
        activation="relu2",
        gated_linear_unit=False,
        normalization="LayerNorm",
        layernorm_zero_centered_gamma=True,
    )


def _starcoder2(model: Architecture, window: int, base: float) -> Architecture:
    return dataclasses.replace(
        model,
        tie_embeddings=True,
        rotary_base=base,
        sliding_window=window,
        activation="gelu_tanh",
        gated_linear_unit=False,
        normalization="LayerNorm",
        add_bias_linear=True,
    )


ARCEE = (
    dataclasses.replace(_TINY, name="tiny-arcee"),
    _nemotron(dataclasses.replace(_TINY, name="tiny-nemotron")),
    _starcoder2(dataclasses.replace(TINY, name="tiny-starcoder2"), 256, 10000.0),
    _nemotron(llama("nemotron-4-15b", 32, 6144, 24576, 48, 8, 256000, 4096)),
    _nemotron(llama("nemotron-4-340b", 96, 18432, 73728, 96, 8, 256000, 4096)),
    _starcoder2(llama("starcoder2-3b", 30, 3072, 12288, 24, 2, 49152, 16384), 4096, 999999.4420358813),
    _starcoder2(llama("starcoder2-7b", 32, 4608, 18432, 36, 4, 49152, 16384), 4096, 1000000.0),
    dataclasses.replace(
        _starcoder2(llama("starcoder2-15b", 40, 6144, 24576, 48, 4, 49152, 16384), 4096, 100000.0), tie_embeddings=False
    ),
)
