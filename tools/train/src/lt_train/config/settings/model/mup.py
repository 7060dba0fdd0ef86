"""Maximal update parametrization (muP, arXiv:2203.03466): a learning rate that was found with a narrow model suits a wide one.

The options and rules are those of Megatron-LM. With m = hidden size / base hidden size, matrices of the layers begin with a
deviation divided by sqrt(m) and learn with AdamW's rate and epsilon divided by m; embeddings, output layer, norms and biases keep
theirs. The forward pass has multipliers (`lt_shared.models.megatron_arguments.mup`), which are part of the architecture, so that
a checkpoint and its conversions compute the same logits.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture

FACTOR = console.FiniteRange(min=0, min_open=True)

OPTIONS = console.section(
    "Width transfer",
    click.option(
        "--use-mup", is_flag=True, help="Scale initial weights, learning rates, scores and logits with the width of the model."
    ),
    click.option(
        "--mup-base-hidden-size",
        type=click.IntRange(min=1),
        help="Set the width of the model whose learning rate is given; by default this model's.",
    ),
    click.option("--mup-embedding-mult", type=FACTOR, default=1.0, help="Multiply embeddings by this."),
    click.option(
        "--mup-output-mult", type=FACTOR, default=1.0, help="Multiply logits by this; by default base width / hidden size."
    ),
    click.option(
        "--mup-base-head-dim", type=FACTOR, help="Set the head size for which scores are scaled by 1 / sqrt(d); by default 1."
    ),
    click.option(
        "--mup-attn-scale-power",
        type=console.FiniteRange(min=0),
        default=1.0,
        help="Divide scores by the head size to this power; 0.5 is the usual root.",
    ),
)


@dataclasses.dataclass(frozen=True)
class Mup:
    """The width transfer of a run. `width_multiplier` is m; the other fields are Megatron's options."""

    width_multiplier: float
    base_hidden_size: int
    embedding_mult: float
    output_mult: float
    base_head_dim: float | None
    attn_scale_power: float

    def arguments(self, architecture: Architecture) -> dict[str, Any]:
        """Return the settings under Megatron's argument names, and the multipliers that they result in with this model."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "width_multiplier"]
        return {
            "use_mup": True,
            **{f"mup_{name}": getattr(self, name) for name in names},
            "lt_embedding_multiplier": architecture.embedding_multiplier,
            "lt_logits_scaling": architecture.logits_scaling,
        }


def resolve_mup(options: dict[str, Any], hidden_size: int) -> Mup | None:
    """Resolve the options for a model of this width; None without --use-mup."""
    # Imported here, because the training loop loads this module for its settings and needs no arguments of Megatron.
    from lt_shared.models.megatron_arguments import mup

    if not options["use_mup"]:
        return None
    return Mup(
        width_multiplier=mup.width_multiplier(options, hidden_size),
        base_hidden_size=options["mup_base_hidden_size"] or hidden_size,
        embedding_mult=options["mup_embedding_mult"],
        output_mult=options["mup_output_mult"],
        base_head_dim=options["mup_base_head_dim"],
        attn_scale_power=options["mup_attn_scale_power"],
    )


def changed_fields(options: dict[str, Any], base: Architecture, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the multipliers of an `Architecture`, in addition to `changes`.

    The base model's multipliers of embeddings and logits stay factors, its scale of scores stays. Raises BadConfig for a model
    with learned positions, and for an option that would have no effect.
    """
    from lt_shared.models.megatron_arguments import mup

    set_names = [name for name, default in mup.DEFAULTS.items() if options[name] != default]
    if not options["use_mup"]:
        if set_names:
            raise BadConfig(f"--{set_names[0].replace('_', '-')} has no effect", "add --use-mup")
        return {}
    if base.family == "gpt":
        raise BadConfig("--use-mup for a model with learned positions", "use RoPE and RMSNorm")
    model = dataclasses.replace(base, **changes)
    is_latent = model.latent_attention is not None
    if (is_latent or model.softmax_scale is not None) and {"mup_base_head_dim", "mup_attn_scale_power"} & {*set_names}:
        reason = "latent attention has a scale of its own" if is_latent else f"{base.name} has a scale of its own"
        raise BadConfig(f"--mup-base-head-dim and --mup-attn-scale-power have no effect: {reason}", "drop them")
    fields = mup.multipliers(options, model.hidden_size, model.kv_channels, is_latent)
    if model.softmax_scale is not None:
        fields.pop("softmax_scale", None)
    for name in ("embedding_multiplier", "logits_scaling"):
        fields[name] *= getattr(model, name)
    return fields
