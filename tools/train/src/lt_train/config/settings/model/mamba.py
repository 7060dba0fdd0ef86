"""Mamba-2 layers (Nemotron-H): megatron-core's options for their sizes, and the pattern of a model whose layers have one part."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig
from lt_shared.models import hybrid_pattern
from lt_shared.models.architecture import Architecture, Mamba
from lt_shared.models.architecture.mamba import SIZES
from lt_shared.models.architecture.sizes import ATTENTION, MAMBA, NO_MIXER
from lt_shared.models.hybrid_pattern import Pattern

PATTERN = "hybrid_layer_pattern"
FLAG = "--hybrid-layer-pattern"
POSITIVE = click.IntRange(min=1)

OPTIONS = console.section(
    "Mamba-2 layers",
    click.option(
        FLAG,
        metavar="PATTERN",
        help="Give every layer one part: M is Mamba-2, * attention, - an MLP, E experts. M-M*- has six layers.",
    ),
    click.option(
        "--mamba-num-heads", type=POSITIVE, help="Set the number of heads; by default they are twice the hidden size wide."
    ),
    click.option("--mamba-head-dim", type=POSITIVE, help="Set the size of a head; by default 64."),
    click.option("--mamba-state-dim", type=POSITIVE, help="Set the size of a head's state per channel; by default 128."),
    click.option("--mamba-num-groups", type=POSITIVE, help="Set the number of groups of heads; by default 8."),
)


def count_layers(options: Mapping[str, Any]) -> int | None:
    """Return the number of layers in the pattern, None without one. Raises BadConfig for a pattern that no model has."""
    pattern = _pattern(options)
    return None if pattern is None else len(pattern.blocks)


def changed_fields(options: dict[str, Any], base: Architecture, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the options change. Raises BadConfig."""
    requested = {name: options[name] for name in SIZES if options[name] is not None}
    pattern = _pattern(options)
    if pattern is None:
        mamba = changes.get("mamba", base.mamba)
        if requested and mamba is None:
            raise BadConfig(f"--{next(iter(requested)).replace('_', '-')} for a model without Mamba-2 layers", f"add {FLAG}")
        return {"mamba": dataclasses.replace(mamba, **requested)} if requested else {}
    if options["num_layers"] not in (None, len(pattern.blocks)):
        raise BadConfig(f"{FLAG} has {len(pattern.blocks)} layers, and --num-layers is {options['num_layers']}")
    mlps = pattern.layers_with(NO_MIXER)
    with_experts = [layer for layer in mlps if pattern.blocks[layer][1]]
    has_experts = bool(changes.get("num_experts", base.num_experts))
    if with_experts not in ([], mlps):
        raise BadConfig(f"{FLAG} has experts in some MLPs, and here all have them, or none")
    if has_experts != bool(with_experts):
        raise BadConfig(f"{FLAG} has {'no ' if has_experts else ''}experts (E), and --num-experts says the opposite")
    head = requested.get("mamba_head_dim") or (base.mamba.mamba_head_dim if base.mamba else Mamba.mamba_head_dim)
    usual = Mamba((0,), 2 * changes.get("hidden_size", base.hidden_size) // head)
    sizes = {**vars(base.mamba or usual), **requested, "layers": tuple(pattern.layers_with(MAMBA))}
    return {"num_layers": len(pattern.blocks), "mamba": Mamba(**sizes), "mlp_layers": tuple(mlps)}


def _pattern(options: Mapping[str, Any]) -> Pattern | None:
    text = options[PATTERN]
    if text is None:
        return None
    pattern = hybrid_pattern.parse(text, FLAG, with_mamba=True, has_single_parts=True)
    if pattern.stages:
        raise BadConfig(f"{FLAG} {text!r:.80} has borders of pipeline stages", "give --pipeline-model-parallel-layout for them")
    if {kind for kind, _ in pattern.blocks} - {NO_MIXER} != {MAMBA, ATTENTION}:
        raise BadConfig(
            f"{FLAG} {text!r:.80} needs Mamba-2 (M) and attention (*)", "drop it if every layer has attention and an MLP"
        )
    return pattern
