"""Every kind of compression comes apart in parts of bounded size, and what is cut off or damaged is an error."""

import bz2
import gzip
import io
import lzma
import sys
from collections.abc import Callable

import pytest
import zstandard

from lt_preprocess.readers import decompression
from lt_shared.console import BadData, Unavailable

LINES = b"".join(b'{"text": "line %d"}\n' % number for number in range(100_000))

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
    "xz": lambda data: lzma.compress(data, preset=0),
    "bzip2": lambda data: bz2.compress(data, 1),
}
KINDS = list(COMPRESSORS)


def parts_of(data: bytes, read_bytes: int = 1 << 16) -> list[bytes]:
    file = io.BytesIO(data)
    start = file.read(decompression.RECOGNISED_BYTES)
    return list(decompression.decompressed("file", start, lambda: file.read(read_bytes)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read_bytes", [7, 1 << 16])
def test_content(kind: str, read_bytes: int) -> None:
    content = LINES if read_bytes > 100 else LINES[:50_000]
    assert b"".join(parts_of(COMPRESSORS[kind](content), read_bytes)) == content


def test_what_is_not_compressed() -> None:
    for start in (b"", b"{", b'{"text', b"PAR1", b"\n"):
        assert decompression.decompressor_for(start) is None


@pytest.mark.parametrize("kind", KINDS)
def test_several_streams_in_one_file(kind: str) -> None:
    compress = COMPRESSORS[kind]
    data = b"".join(compress(part) for part in (b"a\n", b"", LINES, b"b"))
    assert b"".join(parts_of(data)) == b"a\n" + LINES + b"b"


def test_zstd_with_a_skippable_frame_and_a_long_window() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + frame.compress(LINES) + frame.flush()
    assert b"".join(parts_of(data)) == LINES


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read_bytes", [100, 1 << 16])
def test_padding_after_the_stream(kind: str, read_bytes: int) -> None:
    data = COMPRESSORS[kind](b"a" * 1000) + b"\0" * 512
    assert b"".join(parts_of(data + data, read_bytes)) == b"a" * 2000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", [1, 3, 1000])
def test_truncated_streams(kind: str, missing: int) -> None:
    with pytest.raises(BadData, match="file: the compressed data ends too early"):
        parts_of(COMPRESSORS[kind](LINES)[:-missing])


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_streams(kind: str) -> None:
    data = bytearray(COMPRESSORS[kind](LINES))
    middle = len(data) // 2
    data[middle : middle + 200] = b"\xff" * 200
    with pytest.raises(BadData, match=r"file: (damaged|the compressed data)"):
        parts_of(bytes(data))


def test_a_wrong_checksum() -> None:
    data = bytearray(gzip.compress(LINES))
    data[-6] ^= 1
    with pytest.raises(BadData, match="damaged"):
        parts_of(bytes(data))


def test_garbage_after_the_stream() -> None:
    for garbage in (b"g", b"garbage", b"{}\n"):
        with pytest.raises(BadData, match="damaged compressed data: other data"):
            parts_of(gzip.compress(b"a\n") + garbage)


def bomb(kind: str, size: int) -> bytes:
    """Very little that becomes `size` zeros."""
    if kind == "zstd":
        frame = zstandard.ZstdCompressor(level=1).compressobj()
        return b"".join(frame.compress(bytes(1 << 20)) for _ in range(size >> 20)) + frame.flush()
    return COMPRESSORS[kind](bytes(size))


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_comes_apart_in_small_parts(kind: str) -> None:
    size = 32 << 20
    data = bomb(kind, size)
    assert len(data) < size / 900
    parts = parts_of(data)
    assert sum(map(len, parts)) == size
    assert max(map(len, parts)) <= decompression.PIECE_BYTES


def test_lz4_without_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4", None)
    new = decompression.decompressor_for(b"\x04\x22\x4d\x18\0\0")
    assert new is not None
    with pytest.raises(Unavailable, match="reading lz4 needs the package lz4"):
        new()


def test_lz4() -> None:
    """Two frames, as `cat a.lz4 b.lz4` makes them, are read, and one that is cut off is an error."""
    frame = pytest.importorskip("lz4.frame")
    content = bytes(range(256)) * 5000
    stored = frame.compress(content) + frame.compress(b"more")
    pieces = iter(stored[begin : begin + 999] for begin in range(0, len(stored), 999))
    assert b"".join(decompression.decompressed("a", b"", lambda: next(pieces, b""))) == content + b"more"
    cut = iter([stored[:-9]])
    with pytest.raises(BadData, match="a: the compressed data ends too early"):
        list(decompression.decompressed("a", b"", lambda: next(cut, b"")))
