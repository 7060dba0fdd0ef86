"""Translate TorchTitan's section `validation`, which is off by default."""

from lt_train.importers import evaluation
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

EVALUATED = "it counts local batches of the data-parallel ranks; --eval-iters counts global batches"


def translate(ledger: Ledger) -> None:
    """Translate the section. Translate the batches before: the number of evaluated batches depends on them."""
    if ledger.peek("validation.enable"):
        ledger.drop("validation.enable", "lt-train evaluates in any case: --eval-iters")
        ledger.carry("validation.freq", "eval_interval")
        ledger.default("eval_interval", 10)
        if ledger.peek("validation.steps") in (None, -1):
            steps = ledger.take("validation.steps", -1)
            ledger.drop_value("validation.steps", steps, "lt-train evaluates --eval-iters batches, not all data", Effect.RUN)
        _evaluated_batches(ledger)
        size = ledger.take("validation.seq_len", ledger.upstream("validation.seq_len"))
        # Evaluations change no weight, and most TorchTitan files leave the length at 2,048: they are told, not refused.
        effect = Effect.NONE if size == ledger.get("seq_length") else Effect.RESULT
        ledger.drop_value("validation.seq_len", size, "lt-train evaluates with --seq-length", effect)
    else:
        evaluation.switch_off(ledger)
        for key in [key for key in ledger.remaining_keys() if key.startswith("validation.")]:
            ledger.drop(key, "validation is not enabled")


def _evaluated_batches(ledger: Ledger) -> None:
    """A step of TorchTitan's evaluation reads one local batch on each data-parallel rank, lt-train's a global batch."""
    key, size_key = "validation.steps", "validation.local_batch_size"
    steps, total = ledger.take_number(key), ledger.get("global_batch_size")
    size = ledger.take_number(size_key) or ledger.upstream(size_key)
    shards, copies = (ledger.original_values().get(f"parallelism.data_parallel_{kind}_degree") for kind in ("shard", "replicate"))
    ranks = shards * (copies or 1) if isinstance(shards, int) and shards > 0 else None
    # Without --global-batch-size a global batch is a micro batch of each rank.
    samples, batch = (
        (steps * size * (ranks or 0), total) if total and steps else ((steps or 0) * size, ledger.get("micro_batch_size"))
    )
    ledger.drop_value(size_key, size, EVALUATED, Effect.NONE)
    if samples and batch and samples % batch == 0:
        ledger.carry_value(key, "eval_iters", samples // batch)
    elif steps is not None:
        ledger.drop_value(key, steps, EVALUATED, Effect.RUN)
