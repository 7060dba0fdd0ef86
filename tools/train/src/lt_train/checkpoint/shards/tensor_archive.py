"""A tensor as the archive that `torch.save` makes of it, without a copy of its bytes.

torch computes the CRC-32 of a tensor through tables and then writes it; `lt_shared.checksums` needs a fraction of that time, and
the shard's own checksum needs it, too. So torch is told to compute none and to write into a list. What it writes is the bytes
before the tensor's, the tensor's own memory, and the bytes behind it. There, in the descriptors behind the members and in the
archive's directory, are the places for the checksums.

A GB takes 0.34 s of a processor on its way from tensors to a synced file, and 2.76 with a copy, torch.save and the page cache
(`nox -s bench -- checkpoints`, Intel Xeon with 2 busy cores, 2026-11-27).
"""

import struct
import threading
from typing import Any, NamedTuple

import numpy as np
import torch

from lt_shared import checksums

_LOCAL_HEADER, _DIRECTORY_ENTRY, _DIRECTORY_END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x06\x06"
_DESCRIPTOR = b"PK\x07\x08"
_LOCAL_HEADER_BYTES, _DIRECTORY_ENTRY_BYTES = 30, 46
# Of the record of a directory that may be larger than 4 GiB, the one that finds it, and the end, all without a comment.
_END_BYTES = 56 + 20 + 22
_MOVED = 0xFFFFFFFF
_ZIP64 = 1
# Whether torch computes checksums is the process's own option.
_option = threading.Lock()


class Archive(NamedTuple):
    """The parts of an archive in order, each with its CRC-32; `data` is the tensor's own memory."""

    parts: tuple[tuple[memoryview, int], ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.nbytes for part, _ in self.parts)

    @property
    def crc32(self) -> int:
        return checksums.joined_all((crc, part.nbytes) for part, crc in self.parts)


class _Recorder:
    """What torch writes an archive to: remembers what comes before and behind the memory that begins at `address`."""

    def __init__(self, address: int, size_bytes: int):
        self.address, self.size_bytes = address, size_bytes
        self.head, self.tail = bytearray(), bytearray()
        self.has_data = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        is_data = view.nbytes == self.size_bytes > 0 and np.frombuffer(view, np.uint8).ctypes.data == self.address
        if is_data and not self.has_data:
            self.has_data = True
        else:
            (self.tail if self.has_data else self.head).extend(view)
        return view.nbytes

    def flush(self) -> None:
        """torch calls it at the end."""


def archive(tensor: torch.Tensor) -> Archive:
    """The archive of a contiguous tensor on the CPU, alone: also where it is a part of a larger storage."""
    data = _bytes_of(tensor)
    alone = torch.from_numpy(data).view(tensor.dtype).view(tensor.shape) if data.size else tensor.clone()
    recorder = _Recorder(alone.data_ptr(), alone.nbytes)
    with _option:
        before = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)
        try:
            torch.save(alone, recorder)  # type: ignore[arg-type]
        finally:
            torch.serialization.set_crc32_options(before)
    content = data.data if recorder.has_data else memoryview(b"")
    data_crc = _crc32(content)
    _fill_in_checksums(recorder.head, len(content), data_crc, recorder.tail)
    head, tail = memoryview(recorder.head), memoryview(recorder.tail)
    return Archive(((head, _crc32(head)), (content, data_crc), (tail, _crc32(tail))))


def plain(content: memoryview) -> Archive:
    """What is already as it will be stored."""
    return Archive(((content, _crc32(content)),))


def _bytes_of(tensor: torch.Tensor) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Its memory; numpy knows no bfloat16."""
    flat = tensor.detach().contiguous().view(-1)
    found: np.ndarray[Any, np.dtype[np.uint8]] = flat.view(torch.uint8).numpy()
    return found


def _crc32(content: memoryview) -> int:
    """In blocks, which leave the processor's cache no sooner than they must."""
    checksum = 0
    for start in range(0, len(content), checksums.BLOCK_BYTES):
        checksum = checksums.crc32(content[start : start + checksums.BLOCK_BYTES], checksum)
    return checksum


def _fill_in_checksums(head: bytearray, data_bytes: int, data_crc: int, tail: bytearray) -> None:
    """Put the CRC-32 of each member behind it and into the archive's directory; the large member's is `data_crc`.

    Positions are those in the archive: `head` begins at 0, `tail` behind the data.
    """
    tail_start = len(head) + data_bytes
    if not tail:
        head, tail, tail_start = bytearray(), head, 0
    end = len(tail) - _END_BYTES
    assert tail[end : end + 4] == _DIRECTORY_END, "torch writes its archives otherwise"
    (directory_bytes,) = struct.unpack_from("<Q", tail, end + 40)
    entry = end - directory_bytes
    while entry < end:
        assert tail[entry : entry + 4] == _DIRECTORY_ENTRY
        size, name_bytes, extra_bytes, comment_bytes = struct.unpack_from("<LHHH", tail, entry + 24)
        (offset,) = struct.unpack_from("<L", tail, entry + 42)
        extra = tail[entry + _DIRECTORY_ENTRY_BYTES + name_bytes :][:extra_bytes]
        size, offset = _unmoved(size, offset, struct.unpack_from("<L", tail, entry + 20)[0], extra)
        where, start = (tail, offset - tail_start) if offset >= tail_start else (head, offset)
        assert where[start : start + 4] == _LOCAL_HEADER
        begin = start + _LOCAL_HEADER_BYTES + sum(struct.unpack_from("<HH", where, start + 26))
        if where is head and begin + size > len(head):
            crc, descriptors, behind = data_crc, tail, begin + size - tail_start
        else:
            crc, descriptors, behind = checksums.crc32(where[begin : begin + size]), where, begin + size
        if size:
            assert descriptors[behind : behind + 4] == _DESCRIPTOR
            struct.pack_into("<L", descriptors, behind + 4, crc)
        struct.pack_into("<L", tail, entry + 16, crc)
        entry += _DIRECTORY_ENTRY_BYTES + name_bytes + extra_bytes + comment_bytes


def _unmoved(size: int, offset: int, compressed: int, extra: bytearray) -> tuple[int, int]:
    """Size and offset, which in an archive of more than 4 GiB are in the zip64 field: there are those that are not in place."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == _ZIP64:
            wide = iter(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
            size = next(wide) if size == _MOVED else size
            if compressed == _MOVED:
                next(wide)
            return size, next(wide) if offset == _MOVED else offset
        at += 4 + length
    return size, offset
