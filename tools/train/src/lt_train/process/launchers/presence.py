"""Let the processes on a machine wait for each other before they import torch.

A single process with leftover variables would wait at the rendezvous for the time limit of a step. So each process binds an
abstract Unix socket whose name has the rendezvous port and the rank. Such a socket is visible in the network namespace, like
loopback, where these ranks meet, and vanishes with the process.
"""

import os
import socket
import time

from lt_shared.console import Unavailable

# A launcher starts the processes of a machine at the same time, and Python takes a second.
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.1
SHOWN = 16

# Bound for as long as the process lives, because slower ranks still look for it.
_bound: list[socket.socket] = []


def wait_for_ranks(rank: int, ranks: int, port: int, launcher: str, wait_seconds: float = WAIT_SECONDS) -> None:
    """Wait until `ranks` processes have called this. Raises Unavailable with the numbers of missing ranks."""
    deadline = time.monotonic() + wait_seconds
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    _bound.append(listener)
    missing = set(range(ranks))
    while True:
        if rank in missing and _binds(listener, _name(port, rank)):
            missing.discard(rank)
        missing = {other for other in missing if other == rank or not _is_present(_name(port, other))}
        # If only this rank's name is taken, another run has the same port; torch's store reports that.
        if missing <= {rank} and (not missing or time.monotonic() >= deadline):
            return
        if time.monotonic() >= deadline:
            break
        time.sleep(POLL_SECONDS)
    absent = sorted(missing - {rank})
    numbers = ", ".join(map(str, absent[:SHOWN])) + (" and more" if len(absent) > SHOWN else "")
    raise Unavailable(
        f"of {ranks} processes that {launcher} started on this machine, number {numbers} did not come within {wait_seconds:g}"
        " seconds",
        "see how the others ended; for a process that is alone, unset the variables that the launcher has left",
    )


def _name(port: int, rank: int) -> bytes:
    return f"\0lt-train/{os.getuid()}/{port}/{rank}".encode()


def _binds(listener: socket.socket, name: bytes) -> bool:
    try:
        listener.bind(name)
    except OSError:
        return False
    return True


def _is_present(name: bytes) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(name)
        except OSError:
            return False
    return True
