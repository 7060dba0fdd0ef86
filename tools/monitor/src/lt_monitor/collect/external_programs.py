"""Run a program of the machine (nvidia-smi, neuron-monitor, squeue) and read its output.

A program may be missing or may not answer: nvidia-smi hangs on a broken driver, and squeue retries for a minute without a
controller. The caller reports such a program and continues.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import IO

ANSWER_SECONDS = 20.0
MAXIMUM_BYTES = 64 << 20
LINE_CHARACTERS = 1000


class NoAnswer(Exception):
    """The program is missing, failed or did not answer; the message says which."""


def answer(arguments: Sequence[str], seconds: float = ANSWER_SECONDS) -> str:
    """Return the program's standard output. Raises NoAnswer for an exit code other than 0."""
    with _started(arguments) as process:
        printed = _read(process, seconds, arguments[0])
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"{arguments[0]}: does not end within {seconds:.0f} s") from None
    if code:
        lines = (printed[process.stderr].strip() or printed[process.stdout].strip()).splitlines()
        raise NoAnswer(f"{arguments[0]}: {lines[0][:LINE_CHARACTERS] if lines else f'exit code {code}'}")
    return printed[process.stdout]


def first_line(arguments: Sequence[str], seconds: float = ANSWER_SECONDS) -> str:
    """Return the first line of a program that prints for ever, then kill the program."""
    with _started(arguments) as process:
        printed = _read(process, seconds, arguments[0], until=b"\n")[process.stdout]
    if not printed.strip():
        raise NoAnswer(f"{arguments[0]}: ended without output")
    return printed.partition("\n")[0]


@contextlib.contextmanager
def _started(arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process. When the block ends, kill its whole process group, because child processes may hold the pipes open."""
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=_environment(), start_new_session=True
        )
    except FileNotFoundError:
        raise NoAnswer(f"{arguments[0]}: not installed here") from None
    except OSError as error:
        raise NoAnswer(f"{arguments[0]}: {(error.strerror or str(error)).lower()}") from None
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _read(process: subprocess.Popen[bytes], seconds: float, name: str, until: bytes | None = None) -> dict[IO[bytes] | None, str]:
    """Read both pipes of the process until it ends, or until its standard output contains `until`."""
    deadline = time.monotonic() + seconds
    printed: dict[IO[bytes] | None, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            selector.register(pipe, selectors.EVENT_READ, pipe)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise NoAnswer(f"{name}: no response within {seconds:.0f} s")
            for key, _ in ready:
                block = os.read(key.fd, 1 << 16)
                printed[key.data] += block
                if not block:
                    selector.unregister(key.fileobj)
            if sum(map(len, printed.values())) > MAXIMUM_BYTES:
                raise NoAnswer(f"{name}: prints more than {MAXIMUM_BYTES >> 20} MiB")
            if until is not None and until in printed[process.stdout]:
                break
    return {pipe: content.decode(errors="replace") for pipe, content in printed.items()}


def _environment() -> dict[str, str]:
    """Return an environment that fixes the format of numbers and dates, whatever the user's locale and Slurm settings are."""
    ours = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    return {key: value for key, value in os.environ.items() if not key.startswith(("SQUEUE_", "SACCT_"))} | ours
