"""Write a rank's shards: in the rank while training waits, or in its writer process while training continues.

The rank copies one tensor after the other to host memory. Beside training, tensors are copied into the writer process's shared
memory (shards/host_staging.py, shards/writer_process.py).
"""

import queue
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lt_train.checkpoint.shards import shard_files, writer_process
from lt_train.checkpoint.shards.host_staging import HostStaging
from lt_train.checkpoint.shards.late_staging import LateStaging
from lt_train.checkpoint.shards.shard_files import Bucket, WriteResults
from lt_train.checkpoint.shards.writer_process import NO_ROOM, Failure, WriterProcess, failure_of
from lt_train.process import run_files

Staging = HostStaging | LateStaging


class Writer:
    """Writes this rank's shards, into `destination` if it is a URL. Training waits, or with `staging` continues.

    On a GPU, `start` starts the writer process when the copies in host memory are complete. On a CPU it starts at once.
    """

    def __init__(self, request: Any, destination: str | None, staging: Staging | None = None):
        self.error: Failure | None = None
        self.paths: list[Path] = []
        self._process: WriterProcess | None = None
        self._results: WriteResults | None = None
        self._buckets: list[Bucket] = []
        # The work that has not started.
        self._work: Callable[[], None] | None = None
        self._staging = staging
        if request.async_fn is None:
            return
        rank, buckets, results = request.async_fn_args
        self._results = results
        self.paths = [Path(path) for path, *_ in buckets]
        self._buckets = [(f"{destination}/{name}" if destination else path, name, content) for path, name, content in buckets]
        if staging:
            self._buckets = staging.begin(self._buckets)
            self._work = partial(self._begin, staging)
            if isinstance(staging, LateStaging):
                self.start()
        else:
            self._work = partial(request.async_fn, rank, self._buckets, results)
        # megatron-core only counts the buckets from here on. Drop their tensors, which may take GPU memory.
        buckets[:] = [(path, name, ([], [])) for path, name, _ in buckets]

    def start(self) -> None:
        """Start the writer process, unless it has started."""
        if self._staging and self._work:
            work, self._work = self._work, None
            work()

    def _begin(self, staging: Staging) -> None:
        staging.wait()
        assert staging.descriptor is not None
        self._process = writer_process.start()
        offset = staging.offset if isinstance(staging, LateStaging) else None
        self._process.write(staging.descriptor, staging.files(self._buckets), offset)

    def is_running(self) -> bool:
        return self._work is not None or (self._process is not None and not self._process.has_answered())

    def wait(self) -> None:
        """Wait until all shards are written, and set `error`."""
        self.start()
        if self._work is not None:
            work, self._work = self._work, None
            self.error = _failure_of(work)
        if self._process is None:
            return
        process, self._process = self._process, None
        answer = process.answer()
        if isinstance(self._staging, LateStaging):
            self._staging.end()
        if isinstance(answer, Failure):
            self.error = answer
        elif self._results:
            self._results.put(answer if isinstance(answer, Exception) else shard_files.write_results(self._buckets, answer))

    def lacks_room(self) -> bool:
        """Return whether writing failed because the disk was full."""
        if self.error is not None:
            return self.error.reason.startswith(NO_ROOM)
        try:
            result = self._results.get_nowait() if self._results is not None else None
        except queue.Empty:
            return False
        return isinstance(result, Exception) and run_files.is_full(result)

    def kill(self) -> None:
        if self._process is not None:
            self._process = None
            writer_process.stop()


def _failure_of(work: Callable[[], None]) -> Failure | None:
    try:
        work()
    except Exception as error:
        return failure_of(error)
    return None
