"""CRC-32 against zlib's, in one go, in pieces, joined."""

import io
import zlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lt_shared import checksums


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
