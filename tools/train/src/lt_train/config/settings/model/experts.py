"""Experts: Megatron's options for the sizes of a mixture and for its router.

Megatron's `--moe-layer-freq` selects the layers with experts: n for every n-th layer, or a list in Python's syntax,
`([0]*3+[1]*58)`. lt-train supports lists whose zeros all come first, as in every published model.
"""

import ast
from collections.abc import Mapping
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig
from lt_shared.models import megatron_arguments
from lt_shared.models.architecture import Architecture

POSITIVE = click.IntRange(min=1)
LARGEST_LIST = 10_000

OPTIONS = console.section(
    "Experts",
    click.option("--num-experts", type=POSITIVE, help="Set the number of experts in each layer (Mixtral)."),
    click.option("--moe-layer-freq", metavar="N|LIST", help="Select the layers with experts: 1, or a list like ([0]*3+[1]*58)."),
    click.option("--moe-ffn-hidden-size", type=POSITIVE, help="Set the width of an expert; by default the feed-forward layer's."),
    click.option(
        "--moe-shared-expert-intermediate-size",
        type=POSITIVE,
        help="Set the width of the shared expert, which processes all tokens.",
    ),
    click.option(
        "--moe-shared-expert-gate", is_flag=True, default=None, help="Multiply the shared expert's output by a gate (Qwen2-MoE)."
    ),
    click.option("--moe-router-topk", type=POSITIVE, help="Set the number of experts that a token is routed to."),
    click.option(
        "--moe-router-score-function",
        type=click.Choice(["softmax", "sigmoid"]),
        help="Select the function that scores the experts.",
    ),
    click.option(
        "--moe-router-pre-softmax",
        is_flag=True,
        default=None,
        help="Apply the softmax over all experts, before the top-k choice.",
    ),
    click.option(
        "--moe-router-enable-expert-bias",
        is_flag=True,
        default=None,
        help="Balance the experts by biases of the router (DeepSeek-V3).",
    ),
    click.option("--moe-router-num-groups", type=POSITIVE, help="Set the number of expert groups."),
    click.option(
        "--moe-router-group-topk", type=POSITIVE, help="Set the number of groups that a token's experts are chosen from."
    ),
    click.option(
        "--moe-router-topk-scaling-factor",
        type=console.FiniteRange(min=0, min_open=True),
        help="Multiply the experts' weights by this factor.",
    ),
    click.option(
        "--moe-aux-loss-coeff", type=console.FiniteRange(min=0), help="Set the weight of the loss that balances the experts."
    ),
)

# Options that are fields of an `Architecture`.
FIELDS = (
    *(
        "num_experts",
        "moe_ffn_hidden_size",
        "moe_shared_expert_intermediate_size",
        "moe_shared_expert_gate",
        "moe_router_topk",
        "moe_router_score_function",
    ),
    *("moe_router_pre_softmax", "moe_router_enable_expert_bias", "moe_router_num_groups", "moe_router_group_topk"),
    *("moe_router_topk_scaling_factor", "moe_aux_loss_coeff"),
)


def changed_fields(options: dict[str, Any], base: Architecture, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the options change, in addition to `changes`. Raises BadConfig, for example for a model without
    experts."""
    num_layers = changes.get("num_layers", base.num_layers)
    if not (options["num_experts"] or base.num_experts):
        for name in (*FIELDS, "moe_layer_freq"):
            if options[name] is not None:
                raise BadConfig(f"--{name.replace('_', '-')} for a model without experts", "add --num-experts")
    changes = {field: options[field] for field in FIELDS if options[field] is not None}
    if options["moe_layer_freq"] is not None:
        frequency = layer_frequency(options["moe_layer_freq"])
        changes["moe_first_dense_layers"] = megatron_arguments.dense_layers(frequency, num_layers, "the model")
    if options["moe_router_num_groups"] or options["moe_router_group_topk"]:
        changes["moe_router_group_score_topk"] = None
    elif base.moe_router_num_groups:
        # A changed number of experts per token does not change how the model scores groups.
        changes["moe_router_group_score_topk"] = base.group_score_topk
    return changes


def layer_frequency(text: str, option: str = "moe_layer_freq") -> int | list[int]:
    """Parse a number, or a list of 0 and 1 from lists with `+` and `*`. Raises BadConfig, naming `option`."""
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
        if (isinstance(value, int) and value > 0) or (isinstance(value, list) and set(value) <= {0, 1}):
            return value
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        pass
    raise BadConfig(
        f"--{option.replace('_', '-')} {text!r:.80} is neither a number nor a list of 0 and 1",
        "write it like 1 or ([0]*3+[1]*58)",
    )


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value <= LARGEST_LIST:
        return node.value
    if isinstance(node, ast.List):
        return [_value(element) for element in node.elts]
    if isinstance(node, ast.BinOp):
        first, second = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add) and isinstance(first, list) and isinstance(second, list):
            return first + second
        is_repeated = isinstance(node.op, ast.Mult) and isinstance(first, list) and isinstance(second, int)
        if is_repeated and len(first) * second <= LARGEST_LIST:
            return first * second
    raise ValueError(ast.dump(node))


def check(architecture: Architecture) -> None:
    """Raise BadConfig for a router that would not learn."""
    if architecture.num_experts and architecture.moe_router_topk < 2:
        raise BadConfig(
            "one expert per token: its weight would always be 1, and the router would not learn", "--moe-router-topk 2"
        )
