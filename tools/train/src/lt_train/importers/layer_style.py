"""Megatron's default layers: LayerNorm, GELU and biases. lt-train supports them with learned position embeddings only."""

from collections.abc import Mapping

from lt_shared.models.rope_scaling import RopeScaling
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

# megatron/core/fusions/fused_bias_gelu.py approximates GELU by tanh; torch.nn.functional.gelu uses the error function.
FUSED_GELU = "lt-train's GELU is Megatron's fused one, which approximates it by tanh"
BIASES = "there are biases in linear layers then; lt-train's layers with rotary positions have none"
# This window size means full causal attention.
EVERYTHING, SEES_EVERYTHING = "-1,-1", "attention sees all earlier tokens, as without it"
ZERO_CENTERED = (
    "the norms' weights are stored less one: from first weights they learn alike but for rounding;"
    " a checkpoint of that form in SAVE would be misread"
)
ZERO_CENTERED_START = "the checkpoint has the norms' weights less one, which lt-train takes for the weights themselves"
INTERLEAVED = (
    "the experts' gates stand in blocks between the values that they gate: from first weights they learn alike;"
    " a checkpoint of that form in SAVE would be misread"
)
INTERLEAVED_START = (
    "the checkpoint has the experts' gates in blocks between the values that they gate, lt-train has them in front"
)
# Two reasons for each key: for a run from random weights, and for a run from a checkpoint.
STORED_OTHERWISE = {
    "apply_layernorm_1p": (ZERO_CENTERED, ZERO_CENTERED_START),
    "layernorm_zero_centered_gamma": (ZERO_CENTERED, ZERO_CENTERED_START),
    "moe_mlp_glu_interleave_size": (INTERLEAVED, INTERLEAVED_START),
}


def complete(ledger: Ledger, bias_key: str) -> None:
    """Write Megatron's default layers into the options of a model with rotary positions, because lt-train defaults to Llama's.

    Biases are reported as dropped under `bias_key`, the switch that guides to Llama often forget.
    """
    if ledger.get("model") or ledger.get("position_embedding_type") != "rope":
        return
    ledger.default("normalization", "LayerNorm")
    ledger.default("swiglu", False)
    if not ledger.get("disable_bias_linear"):
        ledger.drop_value(bias_key, False, BIASES, Effect.MODEL)


def drop_stored_otherwise(ledger: Ledger, section: str = "") -> None:
    """Drop the keys that select another storage layout of weights. Translate --load first: the reason depends on it."""
    for name, (reason, reason_of_checkpoint) in STORED_OTHERWISE.items():
        key = section + name
        if ledger.peek(key) is False:
            ledger.drop(key, "weights are stored as lt-train's")
        elif name.startswith("moe_") and not ledger.get("num_experts"):
            ledger.drop(key, "the model has no experts")
        elif ledger.get("load"):
            ledger.drop(key, reason_of_checkpoint, Effect.RUN)
        else:
            ledger.drop(key, reason, Effect.RESULT)


def drop_scaling(ledger: Ledger, keys: Mapping[str, str], is_scaled: bool) -> None:
    """Drop the numbers of Llama 3.1's rotary scaling that are constants in megatron-core.

    `keys` maps fields of RopeScaling to keys. If positions are scaled, a number other than the constant changes the model.
    """
    for field, key in keys.items():
        constant = getattr(RopeScaling, field)
        is_other = is_scaled and ledger.peek(key) not in (None, constant)
        ledger.drop(key, f"it is {constant} in megatron-core", Effect.MODEL if is_other else Effect.NONE)
