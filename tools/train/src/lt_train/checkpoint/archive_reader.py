"""Read the archives of `torch.save` in a checkpoint's shards without torch's unpickler.

An archive can be crafted so that Python's zipfile finds one `data.pkl` in it and torch another. So this module alone reads the
archive, and `lt_shared.pickles.load_known` reads the pickle: it looks up the names of `pickle_allowlist` only. `find_tensor`
finds the position of a large tensor's bytes from both ends of an archive, so that `tensor_reader` can read them into the
parameter.
"""

import io
import pickle
import zipfile
from collections.abc import Callable
from typing import IO, Any, NamedTuple, Protocol

import torch

from lt_shared import pickles
from lt_shared.console import BadData
from lt_shared.files import checksums
from lt_shared.files.checksums import DAMAGED
from lt_train.checkpoint.pickle_allowlist import OBJECT_NAMES
from lt_train.checkpoint.stand_ins import STAND_INS

_LOCAL_HEADER_BYTES = 30
META = "meta"


class Content(Protocol):
    """The bytes of an archive, by slices."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice) -> memoryview: ...


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
    if content[: len(pickles.ARCHIVE)] != pickles.ARCHIVE:
        raise BadData(f"{origin}: not a torch file", "do not load it: it may run code")
    try:
        with zipfile.ZipFile(BytesFile(content, origin)) as archive:
            return _load(Members(archive, content, verify), origin, _in_memory)
    except pickles.NOT_AN_ARCHIVE as error:
        raise BadData(f"{origin}: damaged: {error}", DAMAGED) from None


class Ends:
    """The first and last bytes of an archive of `size_bytes`. A slice of the bytes between them raises BadZipFile."""

    def __init__(self, head: memoryview, tail: memoryview, size_bytes: int):
        self.head, self.tail, self.size_bytes = head, tail, size_bytes

    def __len__(self) -> int:
        return self.size_bytes

    def __getitem__(self, index: slice) -> memoryview:
        start, stop, _ = index.indices(self.size_bytes)
        begin = self.size_bytes - len(self.tail)
        if stop <= len(self.head):
            return self.head[start:stop]
        if start >= begin:
            return self.tail[start - begin : stop - begin]
        raise zipfile.BadZipFile("what was looked for is not at its ends")


class StoredTensor(NamedTuple):
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


def find_tensor(ends: Ends, origin: str, verify: bool) -> StoredTensor | None:
    """Find the tensor in an archive that holds a single tensor. Return None for any other archive, which `read_object` must read.

    `verify`: compare the members at the ends with the checksums in the archive.
    """
    entries: list[zipfile.ZipInfo] = []
    try:
        with zipfile.ZipFile(BytesFile(ends, origin)) as archive:
            members = Members(archive, ends, verify)

            def without_memory(members: Members, name: str) -> torch.UntypedStorage:
                entries.append(members.archive.getinfo(name))
                return torch.UntypedStorage(entries[-1].file_size, device=META)  # type: ignore[no-untyped-call]

            tensor = _load(members, origin, without_memory)
            if len(entries) != 1 or type(tensor) is not torch.Tensor or not tensor.is_contiguous():
                return None
            begin, size_bytes = members.place(entries[0].filename)
            if tensor.storage_offset() or tensor.nbytes != size_bytes or begin + size_bytes > len(ends):
                return None
            return StoredTensor(
                tensor.dtype, tensor.shape, ends[:begin], begin, size_bytes, ends[begin + size_bytes :], entries[0].CRC
            )
    except (*pickles.NOT_AN_ARCHIVE, BadData):
        return None


class Members:
    """The members of an archive, as views of its `content`. With `verify`, their CRC-32 is checked."""

    def __init__(self, archive: zipfile.ZipFile, content: Content, verify: bool):
        self.archive, self.content, self.verify = archive, content, verify
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise zipfile.BadZipFile("it is compressed, which torch.save never does")

    def place(self, name: str) -> tuple[int, int]:
        """Return the position and the size of a member's bytes. Raises BadZipFile if there is no local header at its place."""
        member = self.archive.getinfo(name)
        # zipfile takes sizes from the directory, but torch finds the bytes behind the local header, as this method does.
        header = self.content[member.header_offset : member.header_offset + _LOCAL_HEADER_BYTES]
        if header[: len(pickles.ARCHIVE)] != pickles.ARCHIVE or len(header) < _LOCAL_HEADER_BYTES:
            raise zipfile.BadZipFile(f"{name} has no local header")
        name_bytes = int.from_bytes(header[26:28], "little")
        start = member.header_offset + _LOCAL_HEADER_BYTES + name_bytes + int.from_bytes(header[28:30], "little")
        return start, member.file_size

    def read(self, name: str) -> memoryview:
        """Return a member's bytes. Raises BadZipFile if they are cut off or differ from their CRC-32."""
        start, size_bytes = self.place(name)
        data = self.content[start : start + size_bytes]
        if len(data) < size_bytes:
            raise zipfile.BadZipFile(f"{name} is cut off")
        checksum = self.archive.getinfo(name).CRC
        if self.verify and checksum and checksums.crc32(data) != checksum:
            raise zipfile.BadZipFile(f"the CRC-32 of {name} is another")
        return data


# Returns the storage whose bytes are the member with a name.
Storage = Callable[[Members, str], torch.UntypedStorage]


def _in_memory(members: Members, name: str) -> torch.UntypedStorage:
    """Return a storage that shares the memory of the archive's buffer."""
    data = members.read(name)
    return torch.frombuffer(data, dtype=torch.uint8).untyped_storage() if data else torch.UntypedStorage(0)  # type: ignore[no-untyped-call]


def _load(members: Members, origin: str, storage: Storage) -> Any:
    """Load the object of the archive, with its tensors in the storages that `storage` returns."""
    member = pickles.pickle_member(members.archive, origin)
    storages = _Storages(members, member.removesuffix("data.pkl"), storage)
    return pickles.load_known(bytes(members.read(member)), OBJECT_NAMES, origin, storages.load, STAND_INS)


class _Storages:
    """The tensor storages of an archive. Tensors that share a storage get the same object."""

    def __init__(self, members: Members, root: str, storage: Storage):
        self.members, self.root, self.storage = members, root, storage
        self.loaded: dict[str, torch.TypedStorage] = {}

    def load(self, identifier: Any) -> torch.TypedStorage:
        """Return the storage that a pickle refers to by ("storage", class, key, device, number of elements)."""
        kind, storage_class, key, _, elements = identifier
        dtype = getattr(storage_class, "_dtype", None)
        if kind != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, str):
            raise pickle.UnpicklingError("it refers to something other than a tensor's storage")
        if key not in self.loaded:
            untyped = self.storage(self.members, f"{self.root}data/{key}")
            size_bytes = untyped.nbytes()
            if elements * dtype.itemsize != size_bytes:
                raise pickle.UnpicklingError(f"storage {key} has {size_bytes} bytes, expected {elements} x {dtype.itemsize}")
            self.loaded[key] = torch.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]
        return self.loaded[key]
