"""Megatron-LM's options of the first weights, other than --init-method-std."""

from lt_train.importers import first_weights
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger
from lt_train.importers.upstream.rows import is_default

OF_EMBEDDING = "the embedding has the same deviation as --init-method-std"


def translate(ledger: Ledger) -> None:
    """Drop the options. --init-method-std and the run's start are to be carried over before."""
    first_weights.drop(ledger, "init_method_xavier_uniform")
    first_weights.drop(ledger, "no_initialization", "Megatron-LM leaves the first weights as memory is; lt-train draws them")
    for key in ("use_cpu_initialization", "data_parallel_random_init"):
        first_weights.drop(ledger, key, first_weights.OTHER_NUMBERS, Effect.RESULT)
    key = "embedding_init_method_std"
    if is_default(" ".join(ledger.peek(key) or ()), first_weights.deviation(ledger)):
        ledger.drop(key, OF_EMBEDDING)
    first_weights.drop(ledger, key)
