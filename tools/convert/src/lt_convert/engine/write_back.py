"""Start the write-back of written pages early, so that the sync at the end finds little to do.

The call that starts it waits while the disk's queue is full: two threads that wrote 2.5 GB waited for half a second each. So a
thread of its own makes these calls, in the order of the writes. The sync writes the pieces that the thread has not reached when
the copy ends.
"""

import os
import queue
import threading

from lt_shared.files.local_files import PartialDirectory

_Extent = tuple[str, int, int]


class WriteBack:
    """A thread that starts the write-back of byte ranges in the files of `directory`."""

    def __init__(self, directory: PartialDirectory):
        self._directory = directory
        # None ends the thread.
        self._extents: queue.SimpleQueue[_Extent | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, name: str, offset: int, length: int) -> None:
        """Start the write-back of `length` bytes at `offset` of a file soon."""
        self._extents.put((name, offset, length))

    def stop(self) -> None:
        """Wait for the last call, and leave the other ranges to the sync."""
        self._stop.set()
        self._extents.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (extent := self._extents.get()) is not None and not self._stop.is_set():
            name, offset, length = extent
            try:
                descriptor = self._directory.open(name, os.O_WRONLY)
            except OSError:
                # The writers, which open the same file, report the error.
                continue
            try:
                os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
