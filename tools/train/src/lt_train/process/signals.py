"""Ending a run before its last step: signals, time and step limits, on which all ranks agree.

SIGTERM (Slurm's preemption, Kubernetes) and SIGUSR1 (`sbatch --signal=USR1@300`) ask the run to finish its step, save, and end
with exit code 75, so that a batch script can put the job back into the queue. They may reach one rank only, or each at another
moment: in every step, before the optimizer runs, the ranks reduce their reasons to the maximum, so all ranks save the same
step. That costs a small all-reduce per step, and one step more after a signal that comes while the optimizer runs. A second
signal ends the process at once. So does SIGINT, which is Ctrl-C, in a run that saves; elsewhere, and if a shell has it ignored,
it keeps its meaning. Before the first step there is nothing to save, and a signal ends the program with the same exit
code.

Slurm sends a signal to every process of a step, so a rank gets it from Slurm and again from lt-train or torchrun. The same signal
is therefore taken for one within SAME_SIGNAL_SECONDS.
"""

import ctypes
import enum
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lt_shared.console import ExitCode, Terminated

# These are held back and passed on together. Which are waited for is what `waited_for` says.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
SAME_SIGNAL_SECONDS = 5.0


class Reason(enum.IntEnum):
    """Why a run ends early. When several are there, the largest counts."""

    NONE = 0
    PHASE = 1
    INTERVAL = 2
    DURATION = 3
    USER_SIGNAL = 4
    TERMINATION = 5
    INTERRUPT = 6
    NO_DATA = 7

    @property
    def text(self) -> str:
        return {
            Reason.PHASE: "--data-schedule",
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


def waited_for(saves: bool) -> list[signal.Signals]:
    """The signals after which a run ends its step; SIGINT only if it `saves`, and unless a shell has it ignored."""
    minds_interrupt = saves and signal.getsignal(signal.SIGINT) != signal.SIG_IGN
    return [number for number in SIGNALS if number != signal.SIGINT or minds_interrupt]


def end_before_training() -> None:
    """Until `listen` is called, a signal ends this program with the exit code that puts the job back into the queue."""
    for number in SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _try_again)


def _try_again(number: int, frame: FrameType | None) -> None:
    _die_by_another(number)
    raise Terminated(number, ExitCode.TRY_AGAIN)


def listen(saves: bool = False) -> None:
    """From now on the first signal is noted, and the second ends this process; `saves` is as for `waited_for`.

    Signals that arrived while they were blocked (see `held_back`) are delivered here.
    """
    for number in waited_for(saves):
        signal.signal(number, _note)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _note(number: int, frame: FrameType | None) -> None:
    global _received
    _received = REASONS[signal.Signals(number)]
    _die_by_another(number)


def die_by_signals() -> None:
    """Let each signal end this process, without Python having a say: it may wait inside of a collective for ever."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _die_by_another(number: int) -> None:
    """As `die_by_signals`, but for some seconds `number` once more is nothing new."""
    die_by_signals()
    signal.signal(number, lambda number, frame: None)
    # The main thread may hang by then, and no other may set a handler in Python.
    later = threading.Timer(SAME_SIGNAL_SECONDS, lambda: ctypes.CDLL(None).signal(number, signal.SIG_DFL))
    later.daemon = True
    later.start()


@contextmanager
def held_back() -> Iterator[None]:
    """Keep the signals of this block for its end. Processes that it starts have them blocked: only SIGKILL ends those.

    Another thread of this process, as numpy starts them, may still take one; the handler of before then runs at once.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Limits:
    """What ends a run that starts at the step `first` early. `duration_minutes` counts from the start of the process."""

    def __init__(self, first: int, interval: int | None, duration_minutes: float | None):
        self.first = first
        self.interval = interval
        self._end = None if duration_minutes is None else _started + duration_minutes * 60

    @staticmethod
    def received() -> Reason:
        """The signal that this rank has received."""
        return _received

    def reached(self, iteration: int) -> Reason:
        """Return this rank's own reason to end after `iteration` steps."""
        if self.received():
            return self.received()
        if self._end is not None and time.monotonic() >= self._end:
            return Reason.DURATION
        if self.interval and iteration > self.first and iteration % self.interval == 0:
            return Reason.INTERVAL
        return Reason.NONE
