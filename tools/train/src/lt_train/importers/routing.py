"""Settings of megatron-core's expert router that lt-train computes in another way, from Megatron-LM and Megatron-Bridge."""

from typing import Any

from lt_train.config.settings.routing import GLOBAL, POSITION
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

# router.py of megatron-core 0.16 to 0.19 divides the loss by the tokens of all ranks, and DDP the gradient by their number.
GLOBAL_LOSS = (
    "megatron-core weighs this loss by the coefficient divided by the data-parallel size, lt-train by the coefficient alone:"
    " leave both out, and set --moe-router-load-balancing-type and, with the quotient, --moe-aux-loss-coeff beside --config"
)
# moe_utils.py takes torch.topk over equal numbers.
POSITION_POLICY = (
    "megatron-core keeps the tokens that torch.topk finds among equals; lt-train drops the last tokens of the sequence"
)


def translate(ledger: Ledger, prefix: str = "") -> None:
    """Refuse a global auxiliary loss, because its weight depends on the number of ranks.

    Another choice of dropped tokens is told. `prefix` stands before the options' names. Carry the router's other options over
    afterwards.
    """
    balancing, policy = f"{prefix}moe_router_load_balancing_type", f"{prefix}moe_token_drop_policy"
    coefficient = _scalar(ledger.peek(f"{prefix}moe_aux_loss_coeff"))
    if _scalar(ledger.peek(balancing)) == GLOBAL and coefficient is not None and str(coefficient) not in ("0", "0.0"):
        ledger.drop(balancing, GLOBAL_LOSS, Effect.RUN)
    if _scalar(ledger.peek(f"{prefix}moe_expert_capacity_factor")) is None:
        ledger.drop(policy, "without a capacity no token is dropped")
    elif _scalar(ledger.peek(policy)) == POSITION:
        ledger.take(policy)
        ledger.set("moe_token_drop_policy", POSITION, policy)
        ledger.drop_value(policy, POSITION, POSITION_POLICY, Effect.RESULT)


def _scalar(value: Any) -> Any:
    """Return the value of an option that a command line has as a list of one word."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value
