"""Members whose own header says something else than the directory of the archive."""

import io
import struct
import zipfile

import pytest
import torch

from lt_shared.archives import zip_members
from lt_shared.console import BadData

PICKLE, VALUES = "archive/data.pkl", "archive/data/0"


def archive() -> bytearray:
    buffer = io.BytesIO()
    torch.save(torch.arange(100, dtype=torch.float32), buffer)
    return bytearray(buffer.getvalue())


def header(content: bytearray, member: str) -> int:
    return zipfile.ZipFile(io.BytesIO(content)).getinfo(member).header_offset


def begin(content: bytearray, member: str) -> int:
    archive = zip_members.read(content, "it")
    return archive.begin(archive.members[member])


def test_where_the_values_begin() -> None:
    content = archive()
    values = torch.arange(100, dtype=torch.float32).numpy().tobytes()
    assert begin(content, VALUES) == content.index(values)


@pytest.mark.parametrize("member", [PICKLE, VALUES])
@pytest.mark.parametrize("flags", [0x0008, 0x0809, 0x0828, 0x2808, 0x0800])
def test_flags_that_contradict_the_directory(flags: int, member: str) -> None:
    """Of these the names are in another encoding, and the values encrypted, or the change to other values."""
    content = archive()
    struct.pack_into("<H", content, header(content, member) + 6, flags)
    with pytest.raises(BadData, match="its header contradicts the directory"):
        begin(content, member)


@pytest.mark.parametrize("more", [17, 100, 0xFFFF])
def test_an_extra_field_that_pushes_the_values_into_the_next_member(more: int) -> None:
    """Within the 16 bytes that follow the values torch's reader shifts them in the same way."""
    content = archive()
    at = header(content, VALUES) + 28
    extra_bytes = struct.unpack_from("<H", content, at)[0]
    struct.pack_into("<H", content, at, min(extra_bytes + more, 0xFFFF))
    with pytest.raises(BadData, match="archive/data/0 is cut off"):
        begin(content, VALUES)
