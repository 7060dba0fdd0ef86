"""Nemotron-H, Nemotron Nano 2 and Nemotron 3 Nano: layers with a single part, mostly Mamba-2; and tiny ones."""

import dataclasses

from lt_shared.models.architecture import Architecture, Mamba
from lt_shared.models.presets.dense import TINY, llama


def _nemotron_h(model: Architecture, pattern: str, heads: int, head: int, kv_channels: int = 128) -> Architecture:
    """`pattern` has Megatron's symbols, `heads` are Mamba heads of `head` channels."""
    mamba = Mamba(_layers(pattern, "M"), mamba_num_heads=heads, mamba_head_dim=head, least_step=0.001)
    return dataclasses.replace(
        model,
        num_layers=len(pattern),
        kv_channels=kv_channels,
        tie_embeddings=False,
        activation="relu2",
        gated_linear_unit=False,
        no_rope_freq=1,
        mamba=mamba,
        mlp_layers=_layers(pattern, "-E"),
    )


def _layers(pattern: str, symbols: str) -> tuple[int, ...]:
    return tuple(layer for layer, symbol in enumerate(pattern) if symbol in symbols)


def _mixture(model: Architecture, experts: int, chosen: int, width: int, scale: float) -> Architecture:
    return dataclasses.replace(
        model,
        num_experts=experts,
        moe_router_topk=chosen,
        moe_ffn_hidden_size=width,
        moe_shared_expert_intermediate_size=2 * width,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_router_topk_scaling_factor=scale,
    )


def _tiny(name: str, pattern: str) -> Architecture:
    model = _nemotron_h(dataclasses.replace(TINY, name=name), pattern, heads=8, head=16, kv_channels=32)
    assert model.mamba is not None
    return dataclasses.replace(model, mamba=dataclasses.replace(model.mamba, mamba_state_dim=32, mamba_num_groups=2))


def _sizes(name: str, hidden: int, ffn: int, heads: int, groups: int, positions: int) -> Architecture:
    """Heads of 128 channels may be wider together than the residual stream. `_nemotron_h` replaces the number of layers."""
    return dataclasses.replace(llama(name, 1, 128 * heads, ffn, heads, groups, 131072, positions), hidden_size=hidden)


NEMOTRON_H = (
    _tiny("tiny-nemotron-h", "M-M*M-"),
    _mixture(_tiny("tiny-nemotron-h-moe", "MEM*ME"), 8, 2, 64, 2.5),
    _nemotron_h(_sizes("nemotron-h-8b", 4096, 21504, 32, 8, 8192), f"M-M-M-M*{'-M-M-M-M-M*' * 3}-M-M-M-M-M-", 128, 64),
    _nemotron_h(
        _sizes("nemotron-nano-9b-v2", 4480, 15680, 40, 8, 131072),
        "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        128,
        80,
    ),
    _nemotron_h(
        _sizes("nemotron-nano-12b-v2", 5120, 20480, 40, 8, 131072),
        f"M-M-M-M*{'-M-M-M-M*' * 5}-M-M-M-M-",
        128,
        80,
    ),
    _mixture(
        _nemotron_h(
            _sizes("nemotron-3-nano-30b-a3b", 2688, 1856, 32, 2, 262144),
            f"MEMEM*{'EMEMEM*' * 4}EMEMEMEM*EMEMEMEME",
            64,
            64,
        ),
        128,
        6,
        1856,
        2.5,
    ),
)
