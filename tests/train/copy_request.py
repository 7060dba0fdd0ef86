"""The program that asks a nursery for a copy of it and stands for that copy: what nursery.py writes into `python`.

By itself it imports little, as every start of a copy does it again: 0.02 seconds of processor time instead of 0.04.
"""

import json
import os
import resource
import signal
import socket
import sys

STREAMS = (0, 1, 2)
# A rank has it in its environment (lt_train.process.process_lifetime).
PARENT_VARIABLE = "LT_TRAIN_PARENT"
PASSED_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
# In which a node of the tests' cluster differs from this machine.
NAMESPACES = ("uts", "net", "mnt")
PR_SET_PDEATHSIG = 1
LARGEST_REQUEST_BYTES = 2**17
# Which a process inherits, as it does its umask.
LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)


def start(listener: str, arguments: list[str]) -> int:
    """Have a copy run with this process's streams; its exit code. What kills the copy kills this process, too.

    In place of a rank, it passes on the launcher's signals, which are blocked in the copy as in a rank that begins.
    """
    os.umask(mask := os.umask(0))
    is_rank = PARENT_VARIABLE in os.environ
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON if is_rank else ())
    request = {
        "arguments": arguments,
        "directory": os.getcwd(),
        "environment": dict(os.environ),
        "umask": mask,
        "limits": [(number, resource.getrlimit(number)) for number in LIMITS],
        "blocked": sorted(blocked) if is_rank else [],
        "cores": sorted(os.sched_getaffinity(0)),
        "namespaces": [os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES],
        "process": os.getpid(),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(listener)
        socket.send_fds(connection, [json.dumps(request).encode()], STREAMS)
        if is_rank:
            die_with_parent()
            for number in PASSED_ON:
                signal.signal(number, lambda number, frame: connection.send(str(number).encode()))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        code = int(connection.recv(16))
    if code < 0:
        if -code in PASSED_ON:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def die_with_parent() -> None:
    """As a rank does."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[PARENT_VARIABLE]):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(start(sys.argv[1], sys.argv[2:]))
