"""A rank is interrupted when another one has died or hangs: it leaves what it does, and begins again in the same process.

Its launcher says so (`lt_train.launch.control`), to a thread of the rank. gloo's collectives fail by themselves when a connection
is closed. Those of a GPU wait for ever: the host waits for the device, and a kernel of the device for the rank that has died. So
that thread aborts them. The kernels then end with whatever their buffers hold, and the host goes on as if all was well: what it
reads from the device after the interruption, it must neither log nor save.

Imports no torch: a rank can be interrupted from its beginning on.
"""

import threading
from collections.abc import Callable

from lt_shared.console import ToolError

_is_interrupted = threading.Event()
_replace: Callable[[int], None] | None = None


class Echo(ToolError):
    """Something failed on another rank, which knows what."""


def expect(replace: Callable[[int], None]) -> None:
    """This rank may be interrupted from now on; `replace` asks for the end of the rank that it is given, and for another one."""
    global _replace
    _replace = replace


def interrupt() -> None:
    _is_interrupted.set()


def clear() -> None:
    """Another attempt begins."""
    _is_interrupted.clear()


def is_interrupted() -> bool:
    return _is_interrupted.is_set()


def check() -> None:
    """Raises Echo when this rank is interrupted. Call after waiting for the device, before its numbers are used."""
    if _is_interrupted.is_set():
        raise Echo("another rank has died or hangs")


def is_expected() -> bool:
    return _replace is not None


def replace(rank: int) -> None:
    """Ask for another process in place of `rank`, which hangs."""
    if _replace:
        _replace(rank)
