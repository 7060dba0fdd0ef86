"""A fault at an exact moment of a run: Python imports this module at its start when this directory is in PYTHONPATH.

LT_FAULT is RANK:FUNCTION:TEXT:SIGNAL:TARGET, for example `0:rename:iter_0000004:SIGKILL:launcher`: before rank 0 calls os.rename
with a path that contains the text, its launcher gets the signal; TARGET `rank` is the rank itself, also when its writer process
calls the function. The name of an error, such as ENOSPC, is raised instead; REGROUP waits until the launcher of an elastic run
asks the ranks to end after their next checkpoint. Of os.fsync, the path is that of the open
file; `python_open` is Python's own open. It happens once in each process. Several faults are separated by commas.
"""

import builtins
import errno
import io
import os
import signal
import sys
import time


def install(fault: str) -> None:
    rank, function, text, name, target = fault.split(":")
    if "LT_TRAIN_PARENT" not in os.environ:
        return
    is_writer = "lt_train.checkpoint.shards.writer_program" in sys.orig_argv
    rank_pid = os.getppid() if is_writer else os.getpid()
    victim = rank_pid if target == "rank" else int(os.environ["LT_TRAIN_PARENT"])
    original = builtins.open if function == "python_open" else getattr(os, function)
    # One byte, which forked processes share: whoever reads it may act.
    permission, writing_end = os.pipe()
    os.set_blocking(permission, False)
    os.write(writing_end, b"1")

    def is_permitted():
        try:
            return bool(os.read(permission, 1))
        except BlockingIOError:
            return False

    def faulty(*arguments, **options):
        path = os.readlink(f"/proc/self/fd/{arguments[0]}") if isinstance(arguments[0], int) else os.fspath(arguments[0])
        # A spare process may become the rank later.
        if os.environ.get("RANK") == rank and text in path and is_permitted():
            if name == "REGROUP":
                while not os.path.exists(os.environ["LT_TRAIN_REGROUP"]):
                    time.sleep(0.05)
                return original(*arguments, **options)
            if not name.startswith("SIG"):
                raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)), path)
            os.kill(victim, signal.Signals[name])
            if name == "SIGKILL":
                # The kernel ends this process too, but not in the same moment. If it did not, the test would run out of time.
                time.sleep(600)
        return original(*arguments, **options)

    if function == "python_open":
        builtins.open = io.open = faulty
    else:
        setattr(os, function, faulty)


for each in filter(None, os.environ.get("LT_FAULT", "").split(",")):
    install(each)
