"""The program that asks a nursery for a copy of it and stands for that copy: what nursery.py writes into `python`.

By itself it imports little, as every start of a copy does it again: 0.02 seconds of processor time instead of 0.04.
"""

import json
import os
import resource
import socket
import sys

STREAMS = (0, 1, 2)
LARGEST_REQUEST_BYTES = 2**17
# Which a process inherits, as it does its umask.
LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)


def start(listener: str, arguments: list[str]) -> int:
    """Have a copy run with this process's streams; its exit code. What kills the copy kills this process, too."""
    os.umask(mask := os.umask(0))
    limits = [(number, resource.getrlimit(number)) for number in LIMITS]
    request = {"arguments": arguments, "directory": os.getcwd(), "environment": dict(os.environ), "umask": mask, "limits": limits}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(listener)
        socket.send_fds(connection, [json.dumps(request).encode()], STREAMS)
        code = int(connection.recv(16))
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(start(sys.argv[1], sys.argv[2:]))
