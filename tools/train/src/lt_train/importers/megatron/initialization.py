"""The initialization of the weights: another one makes another run, unless a checkpoint replaces the weights.

Megatron-LM's options other than --init-method-std, and the rules that the importers of other trainers share.
"""

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger
from lt_train.importers.upstream.rows import is_default

# megatron-core's own, which it takes where nothing is said.
STANDARD_DEVIATION = 0.02
OTHER = "lt-train draws first weights by --init-method-std"
OTHER_NUMBERS = "lt-train draws other numbers of the same distribution"
LOADED = "the weights of the checkpoint that is loaded take the place of the first ones"
OF_EMBEDDING = "the embedding has the same deviation as --init-method-std"


def translate(ledger: Ledger) -> None:
    """Drop the options. --init-method-std and the run's start are to be carried over before."""
    drop(ledger, "init_method_xavier_uniform")
    drop(ledger, "no_initialization", "Megatron-LM leaves the first weights as memory is; lt-train draws them")
    for key in ("use_cpu_initialization", "data_parallel_random_init"):
        drop(ledger, key, OTHER_NUMBERS, Effect.RESULT)
    key = "embedding_init_method_std"
    if is_default(" ".join(ledger.peek(key) or ()), deviation(ledger)):
        ledger.drop(key, OF_EMBEDDING)
    drop(ledger, key)


def drop(ledger: Ledger, key: str, reason: str = OTHER, effect: Effect = Effect.RUN) -> None:
    """Drop `key`, whose loss has `effect` in a run from first weights. Where a run begins is to be translated before."""
    if ledger.get("load"):
        ledger.drop(key, LOADED)
    else:
        ledger.drop(key, reason, effect)


def deviation(ledger: Ledger) -> float:
    """The standard deviation of the first weights."""
    return float(ledger.get("init_method_std") or STANDARD_DEVIATION)
