"""Switch evaluation off if the trainer evaluates nothing, because lt-train evaluates unless --eval-iters is 0."""

from lt_shared.console import BadConfig
from lt_shared.data.sample_order.split import split_shares
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger


def switch_off_without_data(ledger: Ledger, key: str) -> None:
    """Set --eval-iters 0 if the configuration has no validation data, even if `key` sets a number of iterations."""
    if ledger.get("eval_iters") != 0 and _has_no_data(ledger):
        if ledger.get("eval_iters"):
            ledger.drop_value(key, ledger.get("eval_iters"), "there is no validation data", Effect.NONE)
        switch_off(ledger)


def switch_off(ledger: Ledger, *keys: str) -> None:
    """Set --eval-iters 0, and mark `keys` as carried over by it."""
    ledger.set("eval_iters", 0, *keys)
    ledger.withdraw("eval_interval")


def _has_no_data(ledger: Ledger) -> bool:
    if ledger.get("train_data_path"):
        return not ledger.get("valid_data_path")
    split = ledger.get("split")
    try:
        return bool(split) and split_shares(str(split))[1] == 0
    except BadConfig:
        return False
