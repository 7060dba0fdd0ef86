"""Let a process end with its parent, even if the parent is killed: the kernel ends it (PR_SET_PDEATHSIG)."""

import ctypes
import os
import signal

from lt_shared.console import ExitCode

PR_SET_PDEATHSIG = 1
PARENT_VARIABLE = "LT_TRAIN_PARENT"
# A rank that computes wrong exits with this code if lt-train has started it. lt-train then exits with NO_PROGRESS; no other
# program sees the code.
MISCOMPUTED = 77


def miscomputed_code() -> int:
    """Return the exit code of a rank that computes wrong, for lt-train or for another launcher."""
    return MISCOMPUTED if PARENT_VARIABLE in os.environ else ExitCode.NO_PROGRESS


def hung_code() -> int:
    """Return the exit code of a rank that waits in vain for other ranks, for lt-train or for another launcher."""
    return ExitCode.NO_PROGRESS if PARENT_VARIABLE in os.environ else ExitCode.TRY_AGAIN


def die_with_launcher() -> None:
    """Ask the kernel to kill this rank when lt-train ends. Does nothing in a rank that another launcher started."""
    launcher = os.environ.get(PARENT_VARIABLE)
    if launcher is not None:
        die_with(int(launcher))


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when `parent` ends, or end now if `parent` has ended already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
