"""Write a file in large blocks past the page cache, as `dd oflag=direct` does, or upload it in parts while it is made.

Through the page cache, the kernel would copy a shard page by page, and drop the pages that training reads: the data and the
sample index. Direct I/O takes blocks that are aligned in memory and in the file. A tensor's bytes begin somewhere in an archive,
so they are copied into an aligned block first, which takes a fraction of the time that a disk needs to write it. With two files
at a time, one file's block is filled while the other file's block is written. Each file is synced once, at its end.

A remote file is uploaded in parts of BLOCK_BYTES while it is made, several files at a time. It needs memory for one block, and no
disk space on the node. The file appears when it is complete.
"""

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from lt_shared.files import storage

BLOCK_BYTES = 8 << 20
ALIGNMENT = 4096


@contextlib.contextmanager
def create(path: str) -> Iterator["BlockFile"]:
    """Yield a BlockFile for a new file, which is durable when the context ends without an exception."""
    if storage.is_remote(path):
        with storage.publish(path) as upload:
            remote = RemoteFile(upload)
            yield remote
            remote.flush()
        return
    local = DirectFile(path)
    try:
        yield local
        local.finish()
    finally:
        local.close()


class BlockFile:
    """A file that is filled block by block, through an aligned buffer."""

    def __init__(self) -> None:
        # mmap returns memory that is aligned to pages, as direct I/O requires.
        self.block = np.frombuffer(mmap.mmap(-1, BLOCK_BYTES), np.uint8)
        self.filled = 0

    def write(self, content: memoryview) -> None:
        source = np.frombuffer(content, np.uint8)
        begin = 0
        while begin < len(source):
            count = min(len(source) - begin, BLOCK_BYTES - self.filled)
            np.copyto(self.block[self.filled : self.filled + count], source[begin : begin + count])
            self.filled += count
            begin += count
            if self.filled == BLOCK_BYTES:
                self.flush()

    def flush(self) -> None:
        """Write the filled part of the block."""
        if self.filled:
            self._put(self.block[: self.filled].data)
        self.filled = 0

    def _put(self, block: memoryview) -> None:
        raise NotImplementedError


class DirectFile(BlockFile):
    def __init__(self, path: str):
        super().__init__()
        self.descriptor, self.is_direct = _open(path)

    def _put(self, block: memoryview) -> None:
        while block:
            if self.is_direct and len(block) % ALIGNMENT:
                self._through_page_cache()
            try:
                count = os.write(self.descriptor, block)
            except OSError as error:
                if error.errno != errno.EINVAL or not self.is_direct:
                    raise
                # Some filesystems accept O_DIRECT at `open` and refuse the first block, or require another alignment.
                self._through_page_cache()
                continue
            # After a short write, the position in the file is not aligned any more.
            if count % ALIGNMENT:
                self._through_page_cache()
            block = block[count:]

    def _through_page_cache(self) -> None:
        if self.is_direct:
            flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            self.is_direct = False

    def finish(self) -> None:
        # The last block is rarely a multiple of the alignment: its end goes through the page cache.
        whole = self.filled - self.filled % ALIGNMENT
        self._put(self.block[:whole].data)
        self._put(self.block[whole : self.filled].data)
        self.filled = 0
        os.fsync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


class RemoteFile(BlockFile):
    def __init__(self, upload: IO[Any]):
        super().__init__()
        self.upload = upload

    def _put(self, block: memoryview) -> None:
        self.upload.write(block)


def _open(path: str) -> tuple[int, bool]:
    """Open a new file. Return its descriptor, and whether it accepts direct I/O.

    tmpfs before Linux 6.5 and some FUSE filesystems do not.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o666), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, flags, 0o666), False
