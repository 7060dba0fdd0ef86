"""Gated delta layers (Qwen3-Next): megatron-core's options for their sizes, and for the layers that have attention instead."""

from collections.abc import Mapping
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.architecture.gated_delta import SIZES
from lt_shared.models.megatron_arguments import gated_delta
from lt_shared.models.megatron_arguments.gated_delta import FREQUENCY, SPARSE, VARIANT, VARIANTS
from lt_train.config.settings.model import experts

POSITIVE = click.IntRange(min=1)

OPTIONS = console.section(
    "Gated delta layers",
    click.option(
        "--experimental-attention-variant",
        type=click.Choice((*VARIANTS, SPARSE)),
        help="Use gated delta in place of attention in most layers (Qwen3-Next).",
    ),
    click.option(
        "--linear-attention-freq",
        metavar="N|LIST",
        help="Use attention in every Nth layer only, or list the layers: ([1]*3+[0])*12 has it in every fourth.",
    ),
    click.option("--linear-num-key-heads", type=POSITIVE, help="Set the number of key heads; by default 16."),
    click.option("--linear-num-value-heads", type=POSITIVE, help="Set the number of value heads; by default 32."),
    click.option("--linear-key-head-dim", type=POSITIVE, help="Set the size of a key head; by default 128."),
    click.option("--linear-value-head-dim", type=POSITIVE, help="Set the size of a value head; by default 128."),
    click.option("--linear-conv-kernel-dim", type=POSITIVE, help="Set the taps of the convolution; by default 4."),
    click.option(
        "--attention-output-gate",
        is_flag=True,
        default=None,
        help="Multiply the output of attention by gates.",
    ),
)


def changed_fields(options: dict[str, Any], base: Architecture, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the options change, in addition to `changes`. Raises BadConfig.

    A changed number of layers keeps the interval of attention, or the beginning of a list.
    """
    fields: dict[str, Any] = {"attention_output_gate": True} if options["attention_output_gate"] else {}
    requested = {name: options[name] for name in (VARIANT, FREQUENCY, *SIZES) if options[name] is not None}
    arguments = gated_delta.to_arguments(base)
    if requested and not arguments and VARIANT not in requested:
        name = next(iter(requested)).replace("_", "-")
        raise BadConfig(f"--{name} for a model without gated delta layers", f"add --{VARIANT.replace('_', '-')} {VARIANTS[0]}")
    if FREQUENCY in requested:
        requested[FREQUENCY] = experts.layer_frequency(requested[FREQUENCY], FREQUENCY)
    count = changes.get("num_layers", base.num_layers)
    if isinstance(arguments.get(FREQUENCY), list):
        arguments[FREQUENCY] = arguments[FREQUENCY][:count]
    return fields | {"gated_delta": gated_delta.from_arguments({**arguments, **requested, "num_layers": count}, base.name)}
