"""Read the objects of a torch_dist checkpoint without torch's unpickler, which calls whatever a pickle names.

torch's checkpoint reader unpickles `.metadata`, and the small objects beside the tensors with `torch.load(weights_only=False)`.
A check beforehand is no remedy: a zip archive can be made so that Python's reader finds one `data.pkl` and torch's another, and
a file can change between check and use. Within `known_objects_only` both go through this module instead: one reader of the
archive, and `lt_shared.pickles.load_known`, which looks up the names of `pickle_allowlist` only. `common.pt` is left to torch's
own restricted unpickler (`weights_only=True`).

The cost is nothing measurable: the objects of a checkpoint are some kilobytes, the tensors do not come this way.
"""

import contextlib
import io
import pickle
import threading
import zipfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import IO, Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.api import CheckpointException

from lt_shared import pickles
from lt_shared.console import BadData, ToolError
from lt_train.checkpoint.pickle_allowlist import INDEX_NAMES, OBJECT_NAMES

INDEX = ".metadata"
_lock = threading.Lock()


@contextlib.contextmanager
def known_objects_only() -> Iterator[None]:
    """Within, torch's checkpoint readers in this process get objects from `read_index` and `read_object`.

    Raises their BadData, which torch wraps together with the errors of other ranks.
    """
    torch_load = torch.load

    def load(file: Any, *arguments: Any, **options: Any) -> Any:
        if options.get("weights_only") is False:
            return read_object(file)
        return torch_load(file, *arguments, **options | {"weights_only": True})

    with _lock, _replaced(torch, "load", load), _replaced(filesystem, "pickle", SimpleNamespace(load=read_index)):
        try:
            yield
        except CheckpointException as error:
            for cause, _ in error.failures.values():
                if isinstance(cause, ToolError):
                    raise cause from None
            raise


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def read_index(file: IO[bytes]) -> Any:
    """The `Metadata` in an open `.metadata` file. Raises BadData for a pickle that names anything else."""
    return pickles.load_known(file.read(), INDEX_NAMES, str(getattr(file, "name", INDEX)))


def read_object(file: IO[bytes]) -> Any:
    """The object in an open file of `torch.save`, its tensors on the CPU.

    Raises BadData for an archive that is compressed, damaged or ambiguous, and for a pickle that names what is not known.
    """
    origin = str(getattr(file, "name", "an object of the checkpoint"))
    content = file.read()
    if not content.startswith(pickles.ARCHIVE):
        raise BadData(f"{origin}: not a torch file", "do not load it: it may run code")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise BadData(f"{origin}: is compressed, which torch.save never does")
            member = pickles.pickle_member(archive, origin)
            storages = _Storages(archive, member.removesuffix("data.pkl"))
            return pickles.load_known(archive.read(member), OBJECT_NAMES, origin, storages.load)
    except pickles.NOT_AN_ARCHIVE as error:
        raise BadData(f"{origin}: damaged: {error}", "the checkpoint is not as it was written: copy it again") from None


class _Storages:
    """The tensor storages of an archive, each read once; their CRC-32 is checked."""

    def __init__(self, archive: zipfile.ZipFile, root: str):
        self.archive, self.root = archive, root
        self.loaded: dict[str, torch.TypedStorage] = {}

    def load(self, identifier: Any) -> torch.TypedStorage:
        """The storage that a pickle names by ("storage", class, key, device, number of elements)."""
        kind, storage_class, key, _, elements = identifier
        dtype = getattr(storage_class, "dtype", None)
        if kind != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, str):
            raise pickle.UnpicklingError("it refers to something other than a tensor's storage")
        if key not in self.loaded:
            data = bytearray(self.archive.read(f"{self.root}data/{key}"))
            if elements * dtype.itemsize != len(data):
                raise pickle.UnpicklingError(f"storage {key} has {len(data)} bytes, expected {elements} x {dtype.itemsize}")
            untyped = torch.frombuffer(data, dtype=torch.uint8).untyped_storage() if data else torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
            self.loaded[key] = torch.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]
        return self.loaded[key]
