"""What writes a rank's shards of a checkpoint: the rank itself while training waits, a process while it continues.

The rank brings one tensor after the other to host memory. The process is forked, so it has the tensors on a CPU, and those staged
in host memory, as they were at that moment without another copy of them. It ends with its rank.

A fork copies the locks of other threads as they are. Until Python 3.12 the interpreter itself waits in the new process for one
that a thread of gloo or NCCL may hold, for a few microseconds after each collective, while it frees a tensor: a writer that does
not say at once that it runs is killed, and forked again.
"""

import contextlib
import gc
import logging
import multiprocessing
import os
import pickle
import queue
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lt_shared import memory
from lt_shared.console import IoFailure, ToolError
from lt_train.checkpoint import disk_space
from lt_train.checkpoint.shards.host_staging import HostStaging
from lt_train.runtime import signals
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
    """Writes this rank's shards, into `destination` when that is a URL: while training waits, or in a process of its own.

    That process begins at once, or with `staging` by `start`, once the copies in host memory are made.
    """

    def __init__(self, request: Any, destination: str | None, in_background: bool = True, staging: HostStaging | None = None):
        self.error: Report | None = None
        self.paths: list[Path] = []
        self._process: Any = None
        self._results: Any = None
        self._work: Callable[[], None] | None = None
        self._staging = staging if in_background else None
        self._in_background = in_background
        if request.async_fn is None:
            return
        rank, buckets, results = request.async_fn_args
        self._results = results
        self.paths = [Path(path) for path, *_ in buckets]
        staged = [(f"{destination}/{name}" if destination else path, name, content) for path, name, content in buckets]
        if self._staging:
            staged = self._staging.begin(staged)
        self._work = partial(request.async_fn, rank, staged, results)
        # megatron-core only counts them from here on; their tensors may take GPU memory.
        buckets[:] = [(path, name, ([], [])) for path, name, _ in buckets]
        if in_background and not staging:
            self.start()

    def start(self) -> None:
        """Let the process begin that writes, unless it has."""
        if self._work is None or not self._in_background:
            return
        if self._staging:
            self._staging.wait()
        work, self._work = self._work, None
        self._start((os.getpid(), work))

    def _start(self, work: tuple[Any, ...]) -> None:
        fork = multiprocessing.get_context("fork")
        for seconds in START_SECONDS:
            self._said, said = fork.Pipe(duplex=False)
            self._process = fork.Process(target=_write, args=(*work, said))
            # A forked process must not free tensors of the GPU: it has no context there.
            with memory.garbage_collection_paused(), signals.held_back():
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
        return self._work is not None or (self._process is not None and self._process.is_alive())

    def wait(self) -> None:
        """Until all is written; sets `error`."""
        self.start()
        if self._work is not None:
            work, self._work = self._work, None
            self.error = _failure_of(work)
        if self._process is None:
            return
        self._process.join()
        if self._process.exitcode:
            with contextlib.suppress(EOFError):
                self.error = self._said.recv()
            self.error = self.error or _death(self._process.exitcode)

    def lacks_room(self) -> bool:
        """Whether it failed because there was no room for what it wrote."""
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


def _write(parent: int, work: Callable[[], None], said: Connection) -> None:
    end_with_parent(parent)
    said.send(None)
    # What it would log, the ranks report.
    logging.getLogger("megatron").setLevel(logging.CRITICAL)
    # As long as it runs: what it would collect may be tensors of the GPU.
    gc.disable()
    error = _failure_of(work)
    if error is not None:
        said.send(error)
        raise SystemExit(1)


def _failure_of(work: Callable[[], None]) -> Report | None:
    try:
        work()
    except Exception as error:
        code = error.exit_code if isinstance(error, ToolError) else IoFailure.exit_code
        reason = f"{NO_ROOM}: {error}" if disk_space.is_full(error) else str(error)
        return reason, getattr(error, "hint", None), int(code)
    return None
