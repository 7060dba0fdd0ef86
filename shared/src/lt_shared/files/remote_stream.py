"""A file of a remote store whose reads are retried as other requests are.

A connection that breaks then has its own error, with the name of the file, instead of one of the file's format.
"""

import io
from collections.abc import Callable
from typing import Any


class RemoteStream(io.BufferedIOBase):
    """Reads `file`, which fsspec opened. `retry` calls an operation, several times if it fails."""

    def __init__(self, file: Any, retry: Callable[[Callable[[], bytes]], bytes]):
        self._file = file
        self._retry = retry

    def _retried(self, read: Callable[[], bytes]) -> bytes:
        position = self._file.tell()
        attempts = 0

        def attempt() -> bytes:
            nonlocal attempts
            # A stream without ranges cannot go back, and need not for its first attempt.
            if attempts:
                self._file.seek(position)
            attempts += 1
            try:
                return bytes(read())
            except IndexError as error:
                # s3fs looks at the arguments of each OSError, and a time-out has none.
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise

        return self._retry(attempt)

    def read(self, size: int | None = -1) -> bytes:
        return self._retried(lambda: self._file.read(-1 if size is None else size))

    read1 = read

    def readline(self, size: int | None = -1) -> bytes:
        return self._retried(lambda: self._file.readline() if size is None or size < 0 else self._file.readline(size))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def close(self) -> None:
        self._file.close()
        super().close()
