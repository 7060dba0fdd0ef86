"""Translate Megatron-LM's choice of the checkpoint to start from: --save, --load or --pretrained-checkpoint.

lt-train continues from SAVE if SAVE has a checkpoint. Otherwise it starts from --load, with --finetune from the weights alone.
"""

import enum
import posixpath
from typing import Any

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger
from lt_train.importers.upstream.megatron_options import AT_LOADING, OF_SCHEDULE
from lt_train.importers.upstream.rows import Row

OWN = "a run continues from its own --save"
OF_OWN = "a run continues from the newest checkpoint of its own --save, with all that is there"
ONE_PATH = "one path is needed there: Megatron-LM stops at the second word"
WITHOUT_LOAD = "without --load nothing reads it"
WEIGHTS_ALONE = "of a checkpoint to finetune the weights alone are read"
# Switches that have an effect only if SAVE has a checkpoint, so not at the first start of a run.
SCHEDULE_OF_OWN = "a resume takes the schedule from the command line, Megatron-LM's from the checkpoint"
WITH_OWN = {
    "exit_on_missing_checkpoint": "lt-train begins anew when SAVE has no checkpoint",
    "use_checkpoint_opt_param_scheduler": SCHEDULE_OF_OWN,
    "use_checkpoint_lr_scheduler": SCHEDULE_OF_OWN,
    "use_checkpoint_args": "a resume takes the model from the command line, and compares it with the checkpoint's",
    "override_ckpt_iteration": OF_OWN,
}
# Options that select the checkpoint in SAVE.
OF_STEP = ("ckpt_step", "load_tag")
# Copies between the saves, which Megatron-LM loads if they are newer than the checkpoint in --load.
COPIES, COPIES_DIRECTORY, ON_NODES = "non_persistent_ckpt_type", "non_persistent_global_ckpt_dir", "local"
OF_COPIES = "lt-train begins with the newest checkpoint of SAVE or --load, Megatron-LM with a copy that is newer"
OF_NODES = "--save-local is what Megatron-LM calls local"
WHAT_TO_TAKE = ("no_load_optim", "no_load_rng", "finetune")
# Megatron-LM writes at least seven digits.
ITERATION = "iter_{:07d}"


class Start(enum.Enum):
    """The checkpoint that a run starts from."""

    NONE = enum.auto()
    OWN = enum.auto()
    LOAD = enum.auto()
    PRETRAINED = enum.auto()


def translate(ledger: Ledger, is_own: bool) -> None:
    """Translate the options. `is_own` says that --load equals --save, even if both are an unknown variable."""
    save, load = (_one_path(ledger, key) for key in ("save", "load"))
    if save:
        ledger.set("save", save, "save")
    begin = Start.LOAD if load else Start.NONE
    if load and is_own:
        begin = Start.OWN
        ledger.drop_value("load", load, OWN, Effect.NONE)
        _of_own(ledger)
        load = None
    elif load:
        ledger.set("load", _with_step(ledger, load), "load")
    if _pretrained(ledger, load):
        begin = Start.PRETRAINED
    _at_loading(ledger, begin)
    drop_copies(ledger, "", _text(ledger.peek(COPIES)), begin)
    if not ledger.get("load"):
        for key in WHAT_TO_TAKE:
            ledger.drop(key, WITHOUT_LOAD)


def _text(words: list[str] | None) -> str | None:
    return words[0] if words else None


def _one_path(ledger: Ledger, key: str) -> str | None:
    """Take the path of `key`. Megatron-LM's parser stops at a second word, so several words refuse the import."""
    words = ledger.take(key)
    if words and len(words) > 1:
        ledger.drop_value(key, " ".join(words), ONE_PATH, Effect.RUN)
        return None
    return _text(words)


def _with_step(ledger: Ledger, load: str) -> str:
    """Append the step of --ckpt-step to `load`. Step 0 means the newest checkpoint."""
    step = _text(ledger.peek("ckpt_step"))
    if step is None or not step.isdigit():
        return load
    ledger.take("ckpt_step")
    if int(step) == 0:
        ledger.drop_value("ckpt_step", step, "0 is the newest checkpoint", Effect.NONE)
        return load
    ledger.set("load", load, "ckpt_step")
    return posixpath.join(load, ITERATION.format(int(step)))


def _of_own(ledger: Ledger) -> None:
    """Drop the options that make Megatron-LM ignore parts of the checkpoint in SAVE at each start."""
    for key in (*WHAT_TO_TAKE, *OF_STEP, "reset_iteration", "no_load_lr_state"):
        if ledger.has(key):
            words = ledger.take(key)
            effect = Effect.RESULT if key == "no_load_rng" else Effect.RUN
            ledger.drop_value(key, " ".join(words) or True, OF_OWN, effect)
    for key, reason in WITH_OWN.items():
        if ledger.has(key):
            words = ledger.take(key)
            effect = Effect.RUN if words else Effect.RESULT
            ledger.drop_value(key, " ".join(words) or True, reason, effect)


def _pretrained(ledger: Ledger, load: str | None) -> bool:
    """Carry --pretrained-checkpoint over as --load with --finetune. Returns whether lt-train starts from it.

    Megatron-LM loads only the weights of --pretrained-checkpoint, and only if --load has no checkpoint.
    """
    pretrained = _one_path(ledger, "pretrained_checkpoint")
    if pretrained is None:
        return False
    if load:
        reason = "which of it and --load Megatron-LM takes depends on the checkpoints that are there; lt-train has --load alone"
        ledger.drop_value("pretrained_checkpoint", pretrained, reason, Effect.RUN)
        return False
    ledger.set("load", _with_step(ledger, pretrained), "pretrained_checkpoint")
    ledger.set("finetune", True, "pretrained_checkpoint")
    return True


def _at_loading(ledger: Ledger, begin: Start) -> None:
    for key in AT_LOADING:
        if not ledger.has(key):
            continue
        words = ledger.take(key)
        value = " ".join(words) or True
        row = row_at_loading(key, begin)
        is_usual = key == "dist_ckpt_strictness" and value == "assume_ok_unexpected"
        ledger.drop_value(key, value, row.reason, Effect.NONE if is_usual else row.effect)


def drop_copies(ledger: Ledger, section: str, kind: Any, begin: Start) -> None:
    """Drop the options of copies between the saves. A copy on a file system that all nodes share can be where the run begins."""
    reason = OF_NODES if kind == ON_NODES else OF_COPIES if begin is not Start.NONE else WITHOUT_LOAD
    effect = Effect.RESULT if reason == OF_COPIES else Effect.NONE
    for name in (COPIES, COPIES_DIRECTORY):
        ledger.drop(section + name, reason, effect)


def row_at_loading(name: str, begin: Start) -> Row:
    """Return the effect of dropping an option that Megatron-LM reads when it loads a checkpoint."""
    row = AT_LOADING[name]
    if begin is Start.NONE:
        return Row(Effect.NONE, WITHOUT_LOAD)
    if begin is Start.OWN and row.effect is not Effect.NONE:
        return Row(Effect.NONE, OF_OWN)
    if begin is Start.PRETRAINED and name in OF_SCHEDULE:
        return Row(Effect.NONE, WEIGHTS_ALONE)
    return row
