"""A lock that another process holds."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_HOLD = """
import fcntl, os, sys, time
path = sys.argv[1]
descriptor = os.open(path, os.O_RDONLY if os.path.isdir(path) else os.O_RDWR | os.O_CREAT)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def locked_by_another_process(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a directory, or on a file that is created if it is missing."""
    other = subprocess.Popen([sys.executable, "-c", _HOLD, path], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        yield
    finally:
        other.kill()
        other.communicate()
