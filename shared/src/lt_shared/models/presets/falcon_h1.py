"""Falcon-H1, and tiny ones: with a norm of Mamba's output, and without."""

import dataclasses
from typing import Any

from lt_shared.models.architecture import Architecture, Mamba, SideBySide
from lt_shared.models.presets.dense import TINY, llama

# The embedding's factor, and Mamba's factors of gates, values, B, C and time steps, are the same in nearly all sizes.
_EMBEDDING = 5.656854249492381
_PARTS = (0.3535533905932738, 0.25, 0.1767766952966369, 0.5, 0.3535533905932738)


def _falcon_h1(model: Architecture, heads: int, head: int, state: int, output: float, factors: SideBySide) -> Architecture:
    """`heads` are Mamba heads of `head` channels, each with `state` numbers. Logits are multiplied by `output`."""
    layers = tuple(range(model.num_layers))
    mamba = Mamba(layers, mamba_num_heads=heads, mamba_head_dim=head, mamba_state_dim=state, mamba_num_groups=1)
    return dataclasses.replace(
        model,
        rotary_base=1e11,
        tie_embeddings=False,
        embedding_multiplier=_EMBEDDING,
        logits_scaling=1 / output,
        mamba=mamba,
        side_by_side=factors,
    )


def _with(model: Architecture, **fields: Any) -> Architecture:
    assert model.mamba is not None
    return dataclasses.replace(model, mamba=dataclasses.replace(model.mamba, **fields))


def _sizes(
    name: str, layers: int, hidden: int, ffn: int, heads: int, groups: int, vocabulary: int, positions: int
) -> Architecture:
    model = llama(name, layers, 128 * heads, ffn, heads, groups, vocabulary, positions)
    return dataclasses.replace(model, hidden_size=hidden)


_SMALL = dataclasses.replace(llama("falcon-h1-0.5b", 36, 1024, 2048, 8, 2, 32784, 16384), kv_channels=64)
_SMALL_PARTS = (0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738)
_TINY_FACTORS = SideBySide(1.25, (0.5, 0.25, 0.75, 1.5, 0.875), 0.375, 0.9375, 0.390625, 0.625, 0.75, 0.5859375)
_TINY = _falcon_h1(dataclasses.replace(TINY, name="tiny-falcon-h1"), 8, 32, 32, 0.375, _TINY_FACTORS)
FALCON_H1 = (
    _with(_TINY, has_norm=False, mamba_num_groups=2),
    _with(dataclasses.replace(_TINY, name="tiny-falcon-h1-norm"), mamba_num_groups=2),
    _with(
        _falcon_h1(
            _SMALL,
            *(24, 64, 128, 0.0390625),
            SideBySide(1.25, _SMALL_PARTS, 0.23570226039551587, 1.0, 0.39062499999999994, 0.9375, 0.8838834764831844, 0.5859375),
        ),
        has_norm=False,
    ),
    _falcon_h1(
        _sizes("falcon-h1-1.5b-deep", 66, 1280, 3072, 6, 2, 65537, 131072),
        *(24, 64, 256, 0.03125),
        SideBySide(1.0, _PARTS, 0.23570226039551587, 1.0, 0.17677669529663687, 0.5, 0.7071067811865476, 0.3125),
    ),
    _falcon_h1(
        _sizes("falcon-h1-7b", 44, 3072, 12288, 12, 2, 130049, 262144),
        *(24, 128, 256, 0.013020833333333334),
        SideBySide(
            *(0.4166666666666667, _PARTS, 0.11785113019775793, 1.0, 0.030690398488999456, 0.10416666666666667),
            *(0.2946278254943948, 0.032552083333333336),
        ),
    ),
    _with(
        _falcon_h1(
            _sizes("falcon-h1-34b", 72, 5120, 21504, 20, 4, 261120, 262144),
            *(32, 128, 256, 0.0078125),
            SideBySide(
                *(0.25, _PARTS, 0.08838834764831845, 1.0, 0.011048543456039804, 0.0375),
                *(0.1767766952966369, 0.011160714285714284),
            ),
        ),
        mamba_num_groups=2,
    ),
)
