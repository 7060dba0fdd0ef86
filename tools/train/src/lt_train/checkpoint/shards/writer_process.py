"""Start and use the process that writes a rank's shards beside training. It reads the tensors from shared memory.

The process is a new interpreter without torch. A rank is never forked, because another thread may hold a lock at that moment. The
rank sends the offsets of the tensors in the shared memory, and receives the sizes and checksums of the written objects. The
process ends with its rank. Its protocol:

    rank to writer    the length of a command, with the descriptor of the shared memory, then the command, pickled: the files
    writer to rank    pickled: a request for the next tensor, if it is not in the memory yet; at the end an answer
    rank to writer    the offset of the requested tensor

The process takes 0.11 s of a processor to start, beside the rank's imports, and 21 MB (PSS; 2 cores of an AMD EPYC, 2026-11-30).
"""

import contextlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from lt_shared.console import IoFailure, ToolError
from lt_train.checkpoint.shards.archives import Frame, WrittenObject
from lt_train.process import run_files, signals

NO_ROOM = "no room"
LENGTH = struct.Struct("<Q")


class StagedTensor(NamedTuple):
    """A tensor in the shared memory. `offset` is None if the writer must request the tensor."""

    frame: Frame
    offset: int | None
    size_bytes: int


class Request(NamedTuple):
    """The writer's request for tensor `number` of file `file`."""

    file: int
    number: int


# A path or URL, and the objects in the file: complete bytes, or a tensor.
File = tuple[str, Sequence[bytes | StagedTensor]]


class Failure(NamedTuple):
    """The reason why the files were not written. It begins with NO_ROOM if a disk had no room."""

    reason: str
    hint: str | None
    exit_code: int


def failure_of(error: Exception) -> Failure:
    code = error.exit_code if isinstance(error, ToolError) else IoFailure.exit_code
    reason = f"{NO_ROOM}: {error}" if run_files.is_full(error) else str(error)
    return Failure(reason, getattr(error, "hint", None), int(code))


# The objects in each file, or the error that stopped writing.
Answer = list[list[WrittenObject]] | Failure | Exception


class WriterProcess:
    """The rank's side of the writer process."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair()
        # Without this variable, numpy would start a thread per processor.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        # -P: modules in the working directory cannot shadow Python's.
        command = [sys.executable, "-P", "-m", "lt_train.checkpoint.shards.writer_program", str(os.getpid())]
        # A signal to the rank's process group makes the rank save. The writer must survive it, so it inherits blocked signals.
        with theirs, signals.hold_back_signals():
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment)
        self._messages = self._connection.makefile("rb")
        self._pool = ThreadPoolExecutor(1, "checkpoint writer")
        self._answer: Future[Answer] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def write(self, memory: int, files: Sequence[File], offset: Callable[[int, int], int] | None = None) -> None:
        """Begin to write `files`, whose tensors are in the memory with the descriptor `memory`.

        If the writer requests a tensor, a thread calls `offset` with the numbers of file and tensor. `offset` copies the tensor
        into the memory and returns its offset.
        """
        command = pickle.dumps(files)
        # If the process has ended, `answer` returns the failure.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._connection, [LENGTH.pack(len(command))], [memory])
            self._connection.sendall(command)
        self._answer = self._pool.submit(self._serve_requests, offset)

    def has_answered(self) -> bool:
        """Return whether `answer` returns at once."""
        return self._answer is None or self._answer.done()

    def answer(self) -> Answer:
        """Wait until all files are written, or until the process has ended."""
        assert self._answer is not None
        return self._answer.result()

    def _serve_requests(self, offset: Callable[[int, int], int] | None) -> Answer:
        try:
            while isinstance(message := pickle.load(self._messages), Request):
                assert offset is not None
                self._connection.sendall(LENGTH.pack(offset(*message)))
        except (EOFError, BrokenPipeError, ConnectionResetError, pickle.UnpicklingError):
            return _failure_of_exit(self._process.wait())
        answer: Answer = message
        return answer

    def stop(self) -> None:
        """Kill the process, also while it writes."""
        self._process.kill()
        self._process.wait()
        self._pool.shutdown()
        self._messages.close()
        self._connection.close()


def _failure_of_exit(code: int) -> Failure:
    """Return the failure of a process that has ended with `code`.

    If a signal has ended it, the exit code is the same as for a rank that a signal has ended, so that the run may restart at
    once.
    """
    if code < 0:
        hint = "often the kernel, out of memory: see dmesg" if code == -signal.SIGKILL else None
        return Failure(f"its writer was ended by {signal.Signals(-code).name}", hint, 128 - code)
    return Failure(f"its writer ended with {code}", None, IoFailure.exit_code)


_writer: WriterProcess | None = None


def start() -> WriterProcess:
    """Return the writer of this process. Start it unless it runs."""
    global _writer
    if _writer is None or _writer.has_ended():
        stop()
        _writer = WriterProcess()
    return _writer


def stop() -> None:
    """End the writer, if there is one."""
    global _writer
    if _writer is not None:
        _writer.stop()
        _writer = None
