"""A thread in every rank that ends the rank if another rank has failed and this one does not notice.

If a rank ends, gloo closes its connections, and the ranks that wait for it fail. NCCL's kernels continue to wait for ten minutes
and more. lt-train then ends the ranks of its own node, and `srun --kill-on-bad-exit` the ranks of every node; torchrun first
sends SIGTERM, which asks a rank for a last step, and waits 30 seconds. So each rank asks once a second whether a failure has been
reported (`lt_train.process.failure_report`), through a separate connection to the ranks' store. The rank then has some seconds to
fail by itself; after them, it ends with the exit code of the rank that has failed.
"""

import os
import threading
from types import TracebackType
from typing import Any

import torch
from torch.distributed.distributed_c10d import _get_default_store

from lt_train.process import failure_report

POLL_SECONDS = 1.0
# Longer than a rank with an echoed error waits for the report of the rank that failed.
GRACE_SECONDS = failure_report.ECHO_SECONDS + 4.0
# Time limit for the last answer of a busy store.
ANSWER_SECONDS = 30.0


class FailureWatch:
    """Watches within the context, which lasts as long as the global process group.

    Python ends a thread that returns from torch while the interpreter ends, and torch then aborts the process: so a complete run
    waits for the thread. A failed run ends in another way (`failure_report`), or goes on in this process, without waiting for a
    store that may be stopped.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "FailureWatch":
        if torch.distributed.get_world_size() > 1:
            ranks_store: Any = _get_default_store()
            store = ranks_store.clone()
            self._thread = threading.Thread(target=self._watch, args=(store,), name="failure-watch", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._thread and error is None:
            self._thread.join(ANSWER_SECONDS)

    def _watch(self, store: Any) -> None:
        try:
            while not store.check([failure_report.CODE]):
                if self._stop.wait(POLL_SECONDS):
                    return
            code = int(store.get(failure_report.CODE))
        except (RuntimeError, OSError):
            # The store ends with rank 0, and rank 0's launcher notices the end.
            return
        if not self._stop.wait(GRACE_SECONDS):
            os._exit(code)
