"""Decompress a file or a pipe in pieces of bounded size.

The compression is recognised by the first bytes, not by the name. Several streams in one file (`cat a.gz b.gz`, bgzip, pzstd) are
read one after the other, and a truncated stream is an error. However much a few bytes expand to, the content is returned 256 KiB
at a time. MB of content a second on one thread: gzip 800 (ISA-L; zlib reaches 320), zstd 980, xz about 100, bzip2 about 30.
lz4 needs the package of this name.
"""

import bz2
import lzma
import sys
from collections.abc import Callable, Iterator
from typing import Protocol

from isal import igzip_lib

from lt_shared.console import BadData, Unavailable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PIECE_BYTES = 1 << 18
RECOGNISED_BYTES = 6
"""Bytes from the start of a file that tell how it is compressed."""

_XZ_MEMORY_BYTES = 1 << 30
_LONGEST_WINDOW = 31


class Decompressor(Protocol):
    """The interface that the decompressors of the standard library share."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _gzip() -> Decompressor:
    return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)


def _zstd() -> Decompressor:
    """A window of up to 2 GiB is read (`zstd --long=31`), and needs that much memory."""
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _LONGEST_WINDOW})


def _xz() -> Decompressor:
    return lzma.LZMADecompressor(memlimit=_XZ_MEMORY_BYTES)


def _lz4() -> Decompressor:
    try:
        import lz4.frame
    except ImportError:
        raise Unavailable("reading lz4 needs the package lz4", "pip install 'lt-preprocess[lz4]'") from None
    decompressor: Decompressor = lz4.frame.LZ4FrameDecompressor()
    return decompressor


def decompressor_for(start: bytes) -> Callable[[], Decompressor] | None:
    """Return the decompressor for a file that begins with the RECOGNISED_BYTES `start`; None if the file is not compressed."""
    if start.startswith(b"\x1f\x8b"):
        return _gzip
    is_skippable_frame = len(start) >= 4 and start[0] & 0xF0 == 0x50 and start[1:4] == b"\x2a\x4d\x18"
    if start.startswith(b"\x28\xb5\x2f\xfd") or is_skippable_frame:
        return _zstd
    if start.startswith(b"\xfd7zXZ\x00"):
        return _xz
    if start.startswith(b"BZh"):
        return bz2.BZ2Decompressor
    if start.startswith(b"\x04\x22\x4d\x18"):
        return _lz4
    return None


def decompressed(source: str, start: bytes, read: Callable[[], bytes]) -> Iterator[bytes]:
    """Yield the content in pieces. `start` has the bytes already read; `read` returns more bytes, b"" at the end.

    Raises BadData, naming `source`, for damaged or truncated data.
    """
    data = start
    decompressor: Decompressor | None = None
    while True:
        if decompressor is None:
            # Tapes and archives pad compressed files with zeros, as gzip's own reader allows.
            data = data.lstrip(b"\x00")
            while len(data) < RECOGNISED_BYTES and (more := read()):
                data = (data + more).lstrip(b"\x00")
            if not data:
                return
            new = decompressor_for(data)
            if new is None:
                raise BadData(f"{source}: damaged compressed data: other data follows it")
            decompressor = new()
        if decompressor.needs_input and not data and not (data := read()):
            raise BadData(f"{source}: the compressed data ends too early", "the file is truncated: copy it again")
        try:
            piece = decompressor.decompress(data, PIECE_BYTES)
        except (OSError, EOFError, ValueError, RuntimeError, lzma.LZMAError, zstd.ZstdError, igzip_lib.IsalError) as error:  # type: ignore[misc]  # a stub calls it an instance
            raise BadData(f"{source}: damaged compressed data: {error}") from None
        data = b""
        if piece:
            yield piece
        if decompressor.eof:
            # None from lz4 if there is none.
            data = decompressor.unused_data or b""
            decompressor = None
