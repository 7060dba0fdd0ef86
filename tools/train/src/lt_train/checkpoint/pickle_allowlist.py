"""Refuse a checkpoint that would run code when it is read.

torch's reader loads `.metadata` and the small objects of a torch_dist checkpoint with an ordinary unpickler, which calls whatever
function a pickle names. So the names in every pickle are compared with the names that torch and megatron-core write. `common.pt`
needs no check: torch reads it with a restricted unpickler.
"""

from pathlib import Path
from typing import Any

from lt_shared import pickles
from lt_shared.archives.torch_archive import TorchArchive
from lt_shared.console import BadData
from lt_shared.contracts import checkpoint_layout
from lt_shared.files import storage
from lt_train.checkpoint.shards.stored_shards import Objects, Place, StoredShards
from lt_train.checkpoint.stand_ins import STAND_INS

_METADATA = (
    "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
    "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
)  # fmt: skip
_PLANNER = ("SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")
_DTYPES = ("bfloat16", "bool", "float16", "float32", "float64", "float8_e4m3fn", "int16", "int32", "int64", "int8", "uint8")
_TYPES = {f"torch.{name}" for name in _DTYPES}
INDEX_NAMES = {
    *(f"torch.distributed.checkpoint.metadata.{name}" for name in _METADATA),
    *(f"torch.distributed.checkpoint.planner.{name}" for name in _PLANNER),
    *_TYPES,
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.serialization._get_layout",
    "torch.Size",
    "collections.OrderedDict",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
}
# megatron-core 0.19 keeps the run's arguments and the scheduler's state among the objects; 0.16 keeps them in common.pt.
OBJECT_NAMES = {
    *_TYPES,
    "megatron.core.enums.ModelType",
    *(f"megatron.core.transformer.enums.{name}" for name in ("AttnBackend", "CudaGraphScope")),
    *(f"megatron.core.rerun_state_machine.{name}" for name in ("RerunDiagnostic", "RerunMode", "RerunState")),
    # Tensors, bytes and the state of numpy's random generator.
    *STAND_INS,
    "argparse.Namespace",
    "collections.OrderedDict",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
    "signal.Signals",
    "types.SimpleNamespace",
    "_io.BytesIO",
}


def check(directory: Path) -> None:
    """Check the pickles of the checkpoint in `directory`.

    Raises BadData for a name of a class or function that no checkpoint needs, and for malformed or truncated files.
    """
    index = directory / ".metadata"
    names, metadata = pickles.names_and_object(storage.read_record(index), str(index))
    _require(names, INDEX_NAMES, str(index))
    try:
        objects = _objects(metadata, str(index))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise BadData(f"{index}: not the metadata of a distributed checkpoint: {error}") from None
    stored = StoredShards.load(directory)
    for shard, end in sorted(_ends(metadata).items()):
        stored.check_end(shard, end) if stored else _check_end(directory / shard, end)
    if stored is None:
        for key, info in objects:
            path = directory / info.relative_path
            _check_object(_content(path, info.offset, info.length), f"{path}: {key}")
        return
    places = {Place(info.relative_path, info.offset, info.length): key for key, info in objects}
    with Objects(stored, sorted(places)) as stored_objects:
        for place, key in sorted(places.items()):
            _check_object(stored_objects.take(place), f"{stored.url}/{place.shard}: {key}")


def _ends(metadata: Any) -> dict[str, int]:
    """Return the smallest possible size of each shard in bytes, by name."""
    ends: dict[str, int] = {}
    for info in metadata.storage_data.values():
        ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
    return ends


def _check_end(path: Path, end: int) -> None:
    """Raise BadData for a shard that is missing, has fewer bytes than `end`, or is no regular file: a pipe could block."""
    if not path.is_file():
        raise BadData(f"{path}: {'not a regular file' if path.exists() else 'missing'}")
    if end > path.stat().st_size:
        raise BadData(f"{path}: ends at {path.stat().st_size} bytes, {end} are needed")


def _objects(metadata: Any, origin: str) -> list[tuple[str, Any]]:
    """Return key and position of the objects that are not tensors.

    Raises BadData, or any error that reading an attribute raises, if the metadata has another structure.
    """
    objects = []
    for entry, info in metadata.storage_data.items():
        checkpoint_layout.check_shard_name(info.relative_path, origin)
        _check_naturals(info.offset, info.length)
        stored = metadata.state_dict_metadata[entry.fqn]
        # `type(...)`, because a pickle may give the object a `name` that its class does not have.
        if type(stored).name.endswith(".BytesStorageMetadata"):
            objects.append((entry.fqn, info))
    for stored in metadata.state_dict_metadata.values():
        if not type(stored).name.endswith(".BytesStorageMetadata"):
            _check_naturals(*stored.size)
            for chunk in stored.chunks:
                _check_naturals(*chunk.offsets, *chunk.sizes)
            if stored.properties.state[0].name not in _TYPES:
                raise ValueError("a tensor has no type")
    return objects


def _check_naturals(*numbers: Any) -> None:
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("a size or an offset is not a natural number")


def _content(path: Path, offset: int, length: int) -> bytes:
    with storage.open_read(path) as file:
        file.seek(offset)
        return file.read(length)


def _check_object(content: bytes | memoryview, origin: str) -> None:
    _require(pickles.names(TorchArchive(content, origin).pickle(), origin), OBJECT_NAMES, origin)


def _require(named: set[str], allowed: set[str], origin: str) -> None:
    strange = sorted(named - allowed)
    if strange:
        raise BadData(f"{origin}: refers to {', '.join(strange)}, which no checkpoint needs", "do not load it: it may run code")
