"""Decompress a file or a pipe in pieces of bounded size.

The compression is recognised by the first bytes, not by the name. Several streams in one file (`cat a.gz b.gz`, bgzip, pzstd) are
read one after the other, and a truncated stream is an error. However much a few bytes expand to, the content is returned 256 KiB
at a time. lz4 needs the package of this name.
"""

import bz2
from collections.abc import Callable, Iterator

from lt_shared.console import BadData, Unavailable
from lt_shared.files import decompressors
from lt_shared.files.decompressors import Decompressor

PIECE_BYTES = 1 << 18
RECOGNISED_BYTES = 6
"""Bytes from the start of a file that tell how it is compressed."""


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
        return decompressors.gzip
    is_skippable_frame = len(start) >= 4 and start[0] & 0xF0 == 0x50 and start[1:4] == b"\x2a\x4d\x18"
    if start.startswith(b"\x28\xb5\x2f\xfd") or is_skippable_frame:
        return decompressors.zstd
    if start.startswith(b"\xfd7zXZ\x00"):
        return decompressors.xz
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
        except decompressors.damage_errors() as error:
            raise BadData(f"{source}: damaged compressed data: {error}") from None
        data = b""
        if piece:
            yield piece
        if decompressor.eof:
            # None from lz4 if there is none.
            data = decompressor.unused_data or b""
            decompressor = None
