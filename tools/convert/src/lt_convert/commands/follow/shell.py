"""Run the user's command on a checkpoint, in a process group of its own, which ends when this process is told to end."""

import os
import shlex
import signal
import subprocess
import sys

from lt_shared.console import UsageError

PLACE = "{}"
STANDARD_ERROR = 2
GRACE_SECONDS = 10.0


def check(command: str) -> None:
    """Raises UsageError for a command that would be the same for each checkpoint."""
    if PLACE not in command:
        raise UsageError(f"--each {command!r}: has no {{}}", "{} stands for the path of the checkpoint")


def filled(command: str, path: str) -> str:
    """The command with the path in place of {}, quoted for the shell."""
    return command.replace(PLACE, shlex.quote(path))


def run(command: str) -> int:
    """Run a command line with sh and return its exit code, 128+n for signal n.

    It has no standard input, and its standard output goes to standard error: the manifest is on standard output.
    """
    sys.stderr.flush()
    child = subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, stdout=STANDARD_ERROR, start_new_session=True)
    try:
        code = child.wait()
    except BaseException:
        _end(child)
        raise
    return 128 - code if code < 0 else code


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Ask all processes of the command to end, and kill those that do not."""
    _signal(child, signal.SIGTERM)
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal(child, signal.SIGKILL)
        child.wait()


def _signal(child: "subprocess.Popen[bytes]", number: int) -> None:
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return
