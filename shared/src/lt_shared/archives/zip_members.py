"""The members of an uncompressed zip archive, read so that no other reader can find other members in it.

A zip archive has several readings: Python takes the directory that lies directly before the end record, torch's reader follows
the offset stored there; names and sizes are both in the directory and before each member; names may be repeated, or differ in
case, which torch ignores; other bytes may come first. Here all readings must agree, as they do in archives of `torch.save`.
"""

import dataclasses
import operator
import re
import struct
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from lt_shared.console import BadData
from lt_shared.files import checksums

# The directory of a one-tensor archive of torch takes less than 1 kB.
END_BYTES = 4096
LOCAL_HEADER_BYTES = 30
_MAGIC = b"PK\x03\x04"
_END, _END64, _LOCATOR, _ENTRY = struct.Struct("<4s4H2IH"), struct.Struct("<4sQ2H2I4Q"), struct.Struct("<4sIQI"), 46
_LARGE = 0xFFFFFFFF
_HEADER_OFFSET = operator.attrgetter("header_offset")
# Bit 3: sizes follow the member; bit 11: names are UTF-8.
_KNOWN_FLAGS = 0x0808
# ASCII without control characters and backslash, and not ending with a slash, as the name of a directory does.
_NAME = re.compile(rb"[ -\[\]-\x7f]*[ -.0-\[\]-\x7f]")
_NO_ARCHIVE = "use another checkpoint, or copy it again; torch.load would take it for a pickle, and may run code in it"


class Content(Protocol):
    """The bytes of an archive: memory, or a range of a file, read only in the requested slices."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice, /) -> bytes | memoryview: ...


class Member(NamedTuple):
    """A member as the directory has it; `limit` is where the next one, or the directory, begins. Offsets are in the archive."""

    name: str
    flags: int
    crc32: int
    size_bytes: int
    header_offset: int
    limit: int = 0


@dataclasses.dataclass(frozen=True)
class ZipArchive:
    """`members` by name, all in the folder `root`. `origin` names the archive in messages."""

    content: Content
    origin: str
    members: Mapping[str, Member]
    root: str

    def begin(self, member: Member) -> int:
        """Return the offset of a member's data in the archive. Raises BadData if its local header contradicts the directory."""
        name = member.name.encode()
        size = LOCAL_HEADER_BYTES + len(name)
        header = self.content[member.header_offset : member.header_offset + size]
        magic, _, flags, method, _, _, crc, packed, unpacked, name_bytes, extra_bytes = struct.unpack_from("<4s5H3I2H", header)
        sizes_follow = bool(flags & 8)
        shown = (min(member.size_bytes, _LARGE),) + ((0, _LARGE) if sizes_follow else ())
        same = (
            magic == _MAGIC
            and flags == member.flags
            and method == 0
            and name_bytes == len(name)
            and header[LOCAL_HEADER_BYTES:] == name
            and packed in shown
            and unpacked in shown
            and (crc == member.crc32 or (sizes_follow and crc == 0))
        )
        if not same:
            raise _damaged(self.content, self.origin, f"{member.name}: its header contradicts the directory")
        begin: int = member.header_offset + size + extra_bytes
        if begin + member.size_bytes > member.limit:
            raise _damaged(self.content, self.origin, f"{member.name} is cut off")
        return begin

    def read(self, member: Member, verify: bool = True) -> bytes | memoryview:
        """Return a member's data. Raises BadData if its CRC-32 is another.

        A CRC-32 of 0 is none: torch.serialization.set_crc32_options(False) writes that.
        """
        begin = self.begin(member)
        data = self.content[begin : begin + member.size_bytes]
        if verify and member.crc32 and checksums.crc32(data) != member.crc32:
            raise BadData(f"{self.origin}: damaged: {member.name} has another CRC-32 than the archive says", checksums.DAMAGED)
        return data


def read(content: Content, origin: str) -> ZipArchive:
    """Read the directory of an archive. Raises BadData, naming `origin`, unless all readings agree."""
    length = len(content)
    tail = content[length - min(length, END_BYTES) : length]
    try:
        count, size, start = _directory(tail, length)
        in_tail = start - (length - len(tail))
        directory = tail[in_tail : in_tail + size] if in_tail >= 0 else content[start : start + size]
        in_order = sorted(_entries(bytes(directory), count, start), key=_HEADER_OFFSET)
        if not in_order:
            raise _Ambiguous("it has no members")
        limits = [*(member.header_offset for member in in_order[1:]), start]
        members = {member.name: Member(*member[:-1], limit) for member, limit in zip(in_order, limits, strict=True)}
        if len({name.lower() for name in members}) < count:
            raise _Ambiguous("it holds two members of one name")
        if in_order[0].header_offset:
            raise _Ambiguous("other bytes precede its members")
        root = in_order[0].name.partition("/")[0]
        if not root or any(not name.startswith(f"{root}/") for name in members):
            raise _Ambiguous("its members are not in one folder")
        for member in members.values():
            if member.header_offset + LOCAL_HEADER_BYTES + len(member.name) + member.size_bytes > member.limit:
                raise _Ambiguous(f"{member.name} overlaps what follows")
    except _Ambiguous as error:
        raise _damaged(content, origin, str(error)) from None
    return ZipArchive(content, origin, members, root)


def _damaged(content: Content, origin: str, reason: str) -> BadData:
    """Return the error for an archive that is damaged, or for a file that does not begin as an archive."""
    if content[: len(_MAGIC)] != _MAGIC:
        return BadData(f"{origin}: not an archive of torch.save", _NO_ARCHIVE)
    return BadData(f"{origin}: damaged: not what torch.save writes: {reason}", checksums.DAMAGED)


class _Ambiguous(Exception):
    """The directory is damaged, or readers can find other members in it."""


def _directory(tail: bytes | memoryview, length: int) -> tuple[int, int, int]:
    """Return the directory's number of entries, its size in bytes and its offset."""
    try:
        magic, disk, first_disk, here, count, size, start, comment = _END.unpack(tail[-_END.size :])
        if magic != b"PK\x05\x06" or comment:
            raise _Ambiguous("it does not end with an end record")
        end = length - _END.size
        locator = tail[-_END.size - _LOCATOR.size : -_END.size]
        if locator[:4] == b"PK\x06\x07":
            _, on_disk, at, disks = _LOCATOR.unpack(locator)
            end -= _LOCATOR.size + _END64.size
            large = _END64.unpack(tail[-_END.size - _LOCATOR.size - _END64.size :][: _END64.size])
            shown = zip((here, count), large[6:8], (0xFFFF, 0xFFFF), strict=True)
            sizes = zip((size, start), large[8:10], (_LARGE, _LARGE), strict=True)
            agree = all(small in (true, unknown) for small, true, unknown in (*shown, *sizes))
            if (large[0], large[1], large[4], large[5]) != (b"PK\x06\x06", 44, 0, 0) or at != end or on_disk or disks != 1:
                raise _Ambiguous("its zip64 records contradict each other")
            if not agree:
                raise _Ambiguous("its end records contradict each other")
            here, count, size, start = large[6:10]
    except struct.error:
        raise _Ambiguous("it is too short") from None
    if disk or first_disk or here != count or start + size != end:
        raise _Ambiguous("its directory does not lie before its end record")
    return count, size, start


def _entries(directory: bytes, count: int, limit: int) -> list[Member]:
    members, position = [], 0
    for _ in range(count):
        try:
            magic, _, _, flags, method, _, _, crc, packed, size, name_bytes, extra_bytes, comment, disk, _, attributes, offset = (
                struct.unpack_from("<4s6H3I5H2I", directory, position)
            )
        except struct.error:
            raise _Ambiguous("its directory is cut off") from None
        # torch takes a member for a directory, without content, by its attributes as in DOS or by its name.
        if magic != b"PK\x01\x02" or comment or disk or flags & ~_KNOWN_FLAGS or attributes & 0xFF:
            raise _Ambiguous("its directory has an entry of another kind")
        position += _ENTRY
        name = directory[position : position + name_bytes]
        extra = directory[position + name_bytes : position + name_bytes + extra_bytes]
        position += name_bytes + extra_bytes
        if position > len(directory) or not _NAME.fullmatch(name):
            raise _Ambiguous(f"its directory has the name {name!r:.60}")
        if method:
            raise _Ambiguous(f"{name.decode()} is compressed")
        packed, size, offset = _large_sizes((packed, size, offset), extra)
        if packed != size or offset > limit:
            raise _Ambiguous("its directory has an entry of impossible sizes")
        members.append(Member(name.decode(), flags, crc, size, offset))
    if position != len(directory):
        raise _Ambiguous("its directory has more than its entries")
    return members


def _large_sizes(sizes: tuple[int, int, int], extra: bytes) -> tuple[int, int, int]:
    """The packed size, size and offset of an entry; those that do not fit 32 bits are in a zip64 field."""
    order = [index for index in (1, 0, 2) if sizes[index] == _LARGE]
    expected = struct.pack("<HH", 1, 8 * len(order)) if order else b""
    if extra[:4] != expected or len(extra) != len(expected) + 8 * len(order):
        raise _Ambiguous("its directory has an entry with other fields")
    large_sizes = list(sizes)
    for number, index in enumerate(order):
        large_sizes[index] = int.from_bytes(extra[4 + 8 * number : 12 + 8 * number], "little")
    return large_sizes[0], large_sizes[1], large_sizes[2]
