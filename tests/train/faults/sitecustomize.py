"""Sends a signal at an exact moment of a run: Python imports this module at its start when this directory is in PYTHONPATH.

LT_FAULT is RANK:FUNCTION:TEXT:SIGNAL:TARGET, for example `0:rename:iter_0000004:SIGKILL:launcher`: before rank 0 calls os.rename with
a path that contains the text, its launcher gets the signal; TARGET `rank` is the rank itself, also when a process that it forked
calls the function. Of os.fsync, the path is that of the open file. It happens once.
"""

import os
import signal


def install(fault: str) -> None:
    rank, function, text, name, target = fault.split(":")
    if os.environ.get("RANK") != rank or "LT_TRAIN_PARENT" not in os.environ:
        return
    victim = os.getpid() if target == "rank" else int(os.environ["LT_TRAIN_PARENT"])
    original = getattr(os, function)
    sent = []

    def faulty(*arguments, **options):
        path = os.readlink(f"/proc/self/fd/{arguments[0]}") if function == "fsync" else os.fspath(arguments[0])
        if text in path and not sent:
            sent.append(True)
            os.kill(victim, signal.Signals[name])
        return original(*arguments, **options)

    setattr(os, function, faulty)


if "LT_FAULT" in os.environ:
    install(os.environ["LT_FAULT"])
