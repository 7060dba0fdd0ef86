"""numba's cache files with a checksum at their end.

numba unpickles and links whatever its files hold: one flipped bit in them ends the process in LLVM, or makes another encoder. A
file that is not as it was written is compiled anew, in its place. Reading 3 MB of machine code takes a millisecond longer.
"""

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any

from numba.core.caching import IndexDataCacheFile

from lt_shared.checksums import crc32
from lt_shared.console import warn

CHECKSUM_BYTES = 4


class CheckedCacheFile(IndexDataCacheFile):
    """The index and data files of one function."""

    def _load_index(self) -> Any:
        return super()._load_index() if _is_sound(self._index_path) else {}  # type: ignore[no-untyped-call]

    def _load_data(self, name: str) -> Any:
        if not _is_sound(os.path.join(self._cache_path, name)):
            # As numba takes a file that somebody has deleted.
            raise FileNotFoundError(name)
        return super()._load_data(name)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[io.BytesIO]:
        content = io.BytesIO()
        yield content
        written = content.getvalue()
        with super()._open_for_write(filepath) as file:
            # Both files are pickles, and what follows a pickle is not read.
            file.write(written + crc32(written).to_bytes(CHECKSUM_BYTES, "little"))


def check(dispatcher: Any) -> None:
    """Let a cached function use files with checksums."""
    cache = dispatcher._cache
    plain = cache._cache_file
    name = plain._index_name.removesuffix(".nbi")
    cache._cache_file = CheckedCacheFile(plain._cache_path, name, plain._source_stamp)  # type: ignore[no-untyped-call]


def _is_sound(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            content = memoryview(file.read())
    except FileNotFoundError:
        return False
    written, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    if len(checksum) == CHECKSUM_BYTES and crc32(written) == int.from_bytes(checksum, "little"):
        return True
    warn(f"{path}: not as it was written, by its checksum: compiled anew")
    return False
