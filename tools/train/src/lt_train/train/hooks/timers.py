"""Megatron's timers: measure the parts of a step on each rank and log them as Megatron-LM does.

Every start and stop of a timer waits for the GPU, and at level 1 for the other ranks too. So timers are off (level 0) by default.
megatron-core's schedules, gradient reduction and optimizers already call timers; `attach` only sets them in the configs.
"""

import warnings
from typing import TYPE_CHECKING

from megatron.core.timers import Timers

from lt_train.models.chunks import unwrap

if TYPE_CHECKING:
    from lt_train.checkpoint.training_state import TrainingState
    from lt_train.config.settings.reporting import Reporting

# Every rank must gather the same names, because a rank has only the timers that it used.
NAMES = (
    "forward-backward",
    "forward-compute",
    "backward-compute",
    "forward-recv",
    "forward-send",
    "backward-recv",
    "backward-send",
    "forward-send-forward-recv",
    "forward-send-backward-recv",
    "backward-send-forward-recv",
    "backward-send-backward-recv",
    "forward-backward-send-forward-backward-recv",
    "all-grads-sync",
    "conditional-embedder-grads-all-reduce",
    "non-tensor-parallel-grads-all-reduce",
    "embedding-grads-all-reduce",
    "params-all-gather",
    "optimizer-copy-to-main-grad",
    "optimizer-unscale-and-check-inf",
    "optimizer-clip-main-grad",
    "optimizer-count-zeros",
    "optimizer-inner-step",
    "optimizer-copy-main-to-model-params",
)


def attach(reporting: "Reporting", state: "TrainingState") -> Timers | None:
    """Set timers of the configured level on the model and the optimizer of `state`. Return None at level 0."""
    if not reporting.timing_log_level:
        return None
    # The timers gather their times with a function that torch has renamed and deprecated.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.")
    timers = Timers(reporting.timing_log_level, reporting.timing_log_option)
    for chunk in state.chunks:
        unwrap(chunk).config.timers = timers
    for inner in (state.optimizer, *getattr(state.optimizer, "chained_optimizers", ())):
        if hasattr(inner, "config"):
            inner.config.timers = timers
    return timers


def report(timers: Timers, steps: int) -> list[str]:
    """Return log lines with the mean times over `steps` steps, in milliseconds, and reset the timers. All ranks call it."""
    text = timers.get_all_timers_string(NAMES, normalizer=float(steps), reset=True)
    return text.splitlines() if text else []
