"""Whole lines come out of every kind of input, whatever the compression and wherever the blocks end."""

import bz2
import gzip
import json
import lzma
import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import fsspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_preprocess.readers import byte_ranges, chunks, inputs
from lt_preprocess.readers.chunks import BEGINNING, CHUNK_BYTES, Position
from lt_preprocess.readers.jsonl import LinesChunk
from lt_preprocess.readers.slices import WHOLE, Slice
from lt_shared.console import BadData, NoInput, UsageError

LINES = b"".join(b'{"text": "line %d"}\n' % number for number in range(200_000))

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "xz": lambda data: lzma.compress(data, preset=0),
    "bzip2": lambda data: bz2.compress(data, 1),
}


class Block(NamedTuple):
    first_line: int | None
    lines: bytes
    end: Position


def read(
    path: Path | str,
    part: Slice = WHOLE,
    start: Position = BEGINNING,
) -> tuple[bytes, list[Block], int]:
    counted: list[int] = []
    blocks = []
    for chunk in inputs.chunks([str(path)], part, start, counted.append, ("text",)):
        assert isinstance(chunk, LinesChunk)
        lines = chunk.read()
        if lines.end > lines.start:
            blocks.append(Block(lines.first_line(), lines.data[lines.start : lines.end].tobytes(), chunk.end))
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
        assert len(block.lines) < CHUNK_BYTES + 100
        expected_line += block.lines.count(b"\n")


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


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_a_line_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Also of a few bytes that become very many: no more is held than the longest line that is read."""
    monkeypatch.setattr(chunks, "LONGEST_LINE_BYTES", 4 << 20)
    path = tmp_path / "file"
    path.write_bytes(COMPRESSORS[kind](b"a\n" + bytes(64 << 20)))
    tracemalloc.start()
    with pytest.raises(BadData, match="file, line 2, byte 2: a line of more than"):
        read(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 20 << 20


KINDS = [*COMPRESSORS, "remote"]


def stored(directory: Path, kind: str, content: bytes) -> str:
    """Store a file and return its path."""
    if kind != "remote":
        (directory / f"file-{kind}").write_bytes(COMPRESSORS[kind](content))
        return str(directory / f"file-{kind}")
    with fsspec.open(f"memory://{directory}/file", "wb") as file:
        file.write(content)
    return f"memory://{directory}/file"


@settings(max_examples=60)
@given(
    st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=30),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from(["plain", "gzip", "remote"]),
    st.booleans(),
    st.integers(1, 12),
)
def test_any_lines_chunks_slices_and_positions_to_resume_from(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    ends: bool,
    chunk_bytes: int,
    read_bytes: int,
    kind: str,
    has_mark: bool,
    parts: int,
) -> None:
    # It begins as JSON does: `{` and a zero byte are UTF-16.
    content = b'{"' + b"\n".join(lines) + (b"\n" if ends else b"")
    mark = b"\xef\xbb\xbf" if has_mark else b""
    path = stored(tmp_path_factory.getbasetemp(), kind, mark + content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(byte_ranges.LocalFile, "chunk_bytes", chunk_bytes)
        patch.setattr(byte_ranges.RemoteFile, "chunk_bytes", chunk_bytes)
        patch.setattr(byte_ranges, "_TAIL_BYTES", 2 + read_bytes)
        patch.setattr(inputs, "_READ_BYTES", read_bytes)
        patch.setattr(inputs, "_COMPRESSED_READ_BYTES", 6)
        joined, blocks, counted = read(path)
        assert joined == content
        assert counted == inputs.total_bytes([path])
        lines_before = 0
        for block in blocks:
            assert block.first_line == (None if kind == "remote" else 1 + lines_before)
            assert block.lines.endswith(b"\n") or block is blocks[-1]
            lines_before += block.lines.count(b"\n")
            rest, following, _ = read(path, start=block.end)
            assert rest == b"".join(each.lines for each in blocks[blocks.index(block) + 1 :])
            assert kind == "remote" or not following or following[0].first_line == 1 + lines_before
        of_parts = [read(path, Slice(index, parts)) for index in range(parts)]
        assert b"".join(each[0] for each in of_parts) == content
        assert sum(each[2] for each in of_parts) == inputs.total_bytes([path])
        for index, (_, blocks, counted) in enumerate(of_parts):
            assert counted == inputs.total_bytes([path], Slice(index, parts))
            for number, block in enumerate(blocks):
                rest, _, _ = read(path, Slice(index, parts), block.end)
                assert rest == b"".join(each.lines for each in blocks[number + 1 :])


def test_remote_objects() -> None:
    with fsspec.open("memory://bucket/part.jsonl.gz", "wb") as file:
        file.write(gzip.compress(LINES))
    content, _, counted = read("memory://bucket/part.jsonl.gz")
    assert content == LINES
    assert inputs.total_bytes(["memory://bucket/part.jsonl.gz"]) == counted


def test_going_on_in_the_second_input(tmp_path: Path) -> None:
    paths = [stored(tmp_path, kind, b"%s 1\n%s 2\n" % (kind.encode(), kind.encode())) for kind in ("plain", "gzip")]
    paths.append(paths[0])
    counted: list[int] = []
    found = []
    for chunk in inputs.chunks(paths, WHOLE, Position(1, 7, 2), counted.append, ("text",)):
        assert isinstance(chunk, LinesChunk)
        lines = chunk.read()
        found.append((chunk.end, lines.first_line(), lines.data[lines.start : lines.end].tobytes()))
    assert found == [(Position(1, 14, 3), 2, b"gzip 2\n"), (Position(2, 16, 0), 1, b"plain 1\nplain 2\n")]
    assert sum(counted) == inputs.total_bytes(paths)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, kind: str) -> None:
    path = stored(tmp_path, kind, LINES)
    reading = inputs.chunks([path], WHOLE, BEGINNING, lambda size: None, ("text",))
    first = next(reading)
    assert isinstance(first, LinesChunk)
    first.read()
    if kind == "remote":
        stored(tmp_path, kind, LINES)
    else:
        os.utime(path, ns=(0, 0))
    with pytest.raises(BadData, match="changed while it was read"):
        for chunk in reading:
            assert isinstance(chunk, LinesChunk)
            chunk.read()


@pytest.mark.parametrize("size", [100, 5 << 20])
def test_a_file_that_shrinks_or_grows(tmp_path: Path, size: int) -> None:
    path = stored(tmp_path, "plain", LINES)
    all_chunks = list(inputs.chunks([path], WHOLE, BEGINNING, lambda size: None, ("text",)))
    os.truncate(path, size)
    with pytest.raises(BadData, match="changed while it was read"):
        all_chunks[0].read()  # type: ignore[attr-defined]


def test_files_are_closed_when_their_chunks_are_gone(tmp_path: Path) -> None:
    path = stored(tmp_path, "plain", LINES)
    before = len(os.listdir("/proc/self/fd"))
    all_chunks = list(inputs.chunks([path] * 20, WHOLE, BEGINNING, lambda size: None, ("text",)))
    assert len(os.listdir("/proc/self/fd")) == before + 20
    del all_chunks
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_named_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(gzip.compress(LINES),))
    writer.start()
    content, blocks, _ = read(path)
    writer.join()
    assert content == LINES
    assert blocks[1].first_line == 1 + blocks[0].lines.count(b"\n")


def test_a_pipe_has_no_size_and_no_parts(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("-", str(tmp_path / "pipe")):
        assert inputs.total_bytes([path]) is None
        with pytest.raises(UsageError, match="cannot be divided into shards"):
            read(path, Slice(0, 2))


def texts_of(paths: list[str], part: Slice = WHOLE, keys: tuple[str, ...] = ("text",)) -> tuple[list[bytes], list[str]]:
    texts, bad_lines = [], []
    for chunk in inputs.chunks(paths, part, BEGINNING, lambda size: None, keys):
        found = chunk.batch(keys)
        texts.extend(found.columns[0].texts.to_list())
        bad_lines.extend(map(str, found.bad_lines))
    return texts, bad_lines


def test_plain_texts_are_one_document_each(tmp_path: Path) -> None:
    text = b'\xef\xbb\xbfa\n\n"b" \xc3\xa9\n'
    contents = {
        "a.txt": text,
        "b.txt.gz": gzip.compress(text),
        "empty.txt": b"",
        "marked.txt": b"\xef\xbb\xbf",
        "wrong.txt": b"a\n\xff",
        "empty.txt.gz": gzip.compress(b""),
        "c.txt": b"c",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    paths = [str(tmp_path / name) for name in contents]
    found, bad_lines = texts_of(paths)
    assert found == [text[3:], text[3:], b"c"]
    assert bad_lines == [
        f"{tmp_path}/empty.txt, line 1, byte 0: the file is empty: a failed copy, or no document",
        f"{tmp_path}/marked.txt, line 1, byte 0: the file is empty: a failed copy, or no document",
        f"{tmp_path}/wrong.txt, line 1, byte 0: invalid UTF-8: invalid start byte at byte 3 of the text",
        f"{tmp_path}/empty.txt.gz, line 1, byte 0: the file is empty: a failed copy, or no document",
    ]
    for count in (2, 3, 7):
        parts = [texts_of(paths, Slice(index, count)) for index in range(count)]
        assert [text for each in parts for text in each[0]] == found
        assert [bad for each in parts for bad in each[1]] == bad_lines
    ends = [chunk.end for chunk in inputs.chunks(paths, WHOLE, BEGINNING, lambda size: None, ("text",))]
    for number, end in enumerate(ends):
        again = [chunk.source for chunk in inputs.chunks(paths, WHOLE, end, lambda size: None, ("text",))]
        assert again == paths[number + 1 :]
    with pytest.raises(UsageError, match="a plain text has no keys"):
        texts_of(paths, keys=("a", "b"))


def test_a_plain_text_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "LONGEST_LINE_BYTES", 10)
    (tmp_path / "a.txt").write_bytes(b"x" * 11)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"x" * 11))
    for name in ("a.txt", "a.txt.gz"):
        with pytest.raises(BadData, match="a text of more than"):
            texts_of([str(tmp_path / name)])


def test_a_line_of_100_megabytes(tmp_path: Path) -> None:
    text = "\u00e9\n" * 17_000_000
    content = b'{"text": "before"}\n' + json.dumps({"text": text}).encode() + b'\n{"text": "after"}\n'
    assert len(content) > 100e6
    for kind in ("plain", "zstd"):
        found, bad_lines = texts_of([stored(tmp_path, kind, content)])
        assert found == [b"before", text.encode(), b"after"]
        assert bad_lines == []


def test_bad_lines_deep_in_a_plain_file_are_numbered(tmp_path: Path) -> None:
    path = stored(tmp_path, "plain", LINES + b"bad\n" + LINES + b"{}")
    found, bad_lines = texts_of([path])
    assert len(found) == 400_000
    assert bad_lines == [
        f"{path}, line 200001, byte {len(LINES)}: not JSON: Expecting value at column 1",
        f"{path}, line 400002, byte {2 * len(LINES) + 4}: no key 'text'",
    ]
    in_parts = [texts_of([path], Slice(index, 3))[1] for index in range(3)]
    assert [bad for part in in_parts for bad in part] == bad_lines


def test_bad_lines_of_remote_objects_have_an_offset(tmp_path: Path) -> None:
    path = stored(tmp_path, "remote", LINES + b"bad\n")
    assert texts_of([path])[1] == [f"{path}, byte {len(LINES)}: not JSON: Expecting value at column 1"]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.xz", "a.bz2", "A.PARQUET"])
def test_empty_remains_of_a_copy(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(BadData, match="the file is empty"):
        texts_of([str(tmp_path / name)])


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(NoInput, match="nowhere: no such file"):
        read(tmp_path / "nowhere")
    with pytest.raises(NoInput, match="nowhere: no such file"):
        inputs.total_bytes([str(tmp_path / "nowhere")])
    with pytest.raises(NoInput, match="is a directory"):
        read(tmp_path)
    with pytest.raises(NoInput, match="no such file"):
        read("memory://nowhere/file")
