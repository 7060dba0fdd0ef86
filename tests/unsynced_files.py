"""Files of tests need not survive a power failure: a conversion waits for the disk a dozen times, longer than it computes.

The tests of durability see the real calls: hostile/test_convert_durability.py, preprocess/pipeline/test_durability.py.
"""

import contextlib
import os
from collections.abc import Iterator
from unittest import mock


@contextlib.contextmanager
def unsynced_files() -> Iterator[None]:
    """In this process fsync and fdatasync return at once."""
    with mock.patch.multiple(os, fsync=_return_at_once, fdatasync=_return_at_once):
        yield


def _return_at_once(file: int) -> None:
    """Fails for a file that is closed, as the calls do."""
    os.fstat(file)
