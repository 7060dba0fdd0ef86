"""Bamba, and a tiny one."""

import dataclasses

from lt_shared.models.architecture import Architecture, Mamba
from lt_shared.models.presets.dense import TINY, llama


def mamba_without(attention: tuple[int, ...], layers: int, heads: int, head: int = 64, state: int = 128) -> Mamba:
    """Mamba-2 with one group of heads in all layers but those with attention."""
    others = tuple(layer for layer in range(layers) if layer not in attention)
    return Mamba(others, mamba_num_heads=heads, mamba_head_dim=head, mamba_state_dim=state, mamba_num_groups=1)


def _bamba(model: Architecture, mamba: Mamba) -> Architecture:
    return dataclasses.replace(model, rotary_percent=0.5, tie_embeddings=False, mamba=mamba)


BAMBA = (
    _bamba(dataclasses.replace(TINY, name="tiny-bamba"), mamba_without((2,), TINY.num_layers, 16, 16, 32)),
    _bamba(llama("bamba-9b", 32, 4096, 14336, 32, 8, 128256, 262144), mamba_without((9, 18, 27), 32, 128)),
)
