"""Let a thread that reads a checkpoint get the interpreter soon while another thread runs Python code.

Python switches threads after 5 ms. A reading thread needs the interpreter after each call of the kernel, torch or isal, which
takes a millisecond: beside an import it would mostly wait. Eight reading threads beside a busy thread read 2.1 GB/s, with
switches after a millisecond 3.2, after a fifth of a millisecond 3.6; alone 4.5 to 6.2 (2 cores of a Xeon, 2026-11-27).
"""

import contextlib
import sys
import threading
from collections.abc import Iterator

SWITCH_SECONDS = 2e-4

_lock = threading.Lock()
# The number of active contexts, and the interval that the last one restores.
_within = 0
_usual_seconds = 0.0


@contextlib.contextmanager
def switch_often() -> Iterator[None]:
    """Within the context, on any thread, all threads of this process switch after SWITCH_SECONDS."""
    global _within, _usual_seconds
    with _lock:
        if not _within:
            _usual_seconds = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_SECONDS)
        _within += 1
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if not _within:
                sys.setswitchinterval(_usual_seconds)
