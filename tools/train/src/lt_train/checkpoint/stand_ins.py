"""Functions that replace numpy's and torch's functions when a pickle from outside builds arrays and tensors.

numpy's `dtype.__setstate__` trusts its state. A dtype that claims to hold Python objects makes an array whose bytes are read as
pointers, which crashes the process at least. Here a dtype is the name of a plain number and a byte order, and an array takes
bytes.

numpy's and torch's classes, called with a size, return uninitialized memory, and torch enlarges an empty storage to the size of a
tensor. So a size in a pickle could expose old memory. Here the classes cannot be called, and a tensor must lie within its
storage.
"""

import pickle
import re
from typing import Any

import numpy as np

_PLAIN = re.compile(r"[<>|=]?[?biufc]\d*")
_ORDERS = ("<", ">", "|", "=")
_STORAGES = ("BFloat16Storage", "ByteStorage", "FloatStorage", "HalfStorage", "LongStorage")
_NOT_HELD = "it holds a tensor that its storage does not hold"


class _Dtype:
    def __init__(self, name: Any, *flags: Any):
        if not (isinstance(name, str) and _PLAIN.fullmatch(name)):
            raise pickle.UnpicklingError("it holds an array of something other than numbers")
        self.name, self.order = name, "="

    def __setstate__(self, state: Any) -> None:
        _, order, *remaining = state
        if order not in _ORDERS or remaining != [None, None, None, -1, -1, 0]:
            raise pickle.UnpicklingError("it holds an array of something other than numbers")
        self.order = order

    def real(self) -> np.dtype[Any]:
        return np.dtype(self.name).newbyteorder(self.order)  # type: ignore[arg-type]


class _Array(np.ndarray[Any, Any]):
    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, content = state
        if not (isinstance(dtype, _Dtype) and type(content) is bytes and all(type(size) is int and size >= 0 for size in shape)):
            raise pickle.UnpicklingError("it holds an array that is not made of numbers")
        plain = np.frombuffer(content, dtype.real()).reshape(shape, order="F" if is_fortran else "C")
        super().__setstate__((1, plain.shape, plain.dtype, bool(is_fortran), content))  # type: ignore[arg-type]


class _ClassName:
    """A class that pickles refer to and do not call: numpy's array, or the torch storage with this `name`."""

    def __init__(self, name: str):
        self.name = name

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it changes a class")

    @property
    def _dtype(self) -> Any:
        """The dtype of the storage's elements, as in torch's class."""
        import torch

        return getattr(torch, self.name)._dtype


_NDARRAY = _ClassName("ndarray")


def _reconstruct(kind: Any, shape: Any, dtype: Any) -> _Array:
    """Return an empty array, as numpy's function with this name does. The array's state follows in the pickle."""
    if kind is not _NDARRAY:
        raise pickle.UnpicklingError("it holds an array of another class")
    return _Array((0,), np.int8)


def _rebuild_tensor_v2(storage: Any, offset: Any, size: Any, stride: Any, *more: Any) -> Any:
    """Return a tensor on `storage`, as torch's function with this name does, if the storage holds all its elements."""
    import torch

    if not isinstance(storage, torch.TypedStorage) or len(size) != len(stride):
        raise pickle.UnpicklingError(_NOT_HELD)
    if not all(type(number) is int and number >= 0 for number in (offset, *size, *stride)):
        raise pickle.UnpicklingError(_NOT_HELD)
    end = offset + 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    if 0 not in size and end * storage.dtype.itemsize > storage._untyped_storage.nbytes():
        raise pickle.UnpicklingError(_NOT_HELD)
    return torch._utils._rebuild_tensor_v2(storage, offset, size, stride, *more)  # type: ignore[no-untyped-call]


def _encode(text: Any, codec: Any) -> bytes:
    """Return the bytes that pickle's protocol 2 writes as text. Another codec is refused: it could double the bytes each time."""
    if not isinstance(text, str) or codec != "latin1":
        raise pickle.UnpicklingError("it encodes something other than bytes")
    return text.encode("latin1")


STAND_INS = {
    "_codecs.encode": _encode,
    "numpy.dtype": _Dtype,
    "numpy.ndarray": _NDARRAY,
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray._reconstruct": _reconstruct,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor_v2,
    **{f"torch.{name}": _ClassName(name) for name in _STORAGES},
}
