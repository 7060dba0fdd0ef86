"""The members of an uncompressed zip archive, read so that no other reader can find other members in it.

A zip archive has several readings: Python takes the directory that lies directly before the end record, torch's reader follows
the offset stored there; names and sizes are both in the directory and before each member; names may be repeated, or differ in
case, which torch ignores; other bytes may come first. Here all readings must agree, as they do in archives of `torch.save`.
"""

import dataclasses
import re
import struct
from collections.abc import Mapping

from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData

# The directory of a one-tensor archive of torch takes less than 1 kB.
END_BYTES = 4096
LOCAL_BYTES = 30
_END, _END64, _LOCATOR, _ENTRY = struct.Struct("<4s4H2IH"), struct.Struct("<4sQ2H2I4Q"), struct.Struct("<4sIQI"), 46
_LARGE = 0xFFFFFFFF
# Bit 3: sizes follow the member; bit 11: names are UTF-8.
_KNOWN_FLAGS = 0x0808
# Printable, without backslash, and no directory's, which ends with a slash.
_NAME = re.compile(rb"[ -\[\]-~]*[ -.0-\[\]-~]")


@dataclasses.dataclass(frozen=True)
class Member:
    """A member as the directory has it; `limit` is where the next one, or the directory, begins. Offsets are in the archive."""

    name: str
    flags: int
    crc32: int
    size_bytes: int
    header_offset: int
    limit: int = 0


@dataclasses.dataclass(frozen=True)
class Archive:
    """`length` bytes from `offset` of a file; `members` by name, all in the folder `root`. `origin` is for messages."""

    files: Files
    path: str
    offset: int
    length: int
    origin: str
    members: Mapping[str, Member]
    root: str

    @property
    def place(self) -> str:
        return _place(self.origin, self.offset)

    def begin(self, member: Member) -> int:
        """The offset of a member's content in the file. Raises BadData when its own header contradicts the directory."""
        name = member.name.encode()
        size = LOCAL_BYTES + len(name)
        if member.header_offset + size > self.length:
            raise _damaged(self.place, f"{member.name} is cut off")
        header = self.files.read(self.path, self.offset + member.header_offset, size)
        magic, _, flags, method, _, _, crc, packed, unpacked, name_bytes, extra_bytes = struct.unpack_from("<4s5H3I2H", header)
        sizes_follow = bool(flags & 8)
        shown = (min(member.size_bytes, _LARGE),) + ((0, _LARGE) if sizes_follow else ())
        same = (
            magic == b"PK\x03\x04"
            and flags == member.flags
            and method == 0
            and name_bytes == len(name)
            and header[LOCAL_BYTES:] == name
            and packed in shown
            and unpacked in shown
            and (crc == member.crc32 or (sizes_follow and crc == 0))
        )
        if not same:
            raise _damaged(self.place, f"{member.name}: its header contradicts the directory")
        begin: int = member.header_offset + size + extra_bytes
        if begin + member.size_bytes > member.limit:
            raise _damaged(self.place, f"{member.name} is cut off")
        return self.offset + begin


def read(path: str, offset: int, length: int, files: Files, origin: str) -> Archive:
    """Read the archive in a range of a file. Raises BadData, naming `origin`, unless all readings agree."""
    place = _place(origin, offset)
    tail = files.read(path, offset + length - min(length, END_BYTES), min(length, END_BYTES))
    count, size, start = _directory(tail, length, place)
    directory = (
        tail[start - (length - len(tail)) :][:size] if start >= length - len(tail) else files.read(path, offset + start, size)
    )
    in_order = sorted(_entries(directory, count, start, place), key=lambda member: member.header_offset)
    limits = [*(member.header_offset for member in in_order[1:]), start]
    members = {
        member.name: dataclasses.replace(member, limit=limit) for member, limit in zip(in_order, limits, strict=True)
    }  # fmt: skip
    if len({name.lower() for name in members}) < count:
        raise _damaged(place, "it holds two members of one name")
    if not in_order or in_order[0].header_offset:
        raise _damaged(place, "other bytes precede its members")
    root = in_order[0].name.partition("/")[0]
    if not root or any(not name.startswith(f"{root}/") for name in members):
        raise _damaged(place, "its members are not in one folder")
    for member in members.values():
        if member.header_offset + LOCAL_BYTES + len(member.name) + member.size_bytes > member.limit:
            raise _damaged(place, f"{member.name} overlaps what follows")
    return Archive(files, path, offset, length, origin, members, root)


def _place(origin: str, offset: int) -> str:
    return f"{origin}: damaged at byte {offset}"


def _damaged(place: str, what: str) -> BadData:
    return BadData(f"{place}: not what torch.save writes: {what}")


def _directory(tail: bytes, length: int, place: str) -> tuple[int, int, int]:
    """The directory's number of entries, its size in bytes and its offset"""
    try:
        magic, disk, first_disk, here, count, size, start, comment = _END.unpack(tail[-_END.size :])
        if magic != b"PK\x05\x06" or comment:
            raise _damaged(place, "it does not end with an end record")
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
                raise _damaged(place, "its zip64 records contradict each other")
            if not agree:
                raise _damaged(place, "its end records contradict each other")
            here, count, size, start = large[6:10]
    except struct.error:
        raise _damaged(place, "it is too short") from None
    if disk or first_disk or here != count or start + size != end:
        raise _damaged(place, "its directory does not lie before its end record")
    return count, size, start


def _entries(directory: bytes, count: int, limit: int, place: str) -> list[Member]:
    members, position = [], 0
    for _ in range(count):
        try:
            magic, _, _, flags, method, _, _, crc, packed, size, name_bytes, extra_bytes, comment, disk, _, attributes, offset = (
                struct.unpack_from("<4s6H3I5H2I", directory, position)
            )
        except struct.error:
            raise _damaged(place, "its directory is cut off") from None
        # torch takes a member for a directory, without content, by its attributes as in DOS or by its name.
        if magic != b"PK\x01\x02" or comment or disk or flags & ~_KNOWN_FLAGS or attributes & 0xFF:
            raise _damaged(place, "its directory has an entry of another kind")
        position += _ENTRY
        name = directory[position : position + name_bytes]
        extra = directory[position + name_bytes : position + name_bytes + extra_bytes]
        position += name_bytes + extra_bytes
        if (
            position > len(directory)
            or not name.isascii()
            or name.endswith(b"/")
            or any(byte < 32 or byte == 92 for byte in name)
        ):
            raise _damaged(place, f"its directory has the name {name!r:.60}")
        if method:
            raise BadData(f"{place}: is compressed, which torch.save never does")
        packed, size, offset = _large_sizes((packed, size, offset), extra, place)
        if packed != size or offset > limit:
            raise _damaged(place, "its directory has an entry of impossible sizes")
        members.append(Member(name.decode(), flags, crc, size, offset))
    if position != len(directory):
        raise _damaged(place, "its directory has more than its entries")
    return members


def _large_sizes(sizes: tuple[int, int, int], extra: bytes, place: str) -> tuple[int, int, int]:
    """The packed size, size and offset of an entry; those that do not fit 32 bits are in a zip64 field."""
    order = [index for index in (1, 0, 2) if sizes[index] == _LARGE]
    expected = struct.pack("<HH", 1, 8 * len(order)) if order else b""
    if extra[:4] != expected or len(extra) != len(expected) + 8 * len(order):
        raise _damaged(place, "its directory has an entry with other fields")
    large_sizes = list(sizes)
    for number, index in enumerate(order):
        large_sizes[index] = int.from_bytes(extra[4 + 8 * number : 12 + 8 * number], "little")
    return large_sizes[0], large_sizes[1], large_sizes[2]
