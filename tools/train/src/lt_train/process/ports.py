"""Find a port for ranks that meet on this machine."""

import contextlib
import random
import socket

FIRST_TO_LAST = (20000, 32000)


def free_port() -> int:
    """Return a port without a listener. Rank 0 binds it seconds later, so it lies below the ports of outgoing connections."""
    while True:
        port = random.randrange(*FIRST_TO_LAST)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
