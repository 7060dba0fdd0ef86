"""Threads that read while another one computes in Python take turns often.

Python lets a thread that waits for the interpreter have it after 5 ms. One that reads a checkpoint asks for it after each call of
the kernel, of torch and of isal, which take a millisecond: beside an import it waits for most of its time. Eight of them read 2.1
GB/s beside a thread that is never idle, 3.2 with a millisecond and 3.6 with a fifth; 4.5 to 6.2 alone (2 cores of a Xeon,
2026-11-27).
"""

import contextlib
import sys
import threading
from collections.abc import Iterator

SWITCH_SECONDS = 2e-4

_lock = threading.Lock()
# Those that are within, and what the last of them restores.
_within = 0
_usual_seconds = 0.0


@contextlib.contextmanager
def switch_often() -> Iterator[None]:
    """Within, in whichever thread, all threads of this process take turns after SWITCH_SECONDS."""
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
