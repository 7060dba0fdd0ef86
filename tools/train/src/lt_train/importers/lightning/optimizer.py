"""NeMo's optimizers and schedules (nemo/core/optim) as lt-train's."""

from typing import Any

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

# With decoupled weight decay; apex's FusedAdam has it unless `adam_w_mode` says otherwise.
ADAMW = (
    *("fused_adam", "adamw", "distributed_fused_adam", "mcore_distributed_optim", "megatron_fused_adam", "megatron_adamw"),
    # AWS's fork for Trainium.
    "adamw_fp32optstate",
)
ADAM = "adam"
# nemo/core/optim/lr_scheduler.py: WarmupAnnealing falls in a line to its least value.
SCHEDULES = {"CosineAnnealing": "cosine", "InverseSquareRootAnnealing": "inverse-square-root", "WarmupAnnealing": "linear"}
# The learning rate of this schedule falls below `min_lr`.
WITHOUT_LEAST = "InverseSquareRootAnnealing"


def optimizer(ledger: Ledger, section: str) -> None:
    """Translate the name, betas and schedule. The importers rename the keys that have one counterpart."""
    if not any(key.startswith(f"{section}.") for key in ledger.original_values()):
        return
    _name(ledger, f"{section}.name")
    _betas(ledger, f"{section}.betas")
    if ledger.get("weight_decay") is None:
        ledger.default("weight_decay", 0.0)
    if ledger.take(f"{section}.adam_w_mode", True) is False and ledger.get("weight_decay"):
        ledger.drop_value(f"{section}.adam_w_mode", False, "lt-train's weight decay is decoupled", Effect.RUN)
    _gradients(ledger, f"{section}.grad_sync_dtype")
    _schedule(ledger, f"{section}.sched")


def _name(ledger: Ledger, key: str) -> None:
    name = str(ledger.take(key, "")).lower()
    is_coupled = name == ADAM and bool(ledger.get("weight_decay"))
    if name and (is_coupled or not (name == ADAM or name in ADAMW)):
        reason = "lt-train's Adam has decoupled weight decay" if is_coupled else "lt-train has AdamW and Muon"
        ledger.drop_value(key, name, reason, Effect.RUN)
    elif "distributed" in name:
        ledger.set("use_distributed_optimizer", True, key)
    elif name:
        ledger.drop_value(key, name, "AdamW is --optimizer adam", Effect.NONE)


def _betas(ledger: Ledger, key: str) -> None:
    betas = ledger.take(key)
    if isinstance(betas, list) and len(betas) == 2:
        for name, beta in zip(("adam_beta1", "adam_beta2"), betas, strict=True):
            ledger.carry_value(key, name, beta)
    else:
        ledger.drop_value(key, betas, "two numbers are needed there", Effect.RUN)
        ledger.default("adam_beta2", 0.999)


def _gradients(ledger: Ledger, key: str) -> None:
    kind = ledger.take(key)
    if kind is None:
        return
    is_half = str(kind) in ("bf16", "bfloat16", "torch.bfloat16")
    if is_half and ledger.get("bf16"):
        ledger.set("grad_reduce_in_bf16", True, key)
    else:
        is_single = str(kind) in ("fp32", "float32", "torch.float32", "32")
        effect = Effect.NONE if is_single else Effect.RESULT
        ledger.drop_value(key, kind, "gradients are summed in float32", effect)


def _schedule(ledger: Ledger, section: str) -> None:
    has_class = ledger.has(f"{section}._target_")
    if not (has_class or ledger.peek(f"{section}.name")):
        # Without a schedule, or without its name, NeMo's learning rate is constant from the first step on.
        ledger.default("lr_decay_style", "constant")
        ledger.default("lr_warmup_iters", 0)
        return
    _warmup(ledger, section)
    length = _length(ledger, f"{section}.max_steps")
    warmup = ledger.get("lr_warmup_iters")
    if warmup and warmup >= (length or warmup + 1):
        # The run ends during the warm-up.
        ledger.default("lr_decay_iters", warmup + 1)
    schedule = ledger.take_text(f"{section}.name")
    if schedule in SCHEDULES:
        ledger.set("lr_decay_style", SCHEDULES[schedule], f"{section}.name")
    elif schedule:
        ledger.drop_value(f"{section}.name", schedule, "lt-train has other schedules: --lr-decay-style", Effect.RUN)
    least = ledger.get("min_lr")
    if schedule == WITHOUT_LEAST and least:
        ledger.drop_value(f"{section}.min_lr", least, f"{schedule} does not read it before its last step", Effect.NONE)
        ledger.withdraw("min_lr")
    ledger.default("min_lr", 0.0)
    _constant_steps(ledger, f"{section}.constant_steps", schedule)


def _warmup(ledger: Ledger, section: str) -> None:
    ledger.carry(f"{section}.warmup_steps", "lr_warmup_iters")
    ratio, length = ledger.take_number(f"{section}.warmup_ratio"), ledger.get("train_iters")
    if ratio and length and ledger.get("lr_warmup_iters") is None:
        ledger.carry_value(f"{section}.warmup_ratio", "lr_warmup_iters", int(ratio * length))
    else:
        ledger.drop_value(f"{section}.warmup_ratio", ratio, "warmup_steps says it, or the length is not known")
    ledger.default("lr_warmup_iters", 0)


def _length(ledger: Ledger, key: str) -> Any:
    """Return the number of steps of the schedule, by default the length of the run."""
    steps, length = ledger.take_number(key), ledger.get("train_iters")
    if steps and steps > 0 and steps != length:
        ledger.carry_value(key, "lr_decay_iters", steps)
        return ledger.get("lr_decay_iters") or length
    ledger.drop_value(key, steps, "the schedule has the length of the run", Effect.NONE)
    return length


def _constant_steps(ledger: Ledger, key: str, schedule: str | None) -> None:
    """Shorten the decay: NeMo's cosine ends `constant_steps` before the run and then stays at the minimum."""
    steps, length = ledger.take_number(key), ledger.get("lr_decay_iters") or ledger.get("train_iters")
    if not steps:
        return
    warmup, end = ledger.get("lr_warmup_iters") or 0, ledger.get("train_iters")
    if end and warmup >= end:
        ledger.drop_value(key, steps, "the run ends while it warms up", Effect.NONE)
    elif schedule == "CosineAnnealing" and length:
        # Without room for a decay, the rate falls to its minimum after the warm-up.
        ledger.carry_value(key, "lr_decay_iters", max(length - steps, warmup + 1))
    else:
        ledger.drop_value(key, steps, "the decay cannot end so many steps before a run of this length does", Effect.RUN)
