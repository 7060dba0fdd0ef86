"""Megatron-Bridge's muP: the options have Megatron-LM's names; its file also has the numbers that megatron-core derives."""

from lt_shared.models.megatron_arguments import mup
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

NAMES = tuple(mup.DEFAULTS)


def drop_derived(ledger: Ledger) -> None:
    """Drop what megatron-core derives from the options; without use_mup drop the options, which nothing reads then."""
    ledger.drop("model.mup_width_mult", "megatron-core computes it from the widths", Effect.NONE)
    if ledger.peek("model.use_mup"):
        ledger.drop("model.softmax_scale", "--use-mup sets it, by the options --mup-*", Effect.NONE)
        return
    for name in NAMES:
        ledger.drop(f"model.{name}", "only --use-mup reads it", Effect.NONE)


def width_multiplier(ledger: Ledger) -> float:
    """Return the width as a multiple of the base model's, 1 without muP. Carry the sizes over first."""
    if not ledger.get("use_mup"):
        return 1.0
    hidden = ledger.get("hidden_size")
    return mup.width_multiplier({"mup_base_hidden_size": ledger.get("mup_base_hidden_size")}, hidden) if hidden else 1.0
