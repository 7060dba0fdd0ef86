"""numpy's arrays out of a pickle from outside, made by functions of our own.

numpy's `dtype.__setstate__` believes its state: a dtype that claims to hold Python objects makes an array whose bytes are taken
for pointers, which crashes the process at least. Here a dtype is the name of a plain number and a byte order, and an array takes
bytes.
"""

import pickle
import re
from typing import Any

import numpy as np

_PLAIN = re.compile(r"[<>|=]?[?biufc]\d*")
_ORDERS = ("<", ">", "|", "=")


class _Dtype:
    def __init__(self, name: Any, *flags: Any):
        if not (isinstance(name, str) and _PLAIN.fullmatch(name)):
            raise pickle.UnpicklingError("it holds an array of something other than numbers")
        self.name, self.order = name, "="

    def __setstate__(self, state: Any) -> None:
        _, order, *rest = state
        if order not in _ORDERS or rest != [None, None, None, -1, -1, 0]:
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


def _reconstruct(kind: Any, shape: Any, dtype: Any) -> _Array:
    """What numpy's function of this name makes: an empty array, whose state follows."""
    if kind is not _Array:
        raise pickle.UnpicklingError("it holds an array of another class")
    return _Array((0,), np.int8)


STAND_INS = {
    "numpy.dtype": _Dtype,
    "numpy.ndarray": _Array,
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray._reconstruct": _reconstruct,
}
