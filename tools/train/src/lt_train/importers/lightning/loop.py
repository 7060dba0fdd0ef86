"""Translate the time limit and the evaluation settings of Lightning's trainer.

Lightning reads an int as a number of batches and a float as a share: 1.0 means all batches, 0.0 none.
"""

import re
from typing import Any

from lt_train.importers import evaluation
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

LIMIT, INTERVAL = "trainer.limit_val_batches", "trainer.val_check_interval"
# Days, hours, minutes and seconds.
DURATION = re.compile(r"(\d+):(\d+):(\d+):(\d+)")


def validation(ledger: Ledger) -> None:
    """Translate the evaluation settings. Lightning's default limit and interval are 1.0: all batches, once per epoch."""
    limit, interval = ledger.take(LIMIT), ledger.take(INTERVAL)
    if ledger.get("eval_iters") == 0:
        for key, value in ((LIMIT, limit), (INTERVAL, interval)):
            ledger.drop_value(key, value, "there is no validation data", Effect.NONE)
        return
    limit, interval = (1.0 if value is None else value for value in (limit, interval))
    if _is_number(limit) and limit == 0:
        evaluation.switch_off(ledger, LIMIT)
        ledger.drop_value(INTERVAL, interval, "nothing is evaluated", Effect.NONE)
        return
    if isinstance(limit, float) and limit <= 1:
        reason = "it is a share of the validation data; lt-train evaluates --eval-iters global batches"
        ledger.drop_value(LIMIT, limit, reason, Effect.RESULT if limit == 1 else Effect.RUN)
    elif _is_number(limit) and limit < 0:
        ledger.drop_value(LIMIT, limit, "this value stands for none, as without the option", Effect.NONE)
    else:
        ledger.carry_value(LIMIT, "eval_iters", limit)
    if isinstance(interval, float) and interval <= 1:
        reason = "it is a share of an epoch; lt-train evaluates each --eval-interval steps"
        ledger.drop_value(INTERVAL, interval, reason, Effect.RESULT if interval == 1 else Effect.RUN)
    else:
        ledger.carry_value(INTERVAL, "eval_interval", interval)


def length(ledger: Ledger) -> None:
    """Carry the time limit over as --exit-duration-in-mins. The first key with a limit counts."""
    for key in ("trainer.max_time", "exp_manager.max_time_per_run"):
        match = DURATION.fullmatch(str(ledger.peek(key) or ""))
        if match and ledger.get("exit_duration_in_mins") is None:
            days, hours, minutes, seconds = map(int, match.groups())
            ledger.take(key)
            ledger.carry_value(key, "exit_duration_in_mins", days * 1440 + hours * 60 + minutes + seconds / 60)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
