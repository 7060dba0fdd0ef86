"""Read the archives of `torch.save` in a checkpoint's shards to torch's tensors, without torch's unpickler.

`lt_shared.archives` reads the archive and refuses one in which torch could find another `data.pkl`. `pickles.load_known` of
`lt_shared` reads the pickle: it looks up the names of `pickle_allowlist` only. `find_tensor` finds the position of a large
tensor's bytes from both ends of an archive, so that `tensor_reader` can read them into the parameter.
"""

import io
import pickle
from typing import IO, Any, NamedTuple

import torch

from lt_shared import pickles
from lt_shared.archives.torch_archive import STORAGES, TorchArchive
from lt_shared.archives.zip_members import Content
from lt_shared.console import BadData
from lt_train.checkpoint.pickle_allowlist import OBJECT_NAMES
from lt_train.checkpoint.stand_ins import STAND_INS

# The types with a storage that `stand_ins` lets a pickle name.
_DTYPES = {name: getattr(torch, name) for name, (storage, _) in STORAGES.items() if f"torch.{storage}" in STAND_INS}


class BytesFile(io.RawIOBase):
    """A file that reads from a buffer without copying it first."""

    def __init__(self, content: Content, name: str):
        self.content, self.name, self._position = content, name, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self.content)}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self.content[self._position : self._position + len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def read_object(file: IO[bytes] | BytesFile, verify: bool = True) -> Any:
    """Read the object in an open file of `torch.save`. Its tensors are on the CPU.

    Raises BadData for an archive that is compressed, damaged or ambiguous, and for a pickle that refers to an unknown name.
    """
    origin = str(getattr(file, "name", "an object of the checkpoint"))
    content = file.content if isinstance(file, BytesFile) else memoryview(bytearray(file.read()))
    archive = TorchArchive(content, origin, verify)
    return pickles.load_known(archive.pickle(), OBJECT_NAMES, origin, _Storages(archive).load, STAND_INS)


class _Storages:
    """The tensor storages of an archive, in the memory of its buffer. Tensors that share a storage get the same object."""

    def __init__(self, archive: TorchArchive):
        self.archive = archive
        self.loaded: dict[str, torch.TypedStorage] = {}

    def load(self, identifier: Any) -> torch.TypedStorage:
        """Return the storage that a pickle refers to by ("storage", class, key, device, number of elements)."""
        kind, storage_class, key, _, elements = identifier
        dtype = getattr(storage_class, "_dtype", None)
        if kind != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, str):
            raise pickle.UnpicklingError("it refers to something other than a tensor's storage")
        if key not in self.loaded:
            data = self.archive.zip.read(self.archive.storage(key), self.archive.verify)
            if elements * dtype.itemsize != len(data):
                raise pickle.UnpicklingError(f"storage {key} has {len(data)} bytes, expected {elements} x {dtype.itemsize}")
            untyped = torch.frombuffer(data, dtype=torch.uint8).untyped_storage() if data else torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
            self.loaded[key] = torch.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]
        return self.loaded[key]


class Ends:
    """The first and last bytes of an archive of `size_bytes`. A slice of the bytes between them raises BadData."""

    def __init__(self, head: memoryview, tail: memoryview, size_bytes: int):
        self.head, self.tail, self.size_bytes = head, tail, size_bytes

    def __len__(self) -> int:
        return self.size_bytes

    def __getitem__(self, index: slice, /) -> memoryview:
        start, stop, _ = index.indices(self.size_bytes)
        begin = self.size_bytes - len(self.tail)
        if stop <= len(self.head):
            return self.head[start:stop]
        if start >= begin:
            return self.tail[start - begin : stop - begin]
        raise BadData(f"bytes {start} to {stop} are not at the ends of the archive")


class TensorBytes(NamedTuple):
    """The position of a contiguous tensor's bytes in its archive, and the bytes before and behind them.

    `crc32` is the checksum of the tensor's bytes, 0 if torch has computed none.
    """

    dtype: torch.dtype
    shape: torch.Size
    head: memoryview
    begin: int
    size_bytes: int
    tail: memoryview
    crc32: int


def find_tensor(ends: Ends, origin: str, verify: bool) -> TensorBytes | None:
    """Find the tensor in an archive that holds a single tensor. Return None for any other archive, which `read_object` must read.

    `verify`: compare the members at the ends with the checksums in the archive.
    """
    try:
        archive = TorchArchive(ends, origin, verify)
        tensor = archive.locate(archive.load())
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None or not tensor.is_whole_storage:
            return None
        begin, size_bytes = tensor.begin, tensor.member.size_bytes
        head, tail = ends[:begin], ends[begin + size_bytes :]
        return TensorBytes(dtype, torch.Size(tensor.shape), head, begin, size_bytes, tail, tensor.member.crc32)
    except BadData:
        return None
