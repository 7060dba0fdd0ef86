"""Copies to host memory as on a GPU, slow enough to be interrupted.

Python imports this module at its start when this directory is in PYTHONPATH; ranks on a CPU then stage their checkpoints.
A thread makes them a moment after they were asked for, one after the other, beside training; the update waits for them.
"""

import threading
import time

from lt_train.process import device

COPY_SECONDS = 0.004


class SlowCopies:
    def __init__(self):
        self.left = []
        self.copying = threading.Thread()

    def lock(self, memory):
        time.sleep(10 * COPY_SECONDS)
        return True

    def unlock(self, memory):
        pass

    def begin(self):
        self.left = []

    def run(self, work, sources):
        self.left.append((work, sources))

    def end(self):
        self.copying = threading.Thread(target=self._make, args=(self.left,), daemon=True)
        self.copying.start()

    def _make(self, left):
        for work, _ in left:
            time.sleep(COPY_SECONDS)
            work()

    def hold_back(self):
        self.wait()

    def wait(self):
        if self.copying.ident is not None:
            self.copying.join()


def host_copies(where):
    from lt_train.checkpoint.shards import host_staging

    # All but the smallest.
    host_staging.SMALL_BYTES = 64
    return SlowCopies()


device.host_copies = host_copies
