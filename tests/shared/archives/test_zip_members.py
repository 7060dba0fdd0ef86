"""Archives whose directory, end records and members' own headers contradict each other, or have a second reading."""

import io
import itertools
import struct
import zipfile
from typing import Any

import pytest
import torch

from lt_shared.archives import zip_members
from lt_shared.console import BadData

PICKLE, VALUES = "archive/data.pkl", "archive/data/0"
# PKWARE's APPNOTE, sections 4.3.12 and 4.3.14 to 4.3.16.
ENTRY, END = struct.Struct("<4s6H3I5H2I"), struct.Struct("<4s4H2IH")
END64, LOCATOR = struct.Struct("<4sQ2H2I4Q"), struct.Struct("<4sIQI")
ENTRY_FIELDS = (
    *("magic", "made_by", "needed", "flags", "method", "time", "date", "crc32", "packed", "size", "name_bytes", "extra_bytes"),
    *("comment_bytes", "disk", "internal_attributes", "attributes", "offset"),
)
UNKNOWN_16, UNKNOWN_32 = 0xFFFF, 0xFFFFFFFF


def archive() -> bytearray:
    buffer = io.BytesIO()
    torch.save(torch.arange(100, dtype=torch.float32), buffer)
    return bytearray(buffer.getvalue())


def zipped(*names: str) -> bytes:
    """An archive by Python: 7 bytes a member, sizes in front of each, no byte between a member and the next, no zip64 record."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, name[-7:].rjust(7))
    return buffer.getvalue()


def written(
    *,
    extra: bytes = b"",
    more: bytes = b"",
    end: dict[str, Any] | None = None,
    zip64: dict[str, Any] | None = None,
    locator: dict[str, Any] | None = None,
    **entry: Any,
) -> bytes:
    """An archive of two members with a directory written here.

    `entry` are fields of the second member's entry, and its `name`; `extra` lies behind the name and `more` behind the directory.
    `end` are fields of the end record, `zip64` of the zip64 record, which is left out if that is None, `locator` of its locator.
    """
    content = zipped("a/data.pkl", "a/data/0")
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        start = file.start_dir
    first_bytes = ENTRY.size + len("a/data.pkl")
    fields = dict(zip(ENTRY_FIELDS, ENTRY.unpack_from(content, start + first_bytes), strict=True))
    name = entry.pop("name", b"a/data/0")
    fields |= {"name_bytes": len(name), "extra_bytes": len(extra)} | entry
    directory = content[start : start + first_bytes] + ENTRY.pack(*fields.values()) + name + extra + more
    numbers = {"disk": 0, "first_disk": 0, "here": 2, "count": 2, "size": len(directory), "start": start}
    records = b""
    if zip64 is not None:
        large = {"magic": b"PK\x06\x06", "record_bytes": 44, "made_by": 45, "needed": 45, **numbers}
        place = {"magic": b"PK\x06\x07", "on_disk": 0, "at": start + len(directory), "disks": 1}
        records = END64.pack(*(large | zip64).values()) + LOCATOR.pack(*(place | (locator or {})).values())
    last = {"magic": b"PK\x05\x06", **numbers, "comment_bytes": 0}
    return content[:start] + directory + records + END.pack(*(last | (end or {})).values())


def offset_of_header(content: bytes | bytearray, member: str) -> int:
    return zipfile.ZipFile(io.BytesIO(content)).getinfo(member).header_offset


def begin(content: bytes | bytearray, member: str) -> int:
    members = zip_members.read(content, "it")
    return members.begin(members.members[member])


def assert_damaged(content: bytes, reason: str) -> None:
    with pytest.raises(BadData) as caught:
        zip_members.read(content, "it")
    assert str(caught.value) == f"it: damaged: not what torch.save writes: {reason}"


def test_where_the_values_begin() -> None:
    content = archive()
    values = torch.arange(100, dtype=torch.float32).numpy().tobytes()
    assert begin(content, VALUES) == content.index(values)


# Headers of members


@pytest.mark.parametrize("member", [PICKLE, VALUES])
@pytest.mark.parametrize("flags", [0x0008, 0x0809, 0x0828, 0x2808, 0x0800])
def test_flags_that_contradict_the_directory(flags: int, member: str) -> None:
    """Of these the names are in another encoding, and the values encrypted, or the change to other values."""
    content = archive()
    struct.pack_into("<H", content, offset_of_header(content, member) + 6, flags)
    with pytest.raises(BadData, match="its header contradicts the directory"):
        begin(content, member)


@pytest.mark.parametrize("more", [17, 100, 0xFFFF])
def test_an_extra_field_that_pushes_the_values_into_the_next_member(more: int) -> None:
    """Within the 16 bytes that follow the values torch's reader shifts them in the same way."""
    content = archive()
    place = offset_of_header(content, VALUES) + 28
    extra_bytes = struct.unpack_from("<H", content, place)[0]
    struct.pack_into("<H", content, place, min(extra_bytes + more, 0xFFFF))
    with pytest.raises(BadData, match="archive/data/0 is cut off"):
        begin(content, VALUES)


@pytest.mark.parametrize("place", [14, 18, 22], ids=["CRC-32", "packed size", "size"])
def test_a_header_leaves_sizes_and_checksum_out_only_if_they_follow_the_member(place: int) -> None:
    content = bytearray(written())
    assert begin(content, "a/data/0") == content.index(b"/data/0", content.index(b"a/data/0") + 8)
    struct.pack_into("<I", content, offset_of_header(content, "a/data/0") + place, 0)
    with pytest.raises(BadData, match="its header contradicts the directory"):
        begin(content, "a/data/0")


def test_a_checksum_in_a_header_is_compared_also_if_one_follows_the_member() -> None:
    content = archive()
    place = offset_of_header(content, VALUES) + 14
    struct.pack_into("<I", content, place, 0)
    assert begin(content, VALUES)
    struct.pack_into("<I", content, place, 1)
    with pytest.raises(BadData, match="its header contradicts the directory"):
        begin(content, VALUES)


def test_the_data_of_a_member_are_compared_with_its_checksum() -> None:
    content = written()
    members = zip_members.read(content, "it")
    assert members.read(members.members["a/data/0"]) == b"/data/0"
    damaged = zip_members.read(content.replace(b"a/data/0/data/0", b"a/data/0/data/1"), "it")
    assert damaged.read(damaged.members["a/data/0"], verify=False) == b"/data/1"
    with pytest.raises(BadData, match="a/data/0 has another CRC-32"):
        damaged.read(damaged.members["a/data/0"])


# The directory


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"magic": b"PK\x01\x03"}, "its directory has an entry of another kind"),
        ({"comment_bytes": 1, "more": b"c"}, "its directory has an entry of another kind"),
        ({"disk": 1}, "its directory has an entry of another kind"),
        ({"flags": 0x0001}, "its directory has an entry of another kind"),
        ({"attributes": 0x10}, "its directory has an entry of another kind"),
        ({"name": b"a/data\\0"}, r"its directory has the name b'a/data\\0'"),
        ({"name": b"a/data\x01"}, r"its directory has the name b'a/data\x01'"),
        ({"name": b"a/data\xe9"}, r"its directory has the name b'a/data\xe9'"),
        ({"name": b"a/data/"}, "its directory has the name b'a/data/'"),
        ({"name": b""}, "its directory has the name b''"),
        ({"name_bytes": 9}, "its directory has the name b'a/data/0'"),
        ({"extra_bytes": 1}, "its directory has the name b'a/data/0'"),
        ({"method": 8}, "a/data/0 is compressed"),
        ({"packed": 6}, "its directory has an entry of impossible sizes"),
        ({"size": 6}, "its directory has an entry of impossible sizes"),
        ({"offset": 93}, "its directory has an entry of impossible sizes"),
        ({"offset": 92}, "a/data/0 overlaps what follows"),
        ({"packed": 8, "size": 8}, "a/data/0 overlaps what follows"),
        ({"offset": 46}, "a/data.pkl overlaps what follows"),
        ({"extra": struct.pack("<HH", 1, 0)}, "its directory has an entry with other fields"),
        ({"extra": struct.pack("<HHQ", 1, 8, 7)}, "its directory has an entry with other fields"),
        ({"size": UNKNOWN_32}, "its directory has an entry with other fields"),
        ({"size": UNKNOWN_32, "extra": struct.pack("<HHQ", 2, 8, 7)}, "its directory has an entry with other fields"),
        ({"size": UNKNOWN_32, "extra": struct.pack("<HHQ", 1, 16, 7)}, "its directory has an entry with other fields"),
        ({"size": UNKNOWN_32, "extra": struct.pack("<HHQQ", 1, 8, 7, 7)}, "its directory has an entry with other fields"),
        ({"more": b"\0"}, "its directory has more than its entries"),
        ({"end": {"here": 3, "count": 3}}, "its directory is cut off"),
        ({"end": {"here": 1, "count": 1}}, "its directory has more than its entries"),
        ({"name": b"b/data/0"}, "its members are not in one folder"),
        ({"name": b"A/DATA.PKL"}, "it holds two members of one name"),
    ],
    ids=str,
)
def test_entries_of_the_directory_that_are_refused(changes: dict[str, Any], reason: str) -> None:
    assert_damaged(written(**changes), reason)


@pytest.mark.parametrize(
    "unknown", [s for n in range(4) for s in itertools.combinations(("size", "packed", "offset"), n)], ids=str
)
def test_sizes_that_do_not_fit_32_bits_are_in_a_field_behind_the_name(unknown: tuple[str, ...]) -> None:
    """As APPNOTE orders them in section 4.5.3: the size, the packed size, the offset."""
    content = written()
    sizes = {"size": 7, "packed": 7, "offset": offset_of_header(content, "a/data/0")}
    extra = struct.pack(f"<HH{len(unknown)}Q", 1, 8 * len(unknown), *(sizes[field] for field in unknown)) if unknown else b""
    large = written(extra=extra, **dict.fromkeys(unknown, UNKNOWN_32))
    with zipfile.ZipFile(io.BytesIO(large)) as file:
        assert file.read("a/data/0") == b"/data/0"
    assert zip_members.read(large, "it").members == zip_members.read(content, "it").members


def test_a_packed_size_in_that_field_is_the_size_as_well() -> None:
    extra = struct.pack("<HHQQ", 1, 16, 7, 6)
    changes = {"size": UNKNOWN_32, "packed": UNKNOWN_32, "extra": extra}
    assert_damaged(written(**changes), "its directory has an entry of impossible sizes")


def test_members_may_lie_in_folders_of_the_one_folder() -> None:
    assert zip_members.read(zipped("a/data/0", "a/data.pkl"), "it").root == "a"
    assert_damaged(zipped("/data/0", "/data.pkl"), "its members are not in one folder")


def test_an_archive_without_members() -> None:
    content = written()
    start = content.index(b"PK\x01\x02")
    assert_damaged(content[:start] + END.pack(b"PK\x05\x06", 0, 0, 0, 0, 0, start, 0), "it has no members")
    with pytest.raises(BadData, match=r"it: not an archive of torch\.save"):
        zip_members.read(zipped(), "it")


class Recorded(bytes):
    """Bytes that record which slices are read."""

    slices: list[tuple[int, int]]

    def __getitem__(self, index: Any) -> Any:
        self.slices.append((index.start, index.stop))
        return super().__getitem__(index)


@pytest.mark.parametrize("more", [0, 1])
def test_the_directory_is_read_with_the_end_record_if_both_fit(more: int) -> None:
    name_bytes = zip_members.END_BYTES - END.size - ENTRY.size + more
    content = Recorded(zipped("a/" + (name_bytes - 2) * "x"))
    content.slices = []
    zip_members.read(content, "it")
    start, length = content.find(b"PK\x01\x02"), len(content)
    tail = (length - zip_members.END_BYTES, length)
    assert content.slices == ([tail, (start, length - END.size)] if more else [tail])


# End records


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ({"magic": b"PK\x05\x05"}, "it does not end with an end record"),
        ({"comment_bytes": 1}, "it does not end with an end record"),
        *(({field: 1}, "its directory does not lie before its end record") for field in ("disk", "first_disk", "here", "count")),
        *(({field: 91}, "its directory does not lie before its end record") for field in ("size", "start")),
    ],
    ids=str,
)
def test_end_records_that_are_refused(end: dict[str, Any], reason: str) -> None:
    assert_damaged(written(end=end), reason)


@pytest.mark.parametrize(
    ("zip64", "locator"),
    [
        *(({"magic": b"PK\x06\x05"}, {}), ({"record_bytes": 45}, {}), ({"disk": 1}, {}), ({"first_disk": 1}, {})),
        *(({}, {"at": 0}), ({}, {"on_disk": 1}), ({}, {"disks": 2})),
    ],
    ids=str,
)
def test_zip64_records_that_contradict_each_other(zip64: dict[str, Any], locator: dict[str, Any]) -> None:
    assert_damaged(written(zip64=zip64, locator=locator), "its zip64 records contradict each other")


@pytest.mark.parametrize("field", ["here", "count", "size", "start"])
def test_an_end_record_says_the_same_as_the_zip64_record_or_nothing(field: str) -> None:
    members = zip_members.read(written(), "it").members
    unknown = UNKNOWN_16 if field in ("here", "count") else UNKNOWN_32
    assert zip_members.read(written(zip64={}), "it").members == members
    assert zip_members.read(written(zip64={}, end={field: unknown}), "it").members == members
    assert_damaged(written(zip64={}, end={field: 91}), "its end records contradict each other")
    assert_damaged(written(zip64={}, end={field: unknown - 1}), "its end records contradict each other")
