"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): Megatron's options for the sizes of its latents and heads.

The latents have norms, as in every model of DeepSeek; Megatron adds them with `--qk-layernorm`. If an option is not set, the size
is the base model's, or else Megatron's default.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture, LatentAttention

POSITIVE = click.IntRange(min=1)

OPTIONS = console.section(
    "Latent attention",
    click.option("--multi-latent-attention", is_flag=True, default=None, help="Use multi-head latent attention (DeepSeek)."),
    click.option("--q-lora-rank", type=POSITIVE, help="Set the width of the queries' latent; by default queries have none."),
    click.option("--kv-lora-rank", type=POSITIVE, help="Set the width of the latent of keys and values; by default 32."),
    click.option("--qk-head-dim", type=POSITIVE, help="Set the number of query channels without a position; by default 128."),
    click.option(
        "--qk-pos-emb-head-dim", type=POSITIVE, help="Set the number of query channels that are rotated; by default 64."
    ),
    click.option("--v-head-dim", type=POSITIVE, help="Set the number of channels of a value; by default 128."),
)

SIZES = tuple(field.name for field in dataclasses.fields(LatentAttention))
# The defaults of megatron-core's `MLATransformerConfig`, except that there queries have a latent of 512 by default.
MEGATRONS = LatentAttention(q_lora_rank=None, kv_lora_rank=32, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128)


def changed_fields(options: dict[str, Any], base: Architecture, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an `Architecture` that the options change, in addition to `changes`.

    Raises BadConfig for a size of a model without latent attention.
    """
    sizes = {name: options[name] for name in SIZES if options[name] is not None}
    if not sizes and not options["multi_latent_attention"]:
        return {}
    latent = base.latent_attention or (MEGATRONS if options["multi_latent_attention"] else None)
    if latent is None:
        name = next(iter(sizes)).replace("_", "-")
        raise BadConfig(f"--{name} for a model without latent attention", "add --multi-latent-attention")
    for name in ("kv_channels", "num_query_groups"):
        if options[name] is not None:
            raise BadConfig(f"--{name.replace('_', '-')} beside latent attention, whose heads have sizes of their own", "drop it")
    # In Megatron, --qk-layernorm means the norms of the latents, which are always there.
    heads = changes.get("num_attention_heads", base.num_attention_heads)
    fields: dict[str, Any] = {"qk_layernorm": False, "kv_channels": 0, "num_query_groups": heads}
    return fields | {"latent_attention": dataclasses.replace(latent, **sizes)}
