"""Find a port for ranks that meet on this machine, and listen on the address that a rendezvous names."""

import contextlib
import errno
import ipaddress
import os
import random
import socket

from lt_shared.console import warn

FIRST_TO_LAST = (20000, 32000)
LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """Return a port without a listener. Rank 0 binds it seconds later, so it lies below the ports of outgoing connections."""
    while True:
        port = random.randrange(*FIRST_TO_LAST)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind((LOOPBACK, port))
            return port


def shut_down_connections(port: int) -> None:
    """End this process's TCP connections from and to `port`, also those of C++ code: calls that wait for an answer then fail."""
    for name in os.listdir("/proc/self/fd"):
        # The descriptor may have been closed meanwhile, or be no connected socket.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as connection:
            is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
            if is_tcp and port in (connection.getsockname()[1], connection.getpeername()[1]):
                connection.shutdown(socket.SHUT_RDWR)


def bind(host: str, port: int) -> socket.socket | None:
    """Bind a socket to this machine's address for `host`. None, with a warning, if other machines see another address.

    Raises OSError if the port is taken.
    """
    for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if ipaddress.ip_address(address[0]).is_loopback and host != LOOPBACK:
            continue
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRNOTAVAIL:
                raise
        else:
            return listener
    warn(f"MASTER_ADDR {host} is no address of this machine's interfaces: the rendezvous listens on all of them, port {port}")
    return None


def listen(host: str, port: int) -> socket.socket:
    """Listen on this machine's address for `host`, or on all interfaces if other machines see another address.

    Raises OSError.
    """
    if listener := bind(host, port):
        listener.listen()
        return listener
    return socket.create_server(("", port))
