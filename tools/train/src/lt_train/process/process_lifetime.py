"""A process ends with the one that started it, however that one ends: the kernel sees to it (PR_SET_PDEATHSIG)."""

import ctypes
import os
import signal

from lt_shared.console import ExitCode

PR_SET_PDEATHSIG = 1
PARENT_VARIABLE = "LT_TRAIN_PARENT"


# Of a rank to lt-train, which exits with NO_PROGRESS for it wherever it runs; no other program sees it.
MISCOMPUTED = 77


def miscomputed_code() -> int:
    """The exit code of a rank that computes wrong: to lt-train, or to another launcher."""
    return MISCOMPUTED if PARENT_VARIABLE in os.environ else ExitCode.NO_PROGRESS


def hung_code() -> int:
    """The exit code of a rank that waits in vain for others: to lt-train, or to another launcher."""
    return ExitCode.NO_PROGRESS if PARENT_VARIABLE in os.environ else ExitCode.TRY_AGAIN


def die_with_launcher() -> None:
    """Ask the kernel to kill this rank when lt-train goes away; does nothing in a rank that another launcher started."""
    launcher = os.environ.get(PARENT_VARIABLE)
    if launcher is not None:
        die_with(int(launcher))


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when `parent` goes away, or end now if it has gone already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
