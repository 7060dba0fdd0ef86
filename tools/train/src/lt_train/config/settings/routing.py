"""Settings of the expert router that matter in training alone: auxiliary losses, and the capacity of the experts.

They change which gradients the router gets and which tokens an expert computes, not the model: checkpoints and logits of an
evaluation without a capacity do not depend on them. The rules are megatron-core's (`TopKRouter`).
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig, ToolError
from lt_shared.models.architecture import Architecture

BATCH, SEQUENCE, GLOBAL, NONE = "aux_loss", "seq_aux_loss", "global_aux_loss", "none"
PROBABILITIES, POSITION = "probs", "position"

OPTIONS = console.section(
    "Experts",
    click.option(
        "--moe-router-load-balancing-type",
        type=click.Choice([BATCH, SEQUENCE, GLOBAL, NONE]),
        default=BATCH,
        show_default=True,
        help="Balance the experts over each micro batch, each sequence (DeepSeek), or the global batch, by --moe-aux-loss-coeff.",
    ),
    click.option(
        "--moe-z-loss-coeff",
        type=console.FiniteRange(min=0),
        default=0.0,
        help="Set the weight of the router's z-loss, which keeps its logits small (ST-MoE: 0.001).",
    ),
    click.option(
        "--moe-expert-capacity-factor",
        type=console.FiniteRange(min=0, min_open=True),
        help="Limit an expert to this multiple of its even share of a micro batch, and drop further tokens; by default none is"
        " dropped.",
    ),
    click.option(
        "--moe-token-drop-policy",
        type=click.Choice([PROBABILITIES, POSITION]),
        default=PROBABILITIES,
        help="Select the tokens that an expert over its capacity drops: the least probable ones, or the last in the sequence.",
    ),
)


@dataclasses.dataclass(frozen=True)
class Routing:
    """`load_balancing` is Megatron's name of the auxiliary loss. `capacity_factor` None drops no token."""

    load_balancing: str = BATCH
    z_loss_coeff: float = 0.0
    capacity_factor: float | None = None
    drop_policy: str = PROBABILITIES

    def arguments(self) -> dict[str, Any]:
        """Return the settings under Megatron's argument names."""
        return {
            "moe_router_load_balancing_type": self.load_balancing,
            "moe_z_loss_coeff": self.z_loss_coeff or None,
            "moe_expert_capacity_factor": self.capacity_factor,
            "moe_token_drop_policy": self.drop_policy,
        }


def resolve_routing(options: dict[str, Any]) -> Routing:
    return Routing(
        options["moe_router_load_balancing_type"],
        options["moe_z_loss_coeff"],
        options["moe_expert_capacity_factor"],
        options["moe_token_drop_policy"],
    )


def check(routing: Routing, architecture: Architecture) -> Iterator[ToolError]:
    """Yield BadConfig for settings that the model has no use for."""
    if architecture.num_experts:
        return
    unset = Routing().arguments()
    for name, value in routing.arguments().items():
        if value != unset[name]:
            yield BadConfig(f"--{name.replace('_', '-')} for a model without experts", "add --num-experts")
