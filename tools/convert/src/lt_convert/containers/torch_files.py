"""Whole files of `torch.save` that hold a state dict: zip archives, and the format that torch had before version 1.6.

The older format is five pickles in a row (a magic number, the version, the byte order, the object, the keys of its storages),
then each storage: eight bytes with the number of its elements, and the elements. Both are read by the restricted unpickler, and
no value is read before it is written.
"""

import tarfile
from collections.abc import Callable, Mapping
from typing import Any

from lt_convert.containers import torch_archive
from lt_convert.containers.torch_archive import StoredValues
from lt_convert.tensors.source_files import INCOMPLETE, Files
from lt_convert.tensors.tensor import Chunk, Tensor, View, shared
from lt_shared import pickles
from lt_shared.archives.torch_archive import DTYPES, storage_view
from lt_shared.console import BadData

_ZIP_MAGIC = b"PK\x03\x04"
_MAGIC_NUMBER, _VERSION = 0x1950A86A20F9469CFC6C, 1001
_PARAMETER = "torch._utils._rebuild_parameter"
# Masks are booleans in old files of GPT-2.
_STORAGES = {**DTYPES, "torch.BoolStorage": ("uint8", 1)}
# The names of 100,000 tensors take 20 MB.
MAXIMUM_PICKLE_BYTES = 128 << 20
_FIRST_BYTES = 1 << 20
_COUNT_BYTES = 8

Locate = Callable[[Any], StoredValues]


def read_state_dict(path: str, files: Files) -> dict[str, Tensor]:
    """Locate the tensors of a file whose object is a flat dict of tensors.

    Raises BadData for a file that is damaged or cut off, and for any other object. Nothing is executed.
    """
    content, locate = load(path, files)
    if not isinstance(content, dict):
        raise BadData(f"{path}: holds {_described(content)}, expected a dict of tensors", "save model.state_dict() in it")
    tensors: dict[str, Tensor] = {}
    for name, record in content.items():
        if type(name) is not str or not is_tensor(record):
            raise BadData(
                f"{path}: {name!r:.80} is {_described(record)}, expected a tensor",
                "it is not the weights of a model alone: save model.state_dict() in a file of its own",
            )
        tensors[name] = located(name, record, locate)
    return tensors


def load(path: str, files: Files) -> tuple[Any, Locate]:
    """Read the inert object in a file; return it with a function that locates the values of its tensors. Raises BadData."""
    size = files.size_bytes(path)
    name = path.rpartition("/")[2]
    if files.read(path, 0, min(size, len(_ZIP_MAGIC))) == _ZIP_MAGIC:
        return torch_archive.read(path, 0, size, files, name, _STORAGES)
    files.reader.named(path, 0, name)
    return _load_stream(path, size, files)


def is_tensor(record: Any) -> bool:
    """Return whether an inert record stands for a tensor or a parameter."""
    return isinstance(record, pickles.Record) and record.name.startswith("torch._utils._rebuild_")


def located(name: str, record: Any, locate: Locate) -> Tensor:
    """Make the tensor `name` of an inert record. Raises BadData for anything but a plain tensor or parameter."""
    if record.name == _PARAMETER and record.arguments:
        record = record.arguments[0]
    stored = locate(record)
    shape = shared(stored.view.shape)
    return Tensor(name, stored.dtype, shape, (Chunk(tuple(map(range, shape)), stored.view),), stored.dtype)


def _described(content: Any) -> str:
    return f"a {content.name or 'record'}" if isinstance(content, pickles.Record) else f"a {type(content).__name__}"


def _load_stream(path: str, size: int, files: Files) -> tuple[Any, Locate]:
    """As `load`, of a file in the format before torch 1.6."""
    length = min(size, _FIRST_BYTES)
    while True:
        try:
            header = _read_header(files.read(path, 0, length), path)
            break
        except BadData:
            # The pickles may go on behind the bytes read so far.
            if length == min(size, MAXIMUM_PICKLE_BYTES):
                raise
            length = min(size, MAXIMUM_PICKLE_BYTES, 8 * length)
    content, identifiers, keys, position = header
    storages = _storages(path, identifiers, keys, position, size, files)

    def locate(record: Any) -> StoredValues:
        view = storage_view(record, path, _STORAGES)
        storage_begin, elements, item_bytes = storages.get(view.key, (0, -1, 0))
        # A pickle may name a storage without the mark that its identifiers have.
        if (elements, item_bytes) != (view.elements, view.item_bytes):
            raise BadData(f"{path}: holds no plain tensor: its storage is not one of the file's")
        begin = storage_begin + view.offset * view.item_bytes
        strides_bytes = tuple(stride * view.item_bytes for stride in view.strides)
        return StoredValues(view.dtype, View(path, begin, view.shape, strides_bytes))

    return content, locate


def _read_header(data: bytes, path: str) -> tuple[Any, list[Any], list[Any], int]:
    """Read the five pickles: the object, the identifiers of its storages, the keys of the stored ones, and where they begin."""
    magic, _, position = pickles.load_next(data, 0, path)
    if magic != _MAGIC_NUMBER:
        raise BadData(f"{path}: not a file of torch.save", "copy it again, or use another one")
    version, _, position = pickles.load_next(data, position, path)
    system, _, position = pickles.load_next(data, position, path)
    if version != _VERSION or not isinstance(system, dict) or system.get("little_endian") is not True:
        raise BadData(f"{path}: was written by a big-endian machine, or in format {version!r:.20}, expected {_VERSION}")
    # torch takes a file that is a tar archive, too, for one.
    try:
        tarfile.TarInfo.frombuf(data[:512], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        pass
    else:
        raise BadData(f"{path}: is a tar archive and a pickle at once", "do not load it: it may run code")
    content, identifiers, position = pickles.load_next(data, position, path)
    keys, _, position = pickles.load_next(data, position, path)
    if type(keys) is not list or not all(type(key) is str for key in keys) or len(set(keys)) < len(keys):
        raise BadData(f"{path}: the keys of its storages are malformed")
    return content, identifiers, keys, position


def _storages(
    path: str, identifiers: list[Any], keys: list[Any], position: int, size: int, files: Files
) -> Mapping[Any, tuple[int, int, int]]:
    """Return (offset in the file, elements, bytes of an element) for every storage key.

    Raises BadData unless the storages fill the rest of the file exactly.
    """
    storages: dict[str, tuple[int, int]] = {}
    for identifier in identifiers:
        try:
            kind, storage, key, _, elements, *view = identifier
            if kind != "storage" or view != [None] or type(key) is not str or type(elements) is not int:
                raise ValueError("it is no plain storage")
            item_bytes = _STORAGES[storage.name][1]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadData(f"{path}: names something other than a storage of numbers: {error}") from None
        if storages.setdefault(key, (elements, item_bytes)) != (elements, item_bytes):
            raise BadData(f"{path}: gives storage {key!r:.40} two sizes")
    if set(keys) != set(storages):
        raise BadData(f"{path}: stores other storages than its tensors have")
    placed: dict[Any, tuple[int, int, int]] = {}
    for key in keys:
        elements, item_bytes = storages[key]
        begin = position + _COUNT_BYTES
        if begin + elements * item_bytes > size or elements < 0:
            raise BadData(f"{path}: ends at {size} bytes, {begin + elements * item_bytes} are needed", INCOMPLETE)
        if int.from_bytes(files.read(path, position, _COUNT_BYTES), "little") != elements:
            raise BadData(f"{path}: storage {key!r:.40} has another size than its tensors say")
        placed[key] = (begin, elements, item_bytes)
        position = begin + elements * item_bytes
    if position != size:
        raise BadData(f"{path}: {size - position} bytes follow its storages")
    return placed
