"""The process that writes a rank's shards of a checkpoint, while training waits or continues.

It is forked, so it has the staged tensors as they were at that moment without another copy of them. It ends with its rank.

A fork copies the locks of other threads as they are. Until Python 3.12 the interpreter itself waits in the new process for one
that a thread of gloo or NCCL may hold, for a few microseconds after each collective, while it frees a tensor: a writer that does
not say at once that it runs is killed, and forked again.
"""

import contextlib
import logging
import multiprocessing
import os
import pickle
import queue
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lt_shared import memory, storage
from lt_shared.console import IoFailure, ToolError
from lt_train.checkpoint import disk_space
from lt_train.runtime.process_lifetime import end_with_parent

Report = tuple[str, str | None, int]
# How long to wait for a new process; each time longer, since a busy machine may only be slow.
START_SECONDS = (5.0, 15.0, 60.0)
NO_ROOM = "no room"


class WriteResults:
    """What a writer hands back, in a file without a name that both processes have open.

    Stands in for the queue of a manager process that megatron-core would start: that one takes seconds to start and outlives a
    killed rank, and a pipe would hold the writer until somebody reads.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()

    def put(self, results: Any) -> None:
        pickle.dump(results, self._file)
        self._file.flush()

    def get_nowait(self) -> Any:
        self._file.seek(0)
        try:
            return pickle.load(self._file)
        except EOFError:
            raise queue.Empty from None


class Writer:
    """The process that writes this rank's shards, and uploads them when `destination` is a URL."""

    def __init__(self, request: Any, destination: str | None):
        self.error: Report | None = None
        self.paths: list[Path] = []
        self._process: Any = None
        self._results: Any = None
        if request.async_fn is None:
            return
        rank, buckets, results = request.async_fn_args
        self._results = results
        staged = request.preload_fn() if request.preload_fn else list(buckets)
        self.paths = [Path(path) for path, *_ in buckets]
        self._start((os.getpid(), request.async_fn, (rank, staged, results), self.paths, destination))
        # megatron-core only counts them from here on; their tensors may take GPU memory.
        buckets[:] = [(path, name, ([], [])) for path, name, _ in buckets]

    def _start(self, work: tuple[Any, ...]) -> None:
        fork = multiprocessing.get_context("fork")
        for seconds in START_SECONDS:
            self._said, said = fork.Pipe(duplex=False)
            self._process = fork.Process(target=_write, args=(*work, said))
            # A forked process must not free tensors of the GPU: it has no context there.
            with memory.garbage_collection_paused():
                self._process.start()
            said.close()
            # Also when it has ended at once, which `wait` explains.
            if self._said.poll(seconds):
                with contextlib.suppress(EOFError):
                    self._said.recv()
                return
            self._process.kill()
            self._process.join()
        raise IoFailure(f"no process that writes has begun within {START_SECONDS[-1]:g} seconds", "is the node overloaded?")

    def is_running(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def wait(self) -> None:
        """Until the process has ended; sets `error`."""
        if self._process is None:
            return
        self._process.join()
        if self._process.exitcode:
            with contextlib.suppress(EOFError):
                self.error = self._said.recv()
            self.error = self.error or _death(self._process.exitcode)

    def lacks_room(self) -> bool:
        """Whether the process failed because there was no room for what it wrote."""
        if self.error is not None:
            return self.error[0].startswith(NO_ROOM)
        try:
            written = self._results.get_nowait() if self._results is not None else None
        except queue.Empty:
            return False
        return isinstance(written, Exception) and disk_space.is_full(written)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()


def _death(code: int) -> Report:
    """A writer that a signal has ended is as good as such a rank: the run may start again at once."""
    if code < 0:
        hint = "often the kernel, out of memory: see dmesg" if code == -signal.SIGKILL else None
        return f"its writer was ended by {signal.Signals(-code).name}", hint, 128 - code
    return f"its writer ended with {code}", None, IoFailure.exit_code


def _write(
    parent: int,
    write: Callable[..., None],
    arguments: tuple[Any, ...],
    paths: list[Path],
    destination: str | None,
    said: Connection,
) -> None:
    end_with_parent(parent)
    said.send(None)
    # What it would log, the ranks report.
    logging.getLogger("megatron").setLevel(logging.CRITICAL)
    try:
        write(*arguments)
        if destination:
            for path in paths:
                storage.upload(path, f"{destination}/{path.name}")
    except Exception as error:
        code = error.exit_code if isinstance(error, ToolError) else IoFailure.exit_code
        reason = f"{NO_ROOM}: {error}" if disk_space.is_full(error) else str(error)
        said.send((reason, getattr(error, "hint", None), int(code)))
        raise SystemExit(1) from None
