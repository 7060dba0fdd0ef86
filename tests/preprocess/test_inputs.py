"""Whole lines come out of every kind of input, whatever the compression and wherever the blocks end."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import fsspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_preprocess import chunks, inputs
from lt_preprocess.chunks import CHUNK_BYTES, LinesChunk, Position
from lt_preprocess.slices import Slice
from lt_shared.console import BadData, NoInput

LINES = b"".join(b'{"text": "line %d"}\n' % number for number in range(300_000))

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "xz": lambda data: lzma.compress(data, preset=0),
}


class Block(NamedTuple):
    first_line: int | None
    lines: bytes


def read(path: Path | str) -> tuple[bytes, list[Block], int]:
    counted: list[int] = []
    blocks = []
    for chunk in inputs.chunks([str(path)], Slice(), Position(), counted.append):
        assert isinstance(chunk, LinesChunk)
        lines = chunk.read()
        blocks.append(Block(lines.first_line(), lines.data[lines.start : lines.end].tobytes()))
    return b"".join(block.lines for block in blocks), blocks, sum(counted)


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_blocks_are_whole_lines_with_their_numbers(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "no-telling-name"
    path.write_bytes(COMPRESSORS[kind](LINES))
    content, blocks, counted = read(path)
    assert content == LINES
    assert counted == path.stat().st_size
    assert len(blocks) > 3
    expected_line = 1
    for block in blocks:
        assert block.lines.endswith(b"\n")
        assert block.first_line == expected_line
        assert len(block.lines) <= CHUNK_BYTES
        expected_line += block.lines.count(b"\n")


@pytest.mark.parametrize("kind", ["gzip", "zstd", "xz"])
def test_several_streams_in_one_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    compress = COMPRESSORS[kind]
    path.write_bytes(b"".join(compress(part) for part in (b"a\n", b"", LINES, b"b")))
    assert read(path)[0] == b"a\n" + LINES + b"b"


def test_zstd_with_a_skippable_frame_and_a_long_window(tmp_path: Path) -> None:
    path = tmp_path / "file"
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path.write_bytes(b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + frame.compress(LINES) + frame.flush())
    assert read(path)[0] == LINES


@pytest.mark.parametrize("kind", ["gzip", "xz"])
def test_padding_after_the_stream(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(COMPRESSORS[kind](LINES) + b"\0" * 512)
    assert read(path)[0] == LINES


@pytest.mark.parametrize("kind", ["gzip", "zstd", "xz"])
@pytest.mark.parametrize("missing", [1, 3, 1000])
def test_truncated_streams(tmp_path: Path, kind: str, missing: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(COMPRESSORS[kind](LINES)[:-missing])
    with pytest.raises(BadData, match="file: the compressed data ends too early"):
        read(path)


@pytest.mark.parametrize("kind", ["gzip", "zstd", "xz"])
def test_damaged_streams(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    data = bytearray(COMPRESSORS[kind](LINES))
    middle = len(data) // 2
    data[middle : middle + 200] = b"\xff" * 200
    path.write_bytes(data)
    with pytest.raises(BadData, match=r"file: (damaged|the compressed data)"):
        read(path)


def test_garbage_after_the_stream(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(b"a\n") + b"garbage")
    with pytest.raises(BadData, match="damaged"):
        read(path)


def test_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf{}\n\xef\xbb\xbf\n"))
    assert read(path)[0] == b"{}\n\xef\xbb\xbf\n"


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b"\xef", b"a", b"\n"])
def test_tiny_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert read(path)[0] == content.removeprefix(b"\xef\xbb\xbf")


def test_a_line_longer_than_a_block(tmp_path: Path) -> None:
    path = tmp_path / "file"
    long_line = b"x" * (5 * CHUNK_BYTES) + b"\n"
    path.write_bytes(b"a\n" + long_line + b"b\n")
    content, blocks, _ = read(path)
    assert content == b"a\n" + long_line + b"b\n"
    assert all(block.lines.endswith(b"\n") for block in blocks)


def test_a_line_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "LONGEST_LINE_BYTES", 4 << 20)
    path = tmp_path / "file"
    path.write_bytes(b"a\n" + b"x" * (7 << 20))
    with pytest.raises(BadData, match="file, line 2: longer than"):
        read(path)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=50),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_any_lines_and_any_block_size(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ends: bool, block_bytes: int, read_bytes: int
) -> None:
    content = b"{" + b"\n".join(lines) + (b"\n" if ends else b"")
    path = tmp_path_factory.getbasetemp() / "any-lines"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "CHUNK_BYTES", block_bytes)
        patch.setattr(inputs, "_READ_BYTES", read_bytes)
        patch.setattr(inputs, "_COMPRESSED_READ_BYTES", 6)
        joined, blocks, _ = read(path)
    assert joined == content
    for block in blocks[:-1]:
        assert block.lines.endswith(b"\n")
    assert [block.first_line for block in blocks] == [
        1 + b"".join(earlier.lines for earlier in blocks[:index]).count(b"\n") for index in range(len(blocks))
    ]


def test_remote_objects() -> None:
    with fsspec.open("memory://bucket/part.jsonl.gz", "wb") as file:
        file.write(gzip.compress(LINES))
    content, _, counted = read("memory://bucket/part.jsonl.gz")
    assert content == LINES
    assert inputs.total_bytes(["memory://bucket/part.jsonl.gz"]) == counted


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(NoInput, match="nowhere: no such file"):
        read(tmp_path / "nowhere")
    with pytest.raises(NoInput, match="is a directory"):
        read(tmp_path)


def test_bzip2_is_not_taken_for_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bz2.compress(LINES))
    with pytest.raises(BadData, match="bzip2"):
        read(path)
