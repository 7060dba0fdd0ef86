"""One archive of `torch.save`: its pickle, and where the values of its tensors are.

`common.pt`, `model_optim_rng.pt` and each chunk of a `.distcp` file are such archives. torch writes `data.pkl`, a member for each
storage, and `byteorder`, all in one folder. A tensor in the pickle is a call of `_rebuild_tensor_v2` with the number of its
storage, its shape and its strides.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from lt_shared import pickles
from lt_shared.archives import zip_members
from lt_shared.archives.zip_members import Content, Member
from lt_shared.console import BadData

# The storage's class in torch and the bytes of an element, by dtype.
STORAGES = {
    "float64": ("DoubleStorage", 8),
    "float32": ("FloatStorage", 4),
    "bfloat16": ("BFloat16Storage", 2),
    "float16": ("HalfStorage", 2),
    "int64": ("LongStorage", 8),
    "int32": ("IntStorage", 4),
    "uint8": ("ByteStorage", 1),
}
# (dtype, bytes of an element) by the full name of the class of a storage.
DTYPES = {f"torch.{storage_class}": (dtype, item_bytes) for dtype, (storage_class, item_bytes) in STORAGES.items()}
_REBUILD = "torch._utils._rebuild_tensor_v2"


class StorageView(NamedTuple):
    """A view of the storage `key`, which has `elements` elements of `item_bytes` bytes; `offset`, `shape` and `strides` count
    elements.
    """

    key: Any
    dtype: str
    item_bytes: int
    elements: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def storage_view(record: Any, origin: str, dtypes: Mapping[str, tuple[str, int]] = DTYPES) -> StorageView:
    """Read the view in the inert record of a tensor. `dtypes` has (dtype, bytes of an element) by the class of the storage.

    Raises BadData, naming `origin`, for anything but a plain tensor that lies within its storage.
    """
    try:
        if record.name != _REBUILD or set(vars(record)) != {"arguments"}:
            raise ValueError(f"it is made by {record.name}")
        storage, offset, shape, strides = record.arguments[:4]
        # A seventh argument tells torch to conjugate or negate the values.
        if storage[0] != "storage" or any(record.arguments[6:]):
            raise ValueError("it is no view of a storage")
        dtype, item_bytes = dtypes[storage[1].name]
        key, elements = storage[2], storage[4]
        if not all(type(size) is int and size >= 0 for size in (offset, elements, *shape, *strides)):
            raise ValueError("its sizes are no natural numbers")
        steps = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        end = offset + steps + 1 if all(shape) else offset
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise BadData(f"{origin}: holds no plain tensor: {error}") from None
    if end > elements:
        raise BadData(f"{origin}: its values are cut off")
    return StorageView(key, dtype, item_bytes, elements, offset, tuple(shape), tuple(strides))


class StoredTensor(NamedTuple):
    """A view of a storage. `offset`, `shape` and `strides` count elements of `item_bytes` bytes; the storage is `member`, whose
    data begin at byte `begin` of the archive.
    """

    dtype: str
    item_bytes: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    member: Member
    begin: int

    @property
    def is_whole_storage(self) -> bool:
        """Return whether the values are the storage's bytes in row-major order."""
        # As many values as the storage has leave no room for an offset.
        if math.prod(self.shape) * self.item_bytes != self.member.size_bytes:
            return False
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return False
            step *= size
        return True


class TorchArchive:
    """The archive in `content`. `origin` names it in messages. Without `verify`, no CRC-32 is compared.

    Raises BadData for an archive that is damaged, compressed, ambiguous (`zip_members`) or big-endian, and for any number of
    pickles but one.
    """

    def __init__(self, content: Content, origin: str, verify: bool = True):
        self.origin, self.verify = origin, verify
        self.zip = zip_members.read(content, origin)
        pickle_names = [name for name in self.zip.members if name.endswith(".pkl")]
        if f"{self.zip.root}/data.pkl" not in pickle_names:
            raise BadData(f"{origin}: not an archive of torch.save: it has no data.pkl")
        if len(pickle_names) > 1:
            raise BadData(f"{origin}: not an archive of torch.save: it holds {len(pickle_names)} pickles, expected one")
        byte_order = self.zip.members.get(f"{self.zip.root}/byteorder")
        if byte_order is not None and self.zip.read(byte_order, verify) != b"little":
            raise BadData(f"{origin}: was written by a big-endian machine, which is not supported")

    def pickle(self) -> bytes:
        """Return the archive's pickle."""
        return bytes(self.zip.read(self.zip.members[f"{self.zip.root}/data.pkl"], self.verify))

    def load(self) -> Any:
        """Return the archive's object as inert records: `locate` finds the values of its tensors. Nothing is executed."""
        return pickles.loads(self.pickle(), self.origin)

    def storage(self, number: str) -> Member:
        """Return the member that holds a storage's bytes. Raises KeyError."""
        return self.zip.members[f"{self.zip.root}/data/{number}"]

    def locate(self, record: Any, dtypes: Mapping[str, tuple[str, int]] = DTYPES) -> StoredTensor:
        """Find the values of a tensor in what `load` returned. Raises BadData for anything but a plain tensor."""
        view = storage_view(record, self.origin, dtypes)
        try:
            member = self.storage(view.key)
        except (KeyError, TypeError) as error:
            raise BadData(f"{self.origin}: holds no plain tensor: {error}") from None
        if view.elements * view.item_bytes > member.size_bytes:
            raise BadData(f"{self.origin}: its values are cut off")
        begin = self.zip.begin(member)
        return StoredTensor(view.dtype, view.item_bytes, view.offset, view.shape, view.strides, member, begin)
