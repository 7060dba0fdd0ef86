"""Decompressors of gzip, zstd, xz and bzip2 with one interface, which take and return pieces of bounded size.

MB of content a second on one thread: gzip 800 (ISA-L; zlib reaches 320), zstd 980, xz about 100, bzip2 about 30. The packages are
imported at the first use; tools that read zstd require backports.zstd before Python 3.14.
"""

import lzma
import sys
import zlib
from typing import Any, Protocol

_XZ_MEMORY_BYTES = 1 << 30
_ZSTD_WINDOW_BITS = 31


class Decompressor(Protocol):
    """The interface that the decompressors of the standard library share."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def gzip() -> Decompressor:
    from isal import igzip_lib

    return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)


def xz() -> Decompressor:
    return lzma.LZMADecompressor(memlimit=_XZ_MEMORY_BYTES)


def zstd() -> Decompressor:
    """A window of up to 2 GiB is read (`zstd --long=31`), and needs that much memory."""
    module = _zstd_module()
    decompressor: Decompressor = module.ZstdDecompressor(
        options={module.DecompressionParameter.window_log_max: _ZSTD_WINDOW_BITS}
    )
    return decompressor


def damage_errors() -> tuple[Any, ...]:
    """Return the exceptions of damaged data. Every format has one of its own."""
    from isal import igzip_lib

    return OSError, EOFError, ValueError, RuntimeError, zlib.error, lzma.LZMAError, _zstd_module().ZstdError, igzip_lib.IsalError


def _zstd_module() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd
