"""Translate the checkpoint that a run of Megatron-Bridge starts from: checkpoint.save, .load or .pretrained_checkpoint."""

import posixpath

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger
from lt_train.importers.megatron.start import (
    COPIES,
    ITERATION,
    OF_OWN,
    OWN,
    SCHEDULE_OF_OWN,
    WITHOUT_LOAD,
    Start,
    drop_copies,
    row_at_loading,
)
from lt_train.importers.upstream.megatron_options import AT_LOADING

# Fields that exclude a part of the checkpoint if they are False, with lt-train's options.
LEFT_OUT = {"load_optim": "no_load_optim", "load_rng": "no_load_rng"}
SCHEDULE = "use_checkpoint_opt_param_scheduler"


def translate(ledger: Ledger) -> None:
    load = ledger.take_text("checkpoint.load")
    begin = Start.LOAD if load else Start.NONE
    if load and load.rstrip("/") == str(ledger.get("save") or "").rstrip("/"):
        ledger.drop_value("checkpoint.load", load, OWN, Effect.NONE)
        _of_own(ledger)
        key = f"scheduler.{SCHEDULE}"
        if ledger.peek(key):
            ledger.drop(key, SCHEDULE_OF_OWN, Effect.RESULT)
        begin, load = Start.OWN, None
    elif load:
        _from(ledger, load)
    if _pretrained(ledger, load):
        begin = Start.PRETRAINED
    drop_copies(ledger, "checkpoint.", ledger.peek(f"checkpoint.{COPIES}"), begin)
    for name in (*LEFT_OUT, "finetune", "ckpt_step"):
        ledger.drop(f"checkpoint.{name}", WITHOUT_LOAD)
    for name in AT_LOADING:
        row = row_at_loading(name, begin)
        for section in ("checkpoint", "scheduler"):
            key = f"{section}.{name}"
            if ledger.is_default(key, ledger.peek(key)):
                ledger.drop(key, row.reason)
            else:
                ledger.drop(key, row.reason, row.effect)
    for name in ("save_optim", "save_rng"):
        if ledger.take(f"checkpoint.{name}", True) is False:
            ledger.set(f"no_{name}", True, f"checkpoint.{name}")
    count = ledger.take_number("checkpoint.most_recent_k")
    if count and count > 0:
        ledger.carry_value("checkpoint.most_recent_k", "keep_last", count)
    else:
        ledger.drop_value("checkpoint.most_recent_k", count, "all checkpoints are kept, as without --keep-last", Effect.NONE)


def _of_own(ledger: Ledger) -> None:
    for name, harmless in (("load_optim", True), ("load_rng", True), ("finetune", False), ("ckpt_step", None)):
        key = f"checkpoint.{name}"
        if ledger.has(key) and ledger.peek(key) not in (harmless, None):
            ledger.drop(key, OF_OWN, Effect.RESULT if name == "load_rng" else Effect.RUN)


def _from(ledger: Ledger, load: str) -> None:
    step = ledger.take_number("checkpoint.ckpt_step")
    keys = ["checkpoint.load"]
    if step:
        load = posixpath.join(load, ITERATION.format(int(step)))
        keys.append("checkpoint.ckpt_step")
    ledger.set("load", load, *keys)
    ledger.flag("checkpoint.finetune", "finetune")
    for name, option in LEFT_OUT.items():
        if ledger.take(f"checkpoint.{name}", True) is False:
            ledger.set(option, True, f"checkpoint.{name}")


def _pretrained(ledger: Ledger, load: str | None) -> bool:
    """Carry checkpoint.pretrained_checkpoint over. Returns whether lt-train starts from it."""
    key = "checkpoint.pretrained_checkpoint"
    pretrained = ledger.take_text(key)
    if pretrained and load:
        reason = "which of it and checkpoint.load is taken depends on the checkpoints that are there; lt-train has --load alone"
        ledger.drop_value(key, pretrained, reason, Effect.RUN)
        return False
    if not pretrained:
        return False
    ledger.set("load", pretrained, key)
    ledger.set("finetune", True, key)
    return True
