"""torch.distributed.checkpoint on disk, read and planned without torch: shared by Megatron's torch_dist and TorchTitan.

A `.distcp` file is a sequence of `torch.save` archives, one for each chunk of a tensor or object; the pickle `.metadata` has the
archives' files and offsets. The tensors may have been sharded by any number of ranks, at any indices.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lt_convert.containers import torch_archive
from lt_convert.containers.pickle_writer import Call, Global, Instance, Pairs, dumps
from lt_convert.containers.torch_archive import Scalar
from lt_convert.tensors.blocks import flat
from lt_convert.tensors.output_files import OutputFile, Payload
from lt_convert.tensors.source_files import INCOMPLETE, LFS_POINTER_BYTES, Files
from lt_convert.tensors.tensor import ITEM_BYTES, Chunk, Tensor
from lt_shared import pickles
from lt_shared.console import BadData
from lt_shared.contracts import checkpoint_layout
from lt_shared.files import storage

METADATA = ".metadata"
# Threads that write one file wait for each other, so there are several files even of a small model.
FILES, FILE_BYTES = 4, 5_000_000_000
SMALLEST_FILE_BYTES = 64 << 20
CHUNK_BYTES = 1 << 30
# Archive headers of this many chunks are fetched together from a remote store.
PREFETCHED_CHUNKS = 1000
_PACKAGE = "torch.distributed.checkpoint.metadata"
_LAYOUT = Call(Global("torch.serialization", "_get_layout"), ("torch.strided",))
_CONTIGUOUS = Call(Global(_PACKAGE, "_MEM_FORMAT_ENCODING"), (0,))

Offsets = tuple[int, ...]
# The entry of a tensor in `.metadata`: dtype, shape, and (offsets, sizes) of its chunks; None for another object.
_Description = tuple[str, tuple[int, ...], list[tuple[Offsets, tuple[int, ...]]]] | None


@dataclasses.dataclass(frozen=True, slots=True)
class ShardLocation:
    """Where the `torch.save` archive of a chunk or object is: `length_bytes` of `file` from `offset_bytes`."""

    file: str
    offset_bytes: int
    length_bytes: int


_Stored = tuple[str, Offsets | None, ShardLocation]


@dataclasses.dataclass(frozen=True)
class Contents:
    """A checkpoint: the metadata of its tensors, and the locations of its other objects and of every archive.

    `locations` has every archive by (key, offsets of the chunk). The offsets are None for an object that is no tensor.
    """

    directory: str
    files: Files
    entries: Mapping[str, Any]
    objects: Mapping[str, ShardLocation]
    locations: Mapping[tuple[str, tuple[int, ...] | None], ShardLocation]

    def tensor(self, key: str) -> Tensor:
        """Locate the tensor without reading it.

        Raises BadData if its chunks are missing, damaged, have another shape, or do not cover the tensor exactly once.
        """
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
        located = []
        for number, (offsets, sizes) in enumerate(chunks):
            if number % PREFETCHED_CHUNKS == 0:
                following = chunks[number : number + PREFETCHED_CHUNKS]
                ahead = [self.locations[key, key_offsets] for key_offsets, _ in following if (key, key_offsets) in self.locations]
                self.files.prefetch(
                    position
                    for key_offsets in ahead
                    for position in torch_archive.ends(key_offsets.file, key_offsets.offset_bytes, key_offsets.length_bytes)
                )
            location = self.locations.get((key, offsets))
            if location is None:
                raise BadData(f"{path}: has no storage_data for the chunk of {key} at {list(offsets)}")
            record, locate = torch_archive.read(location.file, location.offset_bytes, location.length_bytes, self.files, key)
            stored = locate(record)
            if stored.dtype != dtype or stored.view.shape != sizes or not len(offsets) == len(sizes) == len(shape):
                raise BadData(
                    f"{location.file}: the chunk of {key} at byte {location.offset_bytes} is {stored.dtype} "
                    f"{list(stored.view.shape)}, expected {dtype} {list(sizes)}"
                )
            located.append(
                Chunk(tuple(range(first, first + size) for first, size in zip(offsets, sizes, strict=True)), stored.view)
            )
        tensor = Tensor(key, dtype, shape, tuple(located), dtype)
        tensor.check_cover()
        return tensor

    def object(self, key: str) -> Any:
        """An object that is no tensor; instances of classes are inert `pickles.Record`s."""
        return self.stored_object(key)[0]

    def stored_object(self, key: str) -> tuple[Any, Callable[[Any], torch_archive.StoredValues]]:
        """Return the object under `key`, and a function that locates the values of tensors in it."""
        location = self.objects[key]
        return torch_archive.read(location.file, location.offset_bytes, location.length_bytes, self.files, key)


def read(directory: str, files: Files) -> Contents:
    """Read the metadata of a checkpoint. Raises BadData if it is malformed or names files outside of the checkpoint."""
    path = f"{directory}/{METADATA}"
    metadata = pickles.loads(files.read(path, 0, files.size_bytes(path)), path)
    locations = {}
    try:
        for index, stored in metadata.storage_data.items():
            # Objects have no offset: torch leaves the attribute out, or sets it to None.
            offset = None if getattr(index, "offset", None) is None else tuple(index.offset)
            if not isinstance(index.fqn, str):
                raise ValueError("a tensor's name is no text")
            if getattr(stored, "transform_descriptors", None):
                raise BadData(f"{path}: {index.fqn} is compressed or encrypted, which is not supported")
            locations[index.fqn, offset] = _location(directory, path, stored)
        entries = {str(key): entry for key, entry in metadata.state_dict_metadata.items()}
        stored_tensors = {key: entry for key, entry in entries.items() if entry.name == f"{_PACKAGE}.TensorStorageMetadata"}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadData(f"{path}: not the metadata of a distributed checkpoint: {error}") from None
    _check_lengths(locations.values())
    objects = {key: location for (key, _), location in locations.items() if key not in stored_tensors}
    return Contents(directory, files, stored_tensors, objects, locations)


def _check_lengths(locations: Iterable[ShardLocation]) -> None:
    """Raise BadData if a local file ends before the last byte that the metadata place in it, even if no tensor needs it."""
    ends: dict[str, int] = {}
    for location in locations:
        ends[location.file] = max(ends.get(location.file, 0), location.offset_bytes + location.length_bytes)
    for path, end in ends.items():
        # A file that is missing is named when it is read: training state that is not converted may have been deleted.
        if not storage.is_remote(path) and os.path.isfile(path) and os.path.getsize(path) < end:
            size = os.path.getsize(path)
            # A file this small may be a Git LFS pointer. Reading it raises an error that says so.
            if size > LFS_POINTER_BYTES:
                raise BadData(f"{path}: has {size} bytes: data up to byte {end} lies beyond the end", INCOMPLETE)


def _location(directory: str, path: str, stored: Any) -> ShardLocation:
    checkpoint_layout.check_shard_name(stored.relative_path, path)
    _check_naturals((stored.offset, stored.length))
    return ShardLocation(f"{directory}/{stored.relative_path}", stored.offset, stored.length)


def _check_naturals(*numbers: Iterable[Any]) -> None:
    for group in numbers:
        if not all(type(number) is int and number >= 0 for number in group):
            raise ValueError("a size or an offset is not a natural number")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor to be written under `key`, in chunks of (offsets, name shown in plans, values).

    Chunks above CHUNK_BYTES are split when they are written.
    """

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
    files: list[OutputFile] = []
    segments: list[bytes | Payload] = []
    bounds: list[int] = []
    size = 0
    described: dict[str, _Description] = {}
    stored: list[_Stored] = []
    written: dict[Any, ShardLocation] = {}

    def close() -> None:
        nonlocal segments, bounds, size
        if segments:
            files.append(OutputFile(f"{prefix}__0_{len(files)}.distcp", tuple(segments), tuple(dict.fromkeys(bounds))))
        segments, bounds, size = [], [], 0

    def add(key: str, offsets: Offsets | None, archive: tuple[bytes | Payload, ...]) -> ShardLocation:
        nonlocal size
        length = sum(len(part) if isinstance(part, bytes) else part.size_bytes for part in archive)
        # Chunks begin at multiples of the alignment that torch gives their values.
        padding = -size % torch_archive.ALIGNMENT
        if padding:
            segments.append(b"\0" * padding)
            size += padding
        location = ShardLocation(f"__0_{len(files)}.distcp", size, length)
        stored.append((key, offsets, location))
        segments.extend(archive)
        bounds.extend((size, size + length))
        size += length
        if size >= file_bytes:
            close()
        return location

    for entry in entries:
        chunks = [(name, *piece) for offsets, name, tensor in entry.chunks for piece in _split(offsets, tensor)]
        described[entry.key] = entry.dtype, entry.shape, [(offsets, tensor.shape) for _, offsets, tensor in chunks]
        for name, offsets, tensor in chunks:
            values = (tensor.dtype, tensor.shape, tensor.chunks)
            # A tied output layer points to the embedding's archive: a fifth less to write for Llama 3.2 1B.
            if values in written:
                stored.append((entry.key, offsets, written[values]))
            else:
                written[values] = add(entry.key, offsets, torch_archive.archive(Payload(name, tensor)))
    for key, value in objects.items():
        is_tensor = isinstance(value, Scalar)
        described[key] = ("float32", (), [((), ())]) if is_tensor else None
        add(key, () if is_tensor else None, torch_archive.archive(value))
    close()
    return [*files, OutputFile(f"{prefix}{METADATA}", (_metadata(described, stored),))]


def _split(offsets: tuple[int, ...], tensor: Tensor) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """Yield a chunk in pieces of at most CHUNK_BYTES, split along its first axis that is longer than 1."""
    axis = len(tensor.shape) - len(flat(tensor).shape) if tensor.shape else 0
    rows = tensor.shape[axis] if tensor.shape else 1
    step = max(1, CHUNK_BYTES // max(1, tensor.size_bytes // max(1, rows)))
    if rows <= step:
        yield offsets, tensor
        return
    for start in range(0, rows, step):
        piece_offsets = (*offsets[:axis], offsets[axis] + start, *offsets[axis + 1 :])
        yield piece_offsets, tensor.take(axis, range(start, min(start + step, rows)))


def _size(numbers: tuple[int, ...]) -> Call:
    return Call(Global("torch", "Size"), (numbers,))


def _index(key: str, offsets: Offsets | None) -> Instance:
    state = {"fqn": key, "offset": None if offsets is None else _size(offsets), "index": None}
    return Instance(Global(_PACKAGE, "MetadataIndex"), state)


def _storage_info(location: ShardLocation) -> Instance:
    state = {"relative_path": location.file, "offset": location.offset_bytes, "length": location.length_bytes}
    return Instance(Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"), state | {"transform_descriptors": None})


def _storage_metadata(description: _Description) -> Instance:
    """The `TensorStorageMetadata` of a tensor, or `BytesStorageMetadata` for None."""
    if description is None:
        return Instance(Global(_PACKAGE, "BytesStorageMetadata"), {})
    dtype, shape, chunks = description
    properties = Instance(Global(_PACKAGE, "TensorProperties"), (Global("torch", dtype), _LAYOUT, False, _CONTIGUOUS, False))
    pieces = [
        Instance(Global(_PACKAGE, "ChunkStorageMetadata"), {"offsets": _size(offsets), "sizes": _size(sizes)})
        for offsets, sizes in chunks
    ]
    state = {"properties": properties, "size": _size(shape), "chunks": pieces}
    return Instance(Global(_PACKAGE, "TensorStorageMetadata"), state)


def _metadata(described: Mapping[str, _Description], stored: Sequence[_Stored]) -> bytes:
    return dumps(
        Instance(
            Global(_PACKAGE, "Metadata"),
            {
                "state_dict_metadata": Pairs((key, _storage_metadata(description)) for key, description in described.items()),
                "planner_data": None,
                "storage_data": Pairs((_index(key, offsets), _storage_info(location)) for key, offsets, location in stored),
                "storage_meta": None,
                "version": None,
            },
        )
    )
