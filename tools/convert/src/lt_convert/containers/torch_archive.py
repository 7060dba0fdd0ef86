"""Files of `torch.save`, written without torch, and read by `lt_shared.archives` from ranges of local and remote files.

Everything but the values is known from dtype and shape, so all other bytes are made in advance and the values are streamed. A
zip member's checksum precedes its values in the file; torch does not check it, and it is 0 here. Members are aligned to 64
bytes within the archive, as torch aligns them. Archives over 4 GiB have zip64 fields.
"""

import dataclasses
import functools
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lt_convert.containers import pickle_writer
from lt_convert.containers.pickle_writer import Call, Global, Persistent
from lt_convert.tensors.output_files import Payload
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import View, row_major, zeros
from lt_shared.archives.torch_archive import DTYPES, STORAGES, TorchArchive
from lt_shared.archives.zip_members import END_BYTES, LOCAL_HEADER_BYTES
from lt_shared.console import BadData

ALIGNMENT = 64
_LARGE = 0xFFFFFFFF
# A model has fewer shapes than this, and tens of thousands of tensors.
CACHED = 1024
# Bit 11 of the flags: names are UTF-8.
_UTF8 = 0x0800


@dataclasses.dataclass(frozen=True)
class Scalar:
    """A float32 tensor without dimensions, such as an optimizer's count of steps."""

    value: float

    @property
    def data(self) -> bytes:
        return struct.pack("<f", self.value)


def archive(value: Any) -> tuple[bytes | Payload, ...]:
    """The content of a file of `torch.save(value)`; tensors in it are `Payload`s or `Scalar`s, all else as in `pickle_writer`.

    Raises BadData for a tensor of a dtype that is not in `STORAGES`.
    """
    if isinstance(value, Payload) and value.tensor.dtype in STORAGES:
        before, after = _around(value.tensor.dtype, value.tensor.shape)
        return before, value, after
    tensors: list[Payload | Scalar] = []
    pickle = pickle_writer.dumps(_with_references(value, tensors))
    return _of_members(pickle, tuple(tensors)) if tensors else _without_tensors(pickle)


@functools.lru_cache(maxsize=CACHED)
def _around(dtype: str, shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """Return the bytes before and after the values in a tensor's archive. They are equal for all experts of a model."""
    tensors: list[Payload | Scalar] = []
    pickle = pickle_writer.dumps(_with_references(Payload("", zeros(dtype, shape)), tensors))
    before, _, after = _of_members(pickle, tuple(tensors))
    assert isinstance(before, bytes) and isinstance(after, bytes)
    return before, after


@functools.lru_cache(maxsize=CACHED)
def _without_tensors(pickle: bytes) -> tuple[bytes | Payload, ...]:
    return _of_members(pickle, ())


def _of_members(pickle: bytes, tensors: Sequence[Payload | Scalar]) -> tuple[bytes | Payload, ...]:
    members: list[tuple[str, bytes | Payload]] = [("data.pkl", pickle), ("byteorder", b"little")]
    for number, tensor in enumerate(tensors):
        members.append((f"data/{number}", tensor.data if isinstance(tensor, Scalar) else tensor))
    members.append(("version", b"3\n"))
    segments: list[bytes | Payload] = []
    directory = []
    position = 0
    for name, content in members:
        size = content.size_bytes if isinstance(content, Payload) else len(content)
        checksum = 0 if isinstance(content, Payload) else zlib.crc32(content)
        encoded = f"archive/{name}".encode()
        header = _local_header(encoded, size, checksum, position)
        directory.append(_directory_entry(encoded, size, checksum, position))
        segments += [header, content]
        position += len(header) + size
    entries = b"".join(directory)
    segments.append(entries + _end(len(directory), len(entries), position))
    return _joined(segments)


def _with_references(value: Any, tensors: list[Payload | Scalar]) -> Any:
    """`value` with every tensor replaced by its pickled reference; the tensors are appended to `tensors`."""
    if isinstance(value, Payload | Scalar):
        if isinstance(value, Payload) and value.tensor.dtype not in STORAGES:
            raise BadData(
                f"{value.tensor.name}: is stored as {value.tensor.dtype}, which is not written in a file of torch.save here",
                "of such tensors only Hugging Face files are made",
            )
        tensors.append(value)
        dtype, shape = ("float32", ()) if isinstance(value, Scalar) else (value.tensor.dtype, value.tensor.shape)
        return _reference(dtype, shape, len(tensors) - 1)
    if isinstance(value, dict):
        return {key: _with_references(entry, tensors) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with_references(entry, tensors) for entry in value)
    if isinstance(value, pickle_writer.Instance):
        return dataclasses.replace(value, state=_with_references(value.state, tensors))
    return value


def _reference(dtype: str, shape: tuple[int, ...], number: int) -> Call:
    storage = Global("torch", STORAGES[dtype][0])
    values = Persistent(("storage", storage, str(number), "cpu", math.prod(shape)))
    hooks = Call(Global("collections", "OrderedDict"), ())
    arguments = (values, 0, shape, row_major(shape, 1), False, hooks)
    return Call(Global("torch._utils", "_rebuild_tensor_v2"), arguments)


def _local_header(name: bytes, size: int, checksum: int, position: int) -> bytes:
    extra = struct.pack("<HHQQ", 1, 16, size, size) if size >= _LARGE else b""
    shown = min(size, _LARGE)
    unpadded = position + 30 + len(name) + len(extra) + 4
    padding = -unpadded % ALIGNMENT
    extra += b"FB" + struct.pack("<H", padding) + b"Z" * padding
    fields = (b"PK\x03\x04", 45 if size >= _LARGE else 20, _UTF8, 0, 0, 0, checksum, shown, shown, len(name), len(extra))
    return struct.pack("<4s5H3I2H", *fields) + name + extra


def _directory_entry(name: bytes, size: int, checksum: int, position: int) -> bytes:
    large = b""
    if size >= _LARGE:
        large += struct.pack("<QQ", size, size)
    if position >= _LARGE:
        large += struct.pack("<Q", position)
    extra = struct.pack("<HH", 1, len(large)) + large if large else b""
    version = 45 if large else 20
    shown = min(size, _LARGE)
    sizes = (checksum, shown, shown, len(name), len(extra), 0, 0, 0, 0, min(position, _LARGE))
    return struct.pack("<4s6H3I5H2I", b"PK\x01\x02", version, version, _UTF8, 0, 0, 0, *sizes) + name + extra


def _end(entries: int, size: int, position: int) -> bytes:
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, min(entries, 0xFFFF), min(entries, 0xFFFF), size, min(position, _LARGE), 0)
    if position < _LARGE and entries < 0xFFFF:
        return end
    record = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, entries, entries, size, position)
    return record + struct.pack("<4sIQI", b"PK\x06\x07", 0, position + size, 1) + end


def _joined(segments: list[bytes | Payload]) -> tuple[bytes | Payload, ...]:
    joined: list[bytes | Payload] = []
    for segment in segments:
        if joined and isinstance(segment, bytes) and isinstance(joined[-1], bytes):
            joined[-1] += segment
        else:
            joined.append(segment)
    return tuple(joined)


@dataclasses.dataclass(frozen=True)
class StoredValues:
    """A tensor in an archive: its dtype and a view of its values."""

    dtype: str
    view: View


def ends(path: str, offset: int, length: int) -> list[tuple[str, int, int]]:
    """The ranges (path, offset, length) of a one-tensor archive that `read` reads; the values are between them."""
    end = min(length, END_BYTES)
    return [(path, offset, end), (path, offset + length - end, end)]


class _FileRange:
    """`length` bytes from `offset` of a file; slices are read when they are requested."""

    def __init__(self, path: str, offset: int, length: int, files: Files):
        self._path, self._offset, self._length, self._files = path, offset, length, files

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: slice, /) -> bytes:
        start, stop, _ = index.indices(self._length)
        return self._files.read(self._path, self._offset + start, stop - start)


def read(
    path: str, offset: int, length: int, files: Files, name: str, dtypes: Mapping[str, tuple[str, int]] = DTYPES
) -> tuple[Any, Callable[[Any], StoredValues]]:
    """Read the inert object (`pickles.Record`) in the archive at byte `offset` of a file; return it with a function that locates
    the values of its tensors. `dtypes` are the known storages, as in `storage_view`.

    Raises BadData, naming `name`, for an archive that is damaged, compressed or holds anything unexpected; nothing is executed.
    """
    is_file = path.endswith(f"/{name}")
    origin = f"{path}: {name} at byte {offset}" if offset else path if is_file else f"{path}: {name}"
    if offset < 0 or length < 0 or offset + length > files.size_bytes(path):
        raise BadData(f"{origin}: lies beyond the end of the file", "the checkpoint is incomplete: copy it again")
    files.reader.named(path, offset, name)
    archive = TorchArchive(_FileRange(path, offset, length, files), origin)
    content = archive.load()
    members = archive.zip.members.values()
    files.prefetch((path, offset + member.header_offset, LOCAL_HEADER_BYTES + len(member.name)) for member in members)

    def locate(record: Any) -> StoredValues:
        tensor = archive.locate(record, dtypes)
        begin, item_bytes = offset + tensor.begin, tensor.item_bytes
        if tensor.member.crc32:
            files.reader.expect(path, begin, tensor.member.size_bytes, tensor.member.crc32, name)
        strides_bytes = tuple(stride * item_bytes for stride in tensor.strides)
        return StoredValues(tensor.dtype, View(path, begin + tensor.offset * item_bytes, tensor.shape, strides_bytes))

    return content, locate
