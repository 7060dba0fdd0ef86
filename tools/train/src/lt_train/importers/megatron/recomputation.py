"""The modules of --recompute-modules."""

import re
from collections.abc import Sequence

from lt_train.config.settings.memory import RECOMPUTE_MODULES
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger


def carry_recompute_modules(ledger: Ledger, key: str, words: Sequence[str]) -> None:
    """Carry the modules over that lt-train recomputes, too; recomputation changes no result."""
    modules = [module for word in words for module in re.split(r"[\s,]+", word) if module]
    experts = ledger.original_values().get("num_experts") or ledger.original_values().get("model.num_moe_experts")
    missing = "mlp" if experts not in (None, 0, 1, ["1"]) else "moe"
    usable = [module for module in modules if module in RECOMPUTE_MODULES and module != missing]
    if usable:
        ledger.set("recompute_modules", " ".join(usable), key)
    unusable = " ".join(module for module in modules if module not in usable)
    if unusable:
        reason = f"lt-train recomputes {', '.join(RECOMPUTE_MODULES)}; mlp without experts, moe with experts"
        ledger.drop_value(key, unusable, reason, Effect.SPEED)
