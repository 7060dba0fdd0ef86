"""Name the process that holds the lock of a file, as far as Linux tells it."""

import os
from pathlib import Path


def describe(descriptor: int) -> str:
    """Return `process 1234 of user 1001 (python)` for the holder of a lock on an open file.

    It is `another process` if the holder runs on another node, or in a container whose processes are not visible here.
    """
    status = os.fstat(descriptor)
    identity = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        fields = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        pid = next(words[4] for words in fields if words[1] != "->" and words[5] == identity)
        process = Path("/proc") / pid
        return f"process {pid} of user {process.stat().st_uid} ({(process / 'comm').read_text().strip()})"
    except (OSError, StopIteration, IndexError):
        return "another process"
