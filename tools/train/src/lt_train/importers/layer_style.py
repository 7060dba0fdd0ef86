"""Megatron's layers where nothing is said: LayerNorm, GELU and biases, which lt-train has with learned positions alone."""

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

BIASES = "there are biases in linear layers then; lt-train's layers with rotary positions have none"
ZERO_CENTERED = "the norms' weights are stored less one; without weight decay on them they learn alike"


def complete(ledger: Ledger, bias_key: str) -> None:
    """Write down what a model with rotary positions says by silence, so that lt-train does not take Llama's layers for granted.

    Biases are told as lost: guides to Llama leave their switch, `bias_key`, out.
    """
    if ledger.get("model") or ledger.get("position_embedding_type") != "rope":
        return
    ledger.default("normalization", "LayerNorm")
    ledger.default("swiglu", False)
    if not ledger.get("disable_bias_linear"):
        ledger.drop_value(bias_key, False, BIASES, Effect.MODEL)
