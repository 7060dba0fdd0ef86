"""The process that writes a rank's shards beside training: started with the rank, and fed through shared memory.

It is a new interpreter with numpy and the files' own code, and without torch: nothing of a rank with threads, whose locks may be
held, is ever forked. The rank names the places of the tensors in memory that both have, and gets the sizes and checksums of what
was written. It ends with its rank.

    rank to writer    the length of a command, with the descriptor of the shared memory, then the command, pickled: the files
    writer to rank    pickled: which tensor it needs next, if that is not in the memory yet; at the end an answer
    rank to writer    the place of that tensor

It takes 0.11 s of a processor to start, beside the rank's own imports, and 21 MB (PSS; 2 cores of an AMD EPYC, 2026-11-30).
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
from lt_train.checkpoint.shards.archives import Frame, Written
from lt_train.process import run_files, signals

NO_ROOM = "no room"
LENGTH = struct.Struct("<Q")


class StagedTensor(NamedTuple):
    """A tensor in the shared memory; `offset` is None when the writer asks for it."""

    frame: Frame
    offset: int | None
    size_bytes: int


class Request(NamedTuple):
    """Of the writer: for the tensor of that number in the file of that number."""

    file: int
    number: int


# A path or URL, and what is written there: an object's own bytes, or a tensor.
File = tuple[str, Sequence[bytes | StagedTensor]]


class Failure(NamedTuple):
    """Why there are no files; the reason begins with NO_ROOM where there was no room for them."""

    reason: str
    hint: str | None
    exit_code: int


def failure_of(error: Exception) -> Failure:
    code = error.exit_code if isinstance(error, ToolError) else IoFailure.exit_code
    reason = f"{NO_ROOM}: {error}" if run_files.is_full(error) else str(error)
    return Failure(reason, getattr(error, "hint", None), int(code))


# The objects in each file, or what kept one from being written.
Answer = list[list[Written]] | Failure | Exception


class WriterProcess:
    """The rank's side."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair()
        # numpy makes a thread for each processor otherwise.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-m", "lt_train.checkpoint.shards.writer_program", str(os.getpid())]
        # A signal to the process group of a rank lets the rank save: it must not end what saves.
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
        """Begin to write `files`, whose tensors lie in the memory with the descriptor `memory`.

        `offset` brings a tensor there that the writer asks for, by the numbers of file and tensor, in a thread.
        """
        command = pickle.dumps(files)
        # Of a process that has ended, `answer` tells how.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._connection, [LENGTH.pack(len(command))], [memory])
            self._connection.sendall(command)
        self._answer = self._pool.submit(self._served, offset)

    def has_answered(self) -> bool:
        """Whether `answer` returns at once."""
        return self._answer is None or self._answer.done()

    def answer(self) -> Answer:
        """Wait until all is written, or the process has ended."""
        assert self._answer is not None
        return self._answer.result()

    def _served(self, offset: Callable[[int, int], int] | None) -> Answer:
        try:
            while isinstance(message := pickle.load(self._messages), Request):
                assert offset is not None
                self._connection.sendall(LENGTH.pack(offset(*message)))
        except (EOFError, BrokenPipeError, ConnectionResetError, pickle.UnpicklingError):
            return _death(self._process.wait())
        answer: Answer = message
        return answer

    def stop(self) -> None:
        """End it, also while it writes."""
        self._process.kill()
        self._process.wait()
        self._pool.shutdown()
        self._messages.close()
        self._connection.close()


def _death(code: int) -> Failure:
    """A writer that a signal has ended is as good as such a rank: the run may start again at once."""
    if code < 0:
        hint = "often the kernel, out of memory: see dmesg" if code == -signal.SIGKILL else None
        return Failure(f"its writer was ended by {signal.Signals(-code).name}", hint, 128 - code)
    return Failure(f"its writer ended with {code}", None, IoFailure.exit_code)


_writer: WriterProcess | None = None


def start() -> WriterProcess:
    """This process's writer, started unless it runs."""
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
