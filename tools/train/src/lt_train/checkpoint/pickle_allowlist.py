"""Refuse a checkpoint that would run code when it is read.

torch's reader loads `.metadata` and the small objects of a torch_dist checkpoint with an ordinary unpickler, which calls whatever
the file names. All names are looked up first and compared with those that torch and megatron-core write there. `common.pt` needs
no check: torch reads it with its own restricted unpickler.
"""

import io
from pathlib import Path

from lt_shared import checkpoint_layout, pickles, storage
from lt_shared.console import BadData
from lt_train.checkpoint.numpy_state import STAND_INS

_METADATA = (
    "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
    "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
)  # fmt: skip
_PLANNER = ("SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")
_DTYPES = ("bfloat16", "bool", "float16", "float32", "float64", "float8_e4m3fn", "int16", "int32", "int64", "int8", "uint8")
_STORAGES = ("BFloat16Storage", "ByteStorage", "FloatStorage", "HalfStorage", "LongStorage")
INDEX_NAMES = {
    *(f"torch.distributed.checkpoint.metadata.{name}" for name in _METADATA),
    *(f"torch.distributed.checkpoint.planner.{name}" for name in _PLANNER),
    *(f"torch.{name}" for name in _DTYPES),
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.serialization._get_layout",
    "torch.Size",
    "collections.OrderedDict",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
}
# megatron-core 0.19 keeps the run's arguments and the scheduler's state among the objects; 0.16 keeps them in common.pt.
OBJECT_NAMES = {
    *(f"torch.{name}" for name in (*_STORAGES, *_DTYPES)),
    "megatron.core.enums.ModelType",
    *(f"megatron.core.transformer.enums.{name}" for name in ("AttnBackend", "CudaGraphScope")),
    *(f"megatron.core.rerun_state_machine.{name}" for name in ("RerunDiagnostic", "RerunMode", "RerunState")),
    # The state of numpy's random generator.
    *STAND_INS,
    "_codecs.encode",
    "torch._utils._rebuild_tensor_v2",
    "argparse.Namespace",
    "collections.OrderedDict",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
    "signal.Signals",
    "types.SimpleNamespace",
    "_io.BytesIO",
}


def check(directory: Path) -> None:
    """Raises BadData when the checkpoint in `directory` names a class or function that none needs, or is malformed."""
    index = directory / ".metadata"
    names, metadata = pickles.names_and_object(storage.read_bytes(index), str(index))
    _require(names, INDEX_NAMES, str(index))
    for entry, info in metadata.storage_data.items():
        check_shard_name(str(info.relative_path), str(index))
        # The name of the class: a pickle may give the object itself another.
        if type(metadata.state_dict_metadata[entry.fqn]).name.endswith(".BytesStorageMetadata"):
            _check_object(directory / info.relative_path, info.offset, info.length, entry.fqn)


def check_shard_name(name: str, origin: str) -> None:
    """Raises BadData for a name that may lead out of the checkpoint's directory."""
    if not checkpoint_layout.is_shard_name(name):
        raise BadData(f"{origin}: names a file outside the checkpoint: {name!r:.80}", "do not load it")


def _check_object(path: Path, offset: int, length: int, key: str) -> None:
    with storage.open_read(path) as file:
        file.seek(offset)
        content = file.read(length)
    origin = f"{path}: {key}"
    _require(pickles.names(pickles.torch_pickle(io.BytesIO(content), origin), origin), OBJECT_NAMES, origin)


def _require(found: set[str], known: set[str], origin: str) -> None:
    strange = sorted(found - known)
    if strange:
        raise BadData(f"{origin}: refers to {', '.join(strange)}, which no checkpoint needs", "do not load it: it may run code")
