"""An archive made without torch's checksums is torch's own archive with zlib's, and none of its bytes is a copy of the tensor."""

import io
import struct
import zipfile
import zlib

import numpy as np
import pytest
import torch

from lt_train.checkpoint.shards import archives, tensor_archive

LARGE = torch.arange(1000, dtype=torch.float32)
TENSORS = {
    "float32": LARGE,
    "bfloat16": LARGE.to(torch.bfloat16),
    "a part of a larger storage": LARGE.view(10, 100)[3:7],
    "transposed": LARGE.view(10, 100).t(),
    "a number": torch.tensor(7),
    "empty": torch.zeros(3, 0),
    "a descriptor's signature": torch.frombuffer(bytearray(b"PK\x07\x08" * 4), dtype=torch.uint8),
}


def members(content: bytes) -> dict[str, bytes]:
    """Read by zipfile, which compares each with its CRC-32."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("serialization_id")}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_it_is_torchs_archive_with_checksums(tensor: torch.Tensor) -> None:
    made = tensor_archive.archive(tensor)
    content = b"".join(bytes(part) for part, _ in made.parts)
    expected = io.BytesIO()
    torch.save(tensor.contiguous().clone(), expected)
    assert members(content) == members(expected.getvalue())
    assert made.written_object == (len(content), zlib.crc32(content))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            assert zlib.crc32(archive.read(member)) == member.CRC
            # zipfile does not look at the descriptor behind a member.
            lengths = struct.unpack_from("<HH", content, member.header_offset + 26)
            behind = member.header_offset + 30 + sum(lengths) + member.file_size
            descriptor = b"PK\x07\x08" + member.CRC.to_bytes(4, "little")
            assert content[behind : behind + 8] == descriptor or not member.file_size
    assert torch.equal(torch.load(io.BytesIO(content)), tensor)


def test_the_tensors_bytes_are_not_copied() -> None:
    part = LARGE.view(10, 100)[3:7]
    _, (data, _), _ = tensor_archive.archive(part).parts
    assert (np.frombuffer(data, np.uint8).ctypes.data, data.nbytes) == (part.data_ptr(), part.nbytes)


def test_what_surrounds_a_tensor_is_made_once_for_its_dtype_and_shape() -> None:
    assert tensor_archive.frame(LARGE) is tensor_archive.frame(LARGE + 1)
    for other in (LARGE.to(torch.bfloat16), LARGE.to(torch.int32), LARGE.view(10, 100), LARGE[1:]):
        archive = tensor_archive.archive(other)
        assert torch.equal(torch.load(io.BytesIO(b"".join(bytes(part) for part, _ in archive.parts))), other)


def test_torchs_option_is_as_before() -> None:
    for option in (True, False):
        torch.serialization.set_crc32_options(option)
        try:
            tensor_archive._frames.clear()
            tensor_archive.archive(LARGE)
            assert torch.serialization.get_crc32_options() is option
        finally:
            torch.serialization.set_crc32_options(True)


def test_checksums_of_an_archive_of_more_than_4_gib() -> None:
    """Its directory has wide fields: made here as torch writes them, since no test has so much memory."""
    size, offset = 5 << 30, (5 << 30) + 700
    extra = b"\x01\x00\x18\x00" + b"".join(number.to_bytes(8, "little") for number in (size, size, offset))
    moved = 0xFFFFFFFF
    assert archives._resolve_zip64(moved, moved, moved, bytearray(extra)) == (size, offset)
    short = bytearray(b"FB\x02\x00\x00\x00\x01\x00\x08\x00" + offset.to_bytes(8, "little"))
    assert archives._resolve_zip64(2, moved, 2, short) == (2, offset)
    assert archives._resolve_zip64(2, 3, 2, bytearray()) == (2, 3)
