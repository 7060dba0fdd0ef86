"""Translate options of MindSpeed-LLM that have the effect of Megatron-LM's: layers, experts, and the weights of experts.

Read against MindSpeed-LLM of 2026-08-21.
"""

from typing import Any

from lt_train.importers.ledger import Ledger

# mindspeed_llm/tasks/models/spec/qwen3_spec.py builds megatron-core's layer, whose norms of queries and keys --qk-layernorm adds.
PLAIN_SPEC = ["mindspeed_llm.tasks.models.spec.qwen3_spec", "layer_spec"]
PLAIN_LAYERS = "it builds the layers that the other options say"
FIRST_DENSE, FREQUENCY, NORMALIZED = "first_k_dense_replace", "moe_layer_freq", "norm_topk_prob"
ALL_LAYERS = "all layers have experts, as without it"
MOST_LAYERS = 10_000
# mindspeed_llm/core/transformer/moe/router.py divides the weights of the chosen experts by their sum in these two.
NORMALIZING = ("aux_loss", "softmax_topk")
ONE_ALREADY = "the weights of a token's experts have the sum 1 without it"
NOT_READ = "another balancing than aux_loss and softmax_topk does not read it"


def translate(ledger: Ledger) -> None:
    """Carry over what has the effect of Megatron-LM's options. Everything else stays in the ledger."""
    if ledger.peek("spec") == PLAIN_SPEC:
        ledger.drop("spec", PLAIN_LAYERS)
    _shared_experts(ledger)
    _first_layers(ledger)
    _expert_weights(ledger)


def _shared_experts(ledger: Ledger) -> None:
    """Carry the number of shared experts over as their width together (features_manager/moe/shared_expert.py)."""
    key = "n_shared_experts"
    count = _number(ledger, key)
    width = _number(ledger, "moe_ffn_hidden_size") or _number(ledger, "ffn_hidden_size")
    if ledger.has("moe_shared_expert_intermediate_size"):
        ledger.drop(key, "--moe-shared-expert-intermediate-size says it")
    elif count and width:
        ledger.take(key)
        ledger.set("moe_shared_expert_intermediate_size", count * width, key)


def _first_layers(ledger: Ledger) -> None:
    """Carry the number of dense layers before those with experts over (core/transformer/transformer_block.py)."""
    dense, layers = _number(ledger, FIRST_DENSE), _number(ledger, "num_layers")
    # A layer's number is divisible by -1 as by 1, which MindSpeed-LLM's scripts use.
    frequency = abs(_number(ledger, FREQUENCY) or 0) if ledger.has(FREQUENCY) else 1
    if dense is None or layers is None or not 0 < layers < MOST_LAYERS or not frequency:
        return
    pattern = [int(layer >= dense and layer % frequency == 0) for layer in range(layers)]
    if all(pattern):
        for key in (FIRST_DENSE, FREQUENCY):
            ledger.drop(key, ALL_LAYERS)
        return
    for key in (FIRST_DENSE, FREQUENCY):
        ledger.take(key)
    ledger.set(FREQUENCY, f"[{','.join(map(str, pattern))}]", FIRST_DENSE, FREQUENCY)


def _expert_weights(ledger: Ledger) -> None:
    """Drop --norm-topk-prob if the weights of the chosen experts have the sum 1 anyway. Otherwise it stays, and is refused."""
    balancing = _word(ledger, "moe_router_load_balancing_type", "aux_loss")
    if not ledger.has(NORMALIZED):
        return
    if balancing not in NORMALIZING:
        ledger.drop(NORMALIZED, NOT_READ)
        return
    # Dropped tokens and a factor leave another sum; softmax over all experts leaves less than 1.
    other_sums = ("moe_expert_capacity_factor", "moe_router_topk_scaling_factor", "moe_router_pre_softmax")
    if balancing == "aux_loss" and not any(map(ledger.has, other_sums)):
        ledger.drop(NORMALIZED, ONE_ALREADY)


def _number(ledger: Ledger, key: str) -> int | None:
    """Return the whole number that an option of the command line has, or None."""
    text = _word(ledger, key, "")
    digits = text.removeprefix("-")
    return int(text) if digits.isdecimal() and digits.isascii() and len(digits) < len(str(MOST_LAYERS)) + 3 else None


def _word(ledger: Ledger, key: str, default: str) -> Any:
    return "".join(ledger.peek(key) or [default])
