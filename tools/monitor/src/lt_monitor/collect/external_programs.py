"""One answer of another program: nvidia-smi, neuron-monitor, squeue.

A program that is missing, or does not answer (nvidia-smi hangs on a broken driver, squeue retries for a minute when there is no
controller), is no reason to stop: the caller reports it and continues.
"""

import os
import signal
import subprocess
from collections.abc import Sequence

ANSWER_SECONDS = 20.0


class NoAnswer(Exception):
    """The program is missing, failed or did not answer; the message says which."""


def answer(arguments: Sequence[str], seconds: float = ANSWER_SECONDS) -> str:
    """What the program prints, with its exit code other than 0 as NoAnswer."""
    try:
        done = subprocess.run(arguments, capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds, env=_environment())
    except FileNotFoundError:
        raise NoAnswer(f"{arguments[0]}: not installed here") from None
    except OSError as error:
        raise NoAnswer(f"{arguments[0]}: {(error.strerror or str(error)).lower()}") from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{arguments[0]}: no response within {seconds:.0f} s") from None
    if done.returncode:
        said = (done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace").strip()).splitlines()
        raise NoAnswer(f"{arguments[0]}: {said[0] if said else f'exit code {done.returncode}'}")
    return done.stdout.decode(errors="replace")


def first_line(arguments: Sequence[str], seconds: float = ANSWER_SECONDS) -> str:
    """The first line of a program that prints for ever; it is ended then."""
    try:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except FileNotFoundError:
        raise NoAnswer(f"{arguments[0]}: not installed here") from None
    except OSError as error:
        raise NoAnswer(f"{arguments[0]}: {(error.strerror or str(error)).lower()}") from None
    with process:
        try:
            return _read_line(process, seconds, arguments[0])
        finally:
            # The whole group: the program may have started others that hold the pipe.
            os.killpg(process.pid, signal.SIGKILL)


def _read_line(process: subprocess.Popen[bytes], seconds: float, name: str) -> str:
    import selectors
    import time

    assert process.stdout is not None
    deadline = time.monotonic() + seconds
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while b"\n" not in line:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise NoAnswer(f"{name}: no response within {seconds:.0f} s")
            block = os.read(process.stdout.fileno(), 1 << 16)
            if not block:
                break
            line += block
    if not line.strip():
        raise NoAnswer(f"{name}: ended without output")
    return line.partition(b"\n")[0].decode(errors="replace")


def _environment() -> dict[str, str]:
    """Numbers and dates as the parsers expect them, in any locale and for any user's settings."""
    ours = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    return {key: value for key, value in os.environ.items() if not key.startswith(("SQUEUE_", "SACCT_"))} | ours
