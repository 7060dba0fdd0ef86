"""torch.distributed.checkpoint on disk, read and planned without torch: what Megatron's torch_dist and TorchTitan share.

A `.distcp` file is a row of archives of `torch.save`, one for each chunk of a tensor or object; the pickle `.metadata` says which
chunk lies where. Any number of writers may have cut the tensors anywhere.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lt_convert.containers import torch_archive
from lt_convert.containers.pickle_writer import Call, Global, Instance, Pairs, dumps
from lt_convert.containers.torch_archive import Scalar
from lt_convert.tensors.blocks import flat
from lt_convert.tensors.output_files import OutputFile, Payload
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import ITEM_BYTES, Part, Tensor
from lt_shared import pickles
from lt_shared.console import BadData

METADATA = ".metadata"
# Threads that write one file wait for each other, so there are several files even of a small model.
FILES, FILE_BYTES = 4, 5_000_000_000
SMALLEST_FILE_BYTES = 64 << 20
CHUNK_BYTES = 1 << 30
# So many chunks of a remote checkpoint are looked at together.
AHEAD = 1000
_PACKAGE = "torch.distributed.checkpoint.metadata"
_LAYOUT = Call(Global("torch.serialization", "_get_layout"), ("torch.strided",))
_CONTIGUOUS = Call(Global(_PACKAGE, "_MEM_FORMAT_ENCODING"), (0,))


@dataclasses.dataclass(frozen=True)
class Place:
    """An archive in a file."""

    file: str
    offset: int
    length: int


@dataclasses.dataclass(frozen=True)
class Contents:
    """A checkpoint's tensors by key, located when asked for, and where its other objects lie."""

    directory: str
    files: Files
    entries: Mapping[str, Any]
    objects: Mapping[str, Place]
    places: Mapping[tuple[str, tuple[int, ...] | None], Place]

    def tensor(self, key: str) -> Tensor:
        """Raises BadData when its chunks are missing, damaged, of another shape, or do not cover the tensor exactly once."""
        entry = self.entries[key]
        path = f"{self.directory}/{METADATA}"
        try:
            dtype = entry.properties.state[0].name.removeprefix("torch.")
            shape = tuple(entry.size)
            chunks = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in entry.chunks]
            _check_naturals(shape, *(size for chunk in chunks for size in chunk))
        except (AttributeError, TypeError, ValueError, IndexError) as error:
            raise BadData(f"{path}: {key} is no tensor: {error}") from None
        if dtype not in ITEM_BYTES:
            raise BadData(f"{path}: {key} is stored as {dtype}, known here are {', '.join(ITEM_BYTES)}")
        parts = []
        for number, (offsets, sizes) in enumerate(chunks):
            if number % AHEAD == 0:
                ahead = [self.places[key, each] for each, _ in chunks[number : number + AHEAD] if (key, each) in self.places]
                self.files.prefetch(
                    found for place in ahead for found in torch_archive.ends(place.file, place.offset, place.length)
                )
            place = self.places.get((key, offsets))
            if place is None:
                raise BadData(f"{path}: says nowhere where the chunk of {key} at {list(offsets)} lies")
            record, locate = torch_archive.read(place.file, place.offset, place.length, self.files, key)
            found = locate(record)
            if found.dtype != dtype or found.view.shape != sizes or len(offsets) != len(shape):
                raise BadData(f"{place.file}: the chunk of {key} at {place.offset} is {found.dtype} {list(found.view.shape)}, "
                              f"expected {dtype} {list(sizes)}")  # fmt: skip
            parts.append(Part(tuple(range(first, first + size) for first, size in zip(offsets, sizes, strict=True)), found.view))
        tensor = Tensor(key, dtype, shape, tuple(parts), dtype)
        tensor.check_cover()
        return tensor

    def object(self, key: str) -> Any:
        """An object that is no tensor, inert."""
        place = self.objects[key]
        return torch_archive.read(place.file, place.offset, place.length, self.files, key)[0]


def read(directory: str, files: Files) -> Contents:
    """What a checkpoint holds. Raises BadData for metadata that is malformed or names files elsewhere."""
    path = f"{directory}/{METADATA}"
    metadata = pickles.loads(files.read(path, 0, files.size_bytes(path)), path)
    places = {}
    try:
        for index, stored in metadata.storage_data.items():
            # Objects have no offset: torch leaves the attribute out, or sets it to None.
            offset = None if getattr(index, "offset", None) is None else tuple(index.offset)
            if getattr(stored, "transform_descriptors", None):
                raise BadData(f"{path}: {index.fqn} is compressed or encrypted, which is not supported")
            places[str(index.fqn), offset] = _place(directory, path, stored)
        entries = {str(key): entry for key, entry in metadata.state_dict_metadata.items()}
        stored_tensors = {key: entry for key, entry in entries.items() if entry.name == f"{_PACKAGE}.TensorStorageMetadata"}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadData(f"{path}: not the metadata of a distributed checkpoint: {error}") from None
    objects = {key: place for (key, _), place in places.items() if key not in stored_tensors}
    return Contents(directory, files, stored_tensors, objects, places)


def _place(directory: str, path: str, stored: Any) -> Place:
    name = str(stored.relative_path)
    if "/" in name or name in ("", ".", ".."):
        raise BadData(f"{path}: names a file outside the checkpoint: {name!r}")
    _check_naturals((stored.offset, stored.length))
    return Place(f"{directory}/{name}", stored.offset, stored.length)


def _check_naturals(*numbers: Iterable[Any]) -> None:
    for each in numbers:
        if not all(type(number) is int and number >= 0 for number in each):
            raise ValueError("a size or an offset is not a natural number")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor to be written under `key`, in chunks: (offsets, name for people, values). A large chunk is cut into several."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[tuple[tuple[int, ...], str, Tensor], ...]

    @classmethod
    def whole(cls, key: str, tensor: Tensor) -> "Entry":
        return cls(key, tensor.dtype, tensor.shape, (((0,) * len(tensor.shape), key, tensor),))


def outputs(entries: Iterable[Entry], objects: Mapping[str, Any], prefix: str = "") -> list[OutputFile]:
    """The files of a checkpoint with these tensors and objects, `.metadata` last. `prefix` is the directory with its slash.

    An object that is a `torch_archive.Scalar` becomes a tensor.
    """
    entries = list(entries)
    total = sum(tensor.size_bytes for entry in entries for _, _, tensor in entry.chunks)
    file_bytes = min(FILE_BYTES, max(SMALLEST_FILE_BYTES, -(-total // FILES)))
    made: list[OutputFile] = []
    segments: list[bytes | Payload] = []
    size = 0
    described: dict[str, Any] = {}
    stored: list[tuple[Instance, Instance]] = []
    written: dict[Any, tuple[str, int, int]] = {}

    def close() -> None:
        nonlocal segments, size
        if segments:
            made.append(OutputFile(f"{prefix}__0_{len(made)}.distcp", tuple(segments)))
        segments, size = [], 0

    def add(index: Any, archive: tuple[bytes | Payload, ...]) -> tuple[str, int, int]:
        nonlocal size
        length = sum(len(part) if isinstance(part, bytes) else part.size_bytes for part in archive)
        # Chunks begin at multiples of the alignment that torch gives their values.
        padding = -size % torch_archive.ALIGNMENT
        if padding:
            segments.append(b"\0" * padding)
            size += padding
        place = (f"__0_{len(made)}.distcp", size, length)
        stored.append((index, _storage_info(*place)))
        segments.extend(archive)
        size += length
        if size >= file_bytes:
            close()
        return place

    for entry in entries:
        chunks = [(name, *piece) for offsets, name, tensor in entry.chunks for piece in _cut(offsets, tensor)]
        described[entry.key] = _described(entry.dtype, entry.shape, [(offsets, tensor.shape) for _, offsets, tensor in chunks])
        for name, offsets, tensor in chunks:
            index, values = _index(entry.key, offsets), (tensor.dtype, tensor.shape, tensor.parts)
            # A tied output lies where the embedding does: a fifth less to write for Llama 3.2 1B.
            if values in written:
                stored.append((index, _storage_info(*written[values])))
            else:
                written[values] = add(index, torch_archive.archive(Payload(name, tensor)))
    for key, value in objects.items():
        if isinstance(value, Scalar):
            described[key] = _described("float32", (), [((), ())])
            add(_index(key, ()), torch_archive.archive(value))
        else:
            described[key] = Instance(Global(_PACKAGE, "BytesStorageMetadata"), {})
            add(_index(key, None), torch_archive.archive(value))
    close()
    return [*made, OutputFile(f"{prefix}{METADATA}", (_metadata(described, stored),))]


def _cut(offsets: tuple[int, ...], tensor: Tensor) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """A chunk as pieces of at most CHUNK_BYTES, cut along its first axis that has more than one row."""
    axis = len(tensor.shape) - len(flat(tensor).shape) if tensor.shape else 0
    rows = tensor.shape[axis] if tensor.shape else 1
    step = max(1, CHUNK_BYTES // max(1, tensor.size_bytes // max(1, rows)))
    if rows <= step:
        yield offsets, tensor
        return
    for start in range(0, rows, step):
        place = (*offsets[:axis], offsets[axis] + start, *offsets[axis + 1 :])
        yield place, tensor.take(axis, range(start, min(start + step, rows)))


def _size(numbers: tuple[int, ...]) -> Call:
    return Call(Global("torch", "Size"), (numbers,))


def _index(key: str, offsets: tuple[int, ...] | None) -> Instance:
    state = {"fqn": key, "offset": None if offsets is None else _size(offsets), "index": None}
    return Instance(Global(_PACKAGE, "MetadataIndex"), state)


def _storage_info(name: str, offset: int, length: int) -> Instance:
    state = {"relative_path": name, "offset": offset, "length": length, "transform_descriptors": None}
    return Instance(Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"), state)


def _described(dtype: str, shape: tuple[int, ...], chunks: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Instance:
    """What `.metadata` says of a tensor with chunks of these (offsets, sizes)."""
    properties = Instance(Global(_PACKAGE, "TensorProperties"), (Global("torch", dtype), _LAYOUT, False, _CONTIGUOUS, False))
    pieces = [
        Instance(Global(_PACKAGE, "ChunkStorageMetadata"), {"offsets": _size(offsets), "sizes": _size(sizes)})
        for offsets, sizes in chunks
    ]
    state = {"properties": properties, "size": _size(shape), "chunks": pieces}
    return Instance(Global(_PACKAGE, "TensorStorageMetadata"), state)


def _metadata(described: Mapping[str, Any], stored: Sequence[tuple[Instance, Instance]]) -> bytes:
    return dumps(
        Instance(
            Global(_PACKAGE, "Metadata"),
            {
                "state_dict_metadata": dict(described),
                "planner_data": None,
                "storage_data": Pairs(stored),
                "storage_meta": None,
                "version": None,
            },
        )
    )
