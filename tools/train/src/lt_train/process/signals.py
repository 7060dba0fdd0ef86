"""End a run before its last step, by signals and by time and step limits. All ranks end at the same step.

SIGTERM (Slurm's preemption, Kubernetes) and SIGUSR1 (`sbatch --signal=USR1@300`) ask the run to finish its step, save, and end
with exit code 75, so that a batch script can put the job back into the queue. A signal may reach a single rank, or the ranks at
different moments. So in every step, before the optimizer runs, the ranks reduce their reasons to the maximum. That costs a small
all-reduce per step, and another step after a signal that comes while the optimizer runs. A second signal ends the process at
once. In a run that saves, SIGINT (Ctrl-C) acts like SIGTERM; without saving, or if the shell ignores it, it keeps its meaning.
Before the first step there is nothing to save, and a signal ends the program with the same exit code.
"""

import ctypes
import enum
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lt_shared.console import ExitCode, Terminated

# All these signals are held back and passed on. `ending_signals` says which ones end a run.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
# Slurm signals every process of a step, so a rank gets a signal from Slurm and again from lt-train or torchrun. Within this time,
# the same signal counts once.
SAME_SIGNAL_SECONDS = 5.0
# The launcher of an elastic run names a file to its ranks, which it creates when another node waits.
REGROUP_VARIABLE = "LT_TRAIN_REGROUP"


class Reason(enum.IntEnum):
    """The reason why a run ends early. If there are several, the largest counts."""

    NONE = 0
    PHASE = 1
    NODES = 2
    INTERVAL = 3
    DURATION = 4
    USER_SIGNAL = 5
    TERMINATION = 6
    INTERRUPT = 7
    NO_DATA = 8

    @property
    def text(self) -> str:
        return {
            Reason.PHASE: "--data-schedule",
            Reason.NODES: "--min-nodes",
            Reason.INTERVAL: "--exit-interval",
            Reason.DURATION: "--exit-duration-in-mins",
            Reason.USER_SIGNAL: signal.SIGUSR1.name,
            Reason.TERMINATION: signal.SIGTERM.name,
            Reason.INTERRUPT: signal.SIGINT.name,
            Reason.NO_DATA: "broken-stream",
        }[self]


REASONS = {
    signal.SIGTERM: Reason.TERMINATION,
    signal.SIGUSR1: Reason.USER_SIGNAL,
    signal.SIGINT: Reason.INTERRUPT,
}

_received = Reason.NONE
_started = time.monotonic()


def ending_signals(saves: bool) -> list[signal.Signals]:
    """Return the signals after which a run ends. SIGINT ends a run that `saves`, unless the shell ignores SIGINT."""
    has_interrupt = saves and signal.getsignal(signal.SIGINT) != signal.SIG_IGN
    return [number for number in SIGNALS if number != signal.SIGINT or has_interrupt]


def end_before_training() -> None:
    """Let a signal end this program, until `listen` is called, with the exit code that puts the job back into the queue."""
    for number in SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _try_again)


def _try_again(number: int, frame: FrameType | None) -> None:
    _die_by_another(number)
    raise Terminated(number, ExitCode.TRY_AGAIN)


def listen(saves: bool = False) -> None:
    """Note the first signal from now on, and let the second signal end this process. `saves` is as for `ending_signals`.

    Signals that arrived while they were blocked (see `hold_back_signals`) are delivered here.
    """
    for number in ending_signals(saves):
        signal.signal(number, _note)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _note(number: int, frame: FrameType | None) -> None:
    global _received
    _received = REASONS[signal.Signals(number)]
    _die_by_another(number)


def die_by_signals() -> None:
    """Let a signal end this process at once. A Python handler would not run while a collective waits forever."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _die_by_another(number: int) -> None:
    """Let another signal end this process at once. For SAME_SIGNAL_SECONDS, signal `number` is ignored."""
    die_by_signals()
    signal.signal(number, lambda number, frame: None)
    # Call libc, because Python sets handlers in the main thread only, which may hang by then.
    later = threading.Timer(SAME_SIGNAL_SECONDS, lambda: ctypes.CDLL(None).signal(number, signal.SIG_DFL))
    later.daemon = True
    later.start()


@contextmanager
def hold_back_signals() -> Iterator[None]:
    """Deliver signals that arrive within the block after it. In processes that the block starts, the signals stay blocked.

    Only SIGKILL ends such a process. A signal may still reach another thread of this process, such as numpy's; then the previous
    handler runs at once.
    """
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)


class Limits:
    """Limits that end a run early. The run starts at step `first`; `duration_minutes` counts from the start of the process.

    The run also ends at a multiple of `save_interval` if the launcher has created the file of REGROUP_VARIABLE: another node
    waits to take part, and the ranks start again with it.
    """

    def __init__(self, first: int, interval: int | None, duration_minutes: float | None, save_interval: int | None = None):
        self.first = first
        self.interval = interval
        self._regroup_file = os.environ.get(REGROUP_VARIABLE)
        self._save_interval = save_interval
        self._end = None if duration_minutes is None else _started + duration_minutes * 60

    @staticmethod
    def received() -> Reason:
        """Return the signal that this rank has received."""
        return _received

    def reached(self, iteration: int) -> Reason:
        """Return this rank's local reason to end after `iteration` steps."""
        if self.received():
            return self.received()
        if self._end is not None and time.monotonic() >= self._end:
            return Reason.DURATION
        if self.interval and iteration > self.first and iteration % self.interval == 0:
            return Reason.INTERVAL
        if self._regroup_file and self._save_interval and iteration > self.first and iteration % self._save_interval == 0:
            return Reason.NODES if os.path.exists(self._regroup_file) else Reason.NONE
        return Reason.NONE
