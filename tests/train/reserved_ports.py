"""Ports that no two test processes of this machine take, however long before they are used.

A test names the ports of a dozen runs at once and the last is bound minutes later. Of random ports, a hundred under way among
12,000 collide in a third of all sessions (the birthday problem); a locked file for each excludes it until the process ends.
"""

import fcntl
import tempfile
from pathlib import Path
from typing import IO

from lt_train.process import ports

DIRECTORY = Path(tempfile.gettempdir()) / "lt-test-ports"
# Below are ports of the first jobs of a cluster, whose ranks meet on 20000 and what their number adds.
FIRST_PORT = 21000
_held: list[IO[str]] = []


def free_port() -> int:
    """As `ports.free_port`, and reserved for this process."""
    DIRECTORY.mkdir(mode=0o777, exist_ok=True)
    while True:
        port = ports.free_port()
        if port < FIRST_PORT:
            continue
        file = (DIRECTORY / str(port)).open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        _held.append(file)
        return port
