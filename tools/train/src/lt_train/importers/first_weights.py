"""How a trainer draws the first weights: in another way it is another run, unless a checkpoint's weights take their place."""

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

# megatron-core's own, which it takes where nothing is said.
STANDARD_DEVIATION = 0.02
OTHER = "lt-train draws first weights by --init-method-std"
OTHER_NUMBERS = "lt-train draws other numbers of the same distribution"
LOADED = "the weights of the checkpoint that is loaded take the place of the first ones"


def drop(ledger: Ledger, key: str, reason: str = OTHER, effect: Effect = Effect.RUN) -> None:
    """Drop `key`, whose loss has `effect` in a run from first weights. Where a run begins is to be translated before."""
    if ledger.get("load"):
        ledger.drop(key, LOADED)
    else:
        ledger.drop(key, reason, effect)


def deviation(ledger: Ledger) -> float:
    """The standard deviation of the first weights."""
    return float(ledger.get("init_method_std") or STANDARD_DEVIATION)
