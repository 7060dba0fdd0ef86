"""Interrupt a rank if another one has died or hangs: the rank abandons its step and begins again in the same process.

The launcher tells a thread of the rank (`lt_train.launch.control`). gloo's collectives fail by themselves when a connection is
closed. A GPU's collectives wait forever: the host waits for the device, and a kernel on the device for the dead rank. So the
thread aborts them. The kernels then end with arbitrary buffers, and the host goes on without an error: it must neither log nor
save any number that it reads from the device after the interruption.

Imports no torch: a rank can be interrupted from its beginning on.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

from lt_shared.console import ToolError

_is_interrupted = threading.Event()
_replace: Callable[[int], None] | None = None
_end_wait: Callable[[], None] | None = None


class Echo(ToolError):
    """An error that is the consequence of a failure on another rank, which reports the cause."""


def allow(replace: Callable[[int], None]) -> None:
    """Let this rank be interrupted from now on. `replace(rank)` asks the launcher to end a rank and to start another one."""
    global _replace
    _replace = replace


def interrupt() -> None:
    _is_interrupted.set()
    if end_wait := _end_wait:
        end_wait()


@contextlib.contextmanager
def ending_waits(end_wait: Callable[[], None]) -> Iterator[None]:
    """Within the context, an interruption calls `end_wait` in another thread. Raises Echo if this rank is interrupted already."""
    global _end_wait
    _end_wait = end_wait
    try:
        check()
        yield
    finally:
        _end_wait = None


def clear() -> None:
    """Begin another attempt, which is not interrupted."""
    _is_interrupted.clear()


def is_interrupted() -> bool:
    return _is_interrupted.is_set()


def check() -> None:
    """Raises Echo if this rank is interrupted. Call this after waiting for the device, before its numbers are used."""
    if _is_interrupted.is_set():
        raise Echo("another rank has died or hangs")


def is_allowed() -> bool:
    return _replace is not None


def replace(rank: int) -> None:
    """Ask for another process in place of `rank`, which hangs."""
    if _replace:
        _replace(rank)
