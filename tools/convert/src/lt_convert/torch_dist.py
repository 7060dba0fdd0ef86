"""Read Megatron's torch_dist checkpoints with plain file reads: no torch, no process group.

A `.distcp` file is a row of `torch.save` zip archives, one a chunk, stored uncompressed; `.metadata` says which chunk lies where.
The tensors of all layers are stacked under one key (`decoder.layers.mlp.linear_fc2.weight` is [layers, ...]); they are handed out
one layer at a time as `decoder.layers.3.mlp.linear_fc2.weight`, whatever the tensor and pipeline parallel sizes were.
"""

import dataclasses
import io
import math
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy

from lt_convert.tensors import DTYPES, Chunk, OpenFiles, StoredTensor
from lt_shared import pickles, storage
from lt_shared.console import BadData

METADATA = ".metadata"
COMMON = "common.pt"

_STATE = re.compile(r"(.*\.)?(_extra_state|rng_state|rerun_state_machine_state|common_state)(/.*)?|(chained_\d+\.)?optimizer\..*")
_STACKED = re.compile(r"(?P<stem>.*\bdecoder\.layers)\.(?P<rest>[^0-9].*)")
_EMBEDDING = "embedding.word_embeddings.weight"


@dataclasses.dataclass(frozen=True)
class Contents:
    """The model's tensors by name, without the prefix that some trainers add; `left_out` are the keys of the training state."""

    tensors: dict[str, StoredTensor]
    left_out: list[str]


def read(directory: Path, files: OpenFiles) -> Contents:
    """Locate every model tensor of a checkpoint. Raises BadData for metadata that is malformed or does not fit the files."""
    path = directory / METADATA
    metadata = pickles.loads(storage.read_bytes(path), str(path))
    try:
        places = {(key.fqn, _offset(key)): place for key, place in metadata.storage_data.items()}
        entries = dict(metadata.state_dict_metadata)
        left_out = [key for key in entries if _STATE.fullmatch(key)]
        stored = [_tensor(directory, key, entry, places, files) for key, entry in entries.items() if not _STATE.fullmatch(key)]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadData(f"{path}: not the metadata of a torch_dist checkpoint: {error}") from None
    tensors = {tensor.name: tensor for whole in stored for tensor in _layers(whole)}
    prefix = next((name.removesuffix(_EMBEDDING) for name in tensors if name.endswith(_EMBEDDING)), "")
    for tensor in tensors.values():
        tensor.check()
    return Contents({name.removeprefix(prefix): tensor for name, tensor in tensors.items()}, left_out)


def read_common(directory: Path) -> dict[str, Any]:
    """What Megatron keeps beside the tensors: `args` as a dict, plain values as they are, everything else inert records.

    megatron-core 0.16 keeps it in common.pt, 0.19 as an object among the tensors.
    """
    path = directory / COMMON
    common = pickles.load_torch_file(path) if path.is_file() else _common_state(directory)
    if not isinstance(common, dict) or not isinstance(common.get("args"), pickles.Record):
        raise BadData(f"{directory}: has no Megatron arguments in it")
    return common | {"args": vars(common["args"])}


def _common_state(directory: Path) -> Any:
    metadata = pickles.loads(storage.read_bytes(directory / METADATA), str(directory / METADATA))
    places = [place for index, place in metadata.storage_data.items() if index.fqn.startswith("common_state/")]
    if not places:
        raise BadData(f"{directory / COMMON}: missing", "without it and without run.json the architecture is not known")
    path = _file(directory, places[0])
    with storage.open_read(path) as file:
        file.seek(places[0].offset)
        content = pickles.load_torch_object(io.BytesIO(file.read(places[0].length)), f"{path}: common_state")
    # A sharded object is stored as a list of its one part.
    return content[0] if isinstance(content, list) and content else content


def _offset(index: pickles.Record) -> tuple[int, ...] | None:
    offset = getattr(index, "offset", None)
    return None if offset is None else tuple(offset)


def _tensor(
    directory: Path, key: str, entry: pickles.Record, places: dict[tuple[str, Any], pickles.Record], files: OpenFiles
) -> StoredTensor:
    if entry.name != "torch.distributed.checkpoint.metadata.TensorStorageMetadata":
        raise BadData(f"{directory / METADATA}: {key} is not a tensor, and not a training state that is known here")
    dtype = entry.properties.state[0].name.removeprefix("torch.")
    if dtype not in DTYPES:
        raise BadData(f"{directory / METADATA}: {key} is stored as {dtype}, only {', '.join(DTYPES)} are known here")
    chunks = []
    for chunk in entry.chunks:
        offsets, sizes = tuple(chunk.offsets), tuple(chunk.sizes)
        place = places[key, offsets]
        chunks.append(Chunk(_file(directory, place), _payload(directory, place, sizes, dtype, key, files), offsets, sizes))
    return StoredTensor(key, dtype, tuple(entry.size), chunks, files)


def _file(directory: Path, place: pickles.Record) -> Path:
    name = str(place.relative_path)
    if Path(name).name != name:
        raise BadData(f"{directory / METADATA}: names a file outside the checkpoint: {name!r}")
    return directory / name


def _payload(directory: Path, place: pickles.Record, sizes: tuple[int, ...], dtype: str, key: str, files: OpenFiles) -> int:
    """Byte position in its file of a chunk's values. Raises BadData unless the archive there holds just such a tensor."""
    path = _file(directory, place)
    if getattr(place, "transform_descriptors", None):
        raise BadData(f"{path}: {key} is compressed or encrypted, which is not supported")
    window = _Window(files, path, place.offset, place.length)
    try:
        with zipfile.ZipFile(window) as archive:
            pickled = pickles.pickle_member(archive, f"{path}: {key}")
            tensor = pickles.loads(archive.read(pickled), f"{path}: {key}")
            storage_id, first, shape, strides = tensor.arguments[:4]
            member = archive.getinfo(f"{pickled.removesuffix('data.pkl')}data/{storage_id[2]}")
    except (zipfile.BadZipFile, KeyError, AttributeError, ValueError, IndexError) as error:
        raise BadData(f"{path}: the chunk of {key} at byte {place.offset} is damaged: {error}") from None
    expected_bytes = math.prod(sizes) * numpy.dtype(DTYPES[dtype]).itemsize
    plain = first == 0 and tuple(shape) == sizes and _is_row_major(sizes, strides)
    if not plain or member.compress_type != zipfile.ZIP_STORED or member.file_size != expected_bytes:
        raise BadData(f"{path}: the chunk of {key} at byte {place.offset} is not a plain {dtype} tensor of shape {list(sizes)}")
    header = files.read(path, place.offset + member.header_offset, 30)
    names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    position = int(place.offset + member.header_offset + 30 + names)
    if position + expected_bytes > place.offset + place.length:
        raise BadData(f"{path}: the chunk of {key} at byte {place.offset} is cut off")
    return position


def _is_row_major(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    return all(
        size == 1 or stride == math.prod(sizes[axis + 1 :])
        for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True))
    )


def _layers(whole: StoredTensor) -> list[StoredTensor]:
    """The tensors of the layers in a stacked one; any other tensor as it is."""
    match = _STACKED.fullmatch(whole.name)
    if not match:
        return [whole]
    item_bytes = numpy.dtype(DTYPES[whole.dtype]).itemsize
    chunks: list[list[Chunk]] = [[] for _ in range(whole.shape[0])]
    for chunk in whole.chunks:
        layer_bytes = math.prod(chunk.sizes[1:]) * item_bytes
        for number in range(chunk.sizes[0]):
            layer = chunk.offsets[0] + number
            if layer >= whole.shape[0]:
                raise BadData(f"{chunk.path}: a chunk of {whole.name} lies outside its shape {list(whole.shape)}")
            chunks[layer].append(Chunk(chunk.path, chunk.position + number * layer_bytes, chunk.offsets[1:], chunk.sizes[1:]))
    names = (f"{match['stem']}.{layer}.{match['rest']}" for layer in range(whole.shape[0]))
    return [
        StoredTensor(name, whole.dtype, whole.shape[1:], parts, whole.files) for name, parts in zip(names, chunks, strict=True)
    ]


class _Window(io.RawIOBase):
    """A part of a file as a file of its own, for zipfile."""

    def __init__(self, files: OpenFiles, path: Path, offset: int, length: int):
        self.files, self.path, self.offset, self.length = files, path, offset, length
        self.position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.length}[whence]
        if self.position < 0:
            raise ValueError("before the beginning")
        return self.position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self.length - self.position)
        size = left if size < 0 else min(size, left)
        data = self.files.read(self.path, self.offset + self.position, size)
        self.position += size
        return data
