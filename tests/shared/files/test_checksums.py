"""CRC-32 against zlib's, in one go, in pieces, joined."""

import io
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_shared.console import BadData
from lt_shared.files import checksums
from lt_shared.files.checksums import FileChecksums


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_the_checksum_of_pieces_is_that_of_all(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    running = 0
    for piece in pieces:
        running = checksums.crc32(piece, running)
    assert running == zlib.crc32(whole)
    assert checksums.joined_all((zlib.crc32(piece), len(piece)) for piece in pieces) == zlib.crc32(whole)


def test_a_range_of_four_gigabytes_is_joined_at_once() -> None:
    zeros = bytes(1 << 20)
    expected = zlib.crc32(b"begin")
    for _ in range(4100):
        expected = zlib.crc32(zeros, expected)
    assert (
        checksums.joined(zlib.crc32(b"begin"), checksums.joined_all([(zlib.crc32(zeros), 1 << 20)] * 4100), 4100 << 20)
        == expected
    )


def test_files(tmp_path: Path) -> None:
    content = bytes(range(256)) * 9000
    (tmp_path / "file").write_bytes(content)
    assert checksums.crc32_of_path(tmp_path / "file") == zlib.crc32(content)
    file = io.BytesIO(content)
    assert checksums.crc32_of_file(file, 1_500_000) == zlib.crc32(content[:1_500_000])
    assert checksums.crc32_of_file(file) == zlib.crc32(content[1_500_000:])


RANGES = st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, (1 << 32) - 1)).map(tuple), max_size=5).map(tuple)


@given(st.dictionaries(st.text(), RANGES))
def test_a_record_of_checksums_comes_back(ranges: dict[str, tuple[tuple[int, int], ...]]) -> None:
    record = FileChecksums(ranges)
    assert FileChecksums.parse(record.to_bytes(), "x") == record


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{}", b'{"v": 1}', b'{"v": 1, "crc32": []}', b'{"v": 1, "crc32": {"a": [[1]]}}', b'{"v": 2, "crc32": {}}',
        b'{"v": 1, "crc32": {"a": [[1, -1]]}}', b'{"v": 1, "crc32": {"a": [[true, 1]]}}',
        b'{"v": 1, "crc32": {"a": [], "a": []}}',
    ],
)  # fmt: skip
def test_a_malformed_record_of_checksums_is_refused(content: bytes) -> None:
    with pytest.raises(BadData, match=r"^here: "):
        FileChecksums.parse(content, "here")


def test_the_ranges_of_a_file() -> None:
    content = bytes(range(200))
    parts = [content[:50], content[50:120], content[120:]]
    record = FileChecksums({"file": tuple((len(part), zlib.crc32(part)) for part in parts)})
    assert record.whole("file") == (200, zlib.crc32(content))
    assert record.whole("other") is None
    assert record.within("file", 0, 200) == [
        (0, 50, zlib.crc32(parts[0])),
        (50, 70, zlib.crc32(parts[1])),
        (120, 80, zlib.crc32(parts[2])),
    ]
    assert record.within("file", 40, 100) == [(50, 70, zlib.crc32(parts[1]))]
    assert record.within("file", 51, 68) == record.within("other", 0, 9) == []


def test_one_call_is_a_checksum_of_its_own() -> None:
    """The value that RFC 3720 and every table of CRC-32 check with."""
    assert checksums.crc32(b"123456789") == 0xCBF43926
    assert checksums.joined(zlib.crc32(b"12345"), zlib.crc32(b"6789"), 4) == 0xCBF43926


def test_the_file_is_the_documented_one(tmp_path: Path) -> None:
    record = FileChecksums({"run.json": ((2, 7),), "a/b": ((1, 5), (3, 6))})
    assert record.to_bytes() == b'{"v":1,"crc32":{"a/b":[[1,5],[3,6]],"run.json":[[2,7]]}}\n'
    assert FileChecksums.read(tmp_path) is None
    (tmp_path / "checksums.json").write_bytes(record.to_bytes())
    assert FileChecksums.read(tmp_path) == record
    (tmp_path / "checksums.json").write_bytes(b"{")
    with pytest.raises(BadData) as caught:
        FileChecksums.read(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/checksums.json: ")


def test_a_file_is_checked_against_its_record(tmp_path: Path) -> None:
    remedy = "it is not as it was written: use another checkpoint, or copy it again"
    (tmp_path / "file").write_bytes(b"123456789")
    record = FileChecksums({"file": ((4, zlib.crc32(b"1234")), (5, zlib.crc32(b"56789"))), "gone": ((1, 2),)})
    record.check_file(tmp_path, "file")
    for content in (b"123456780", b"12345678", b"1234567890", b""):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(BadData) as caught:
            record.check_file(tmp_path, "file")
        assert (str(caught.value), caught.value.hint) == (
            f"{tmp_path}/file: checksums.json has another checksum of it",
            f"{remedy} (--no-verify takes it as it is)",
        )
    with pytest.raises(BadData) as caught:
        record.check_file(tmp_path, "gone")
    assert (str(caught.value), caught.value.hint) == (f"{tmp_path}/gone: missing", remedy)
