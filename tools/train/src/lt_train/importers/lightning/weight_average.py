"""Carry the exponential moving average of the weights over: the EMA section of NeMo's exp_manager."""

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

SECTION = "exp_manager.ema."
# nemo/utils/exp_manager.py: EMAParams.
DECAY = 0.999


def translate(ledger: Ledger) -> None:
    """Set --ema-decay if the average is on and moves at every step. Other settings remain for the trainer's table."""
    enable, interval = f"{SECTION}enable", f"{SECTION}every_n_steps"
    if ledger.peek(enable) is not True or ledger.peek(interval) not in (None, 1):
        return
    ledger.take(enable)
    ledger.take(interval)
    decay = ledger.take_number(f"{SECTION}decay")
    ledger.set("ema_decay", DECAY if decay is None else float(decay), enable, interval, f"{SECTION}decay")
    ledger.drop(f"{SECTION}validate_original_weights", "lt-train evaluates the weights and the average")
    ledger.drop(f"{SECTION}cpu_offload", "the average is beside the moments of the optimizer", Effect.SPEED)
