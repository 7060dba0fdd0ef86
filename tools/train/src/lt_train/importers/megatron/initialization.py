"""Drop options that initialize weights. Dropping one changes the run, unless a checkpoint replaces the initial weights.

This module handles Megatron-LM's options except --init-method-std, and helps the importers of other trainers.
"""

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger
from lt_train.importers.upstream.rows import is_default

# megatron-core's default.
STANDARD_DEVIATION = 0.02
OTHER = "lt-train draws first weights by --init-method-std"
OTHER_NUMBERS = "lt-train draws other numbers of the same distribution"
LOADED = "the weights of the checkpoint that is loaded take the place of the first ones"
OF_EMBEDDING = "the embedding has the same deviation as --init-method-std"


def translate(ledger: Ledger) -> None:
    """Drop the options. Carry --init-method-std and --load over first: the effects depend on them."""
    drop(ledger, "init_method_xavier_uniform")
    drop(ledger, "no_initialization", "Megatron-LM leaves the first weights as memory is; lt-train draws them")
    # --lazy-mpu-init switches --use-cpu-initialization on.
    for key in ("use_cpu_initialization", "lazy_mpu_init", "data_parallel_random_init"):
        drop(ledger, key, OTHER_NUMBERS, Effect.RESULT)
    key = "embedding_init_method_std"
    if is_default(" ".join(ledger.peek(key) or ()), deviation(ledger)):
        ledger.drop(key, OF_EMBEDDING)
    drop(ledger, key)


def drop(ledger: Ledger, key: str, reason: str = OTHER, effect: Effect = Effect.RUN) -> None:
    """Drop `key` with `effect`, or without an effect if the run loads a checkpoint. Carry --load over first."""
    if ledger.get("load"):
        ledger.drop(key, LOADED)
    else:
        ledger.drop(key, reason, effect)


def deviation(ledger: Ledger) -> float:
    """Return the standard deviation of the initial weights."""
    return float(ledger.get("init_method_std") or STANDARD_DEVIATION)
