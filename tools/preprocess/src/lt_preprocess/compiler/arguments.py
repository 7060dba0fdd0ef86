"""Flatten the arguments of compiled functions into words of 64 bits, and name the arguments' kinds.

The kinds identify the machine code, as types do in C++: a function is compiled once per combination of kinds. An argument takes 1
microsecond, which is little for a chunk of 1 MiB of text.
"""

from typing import Any, NamedTuple

import numpy as np


class Array(NamedTuple):
    """The words of an array are its address and its shape; it is contiguous, of the machine's byte order."""

    dtype: str
    dimensions: int


class Group(NamedTuple):
    """A named tuple is flattened into the words of its members."""

    type: type[tuple[Any, ...]]
    members: "tuple[Kind, ...]"


Kind = str | Array | Group
"""The name of a scalar's type, or the name of a type of several words."""


def flatten(value: Any, words: list[int]) -> Kind:
    """The kind of a value, whose words are appended. The caller keeps the value alive."""
    if isinstance(value, np.ndarray):
        if not (value.flags.c_contiguous and value.dtype.isnative):
            raise ValueError("an array that is not contiguous, or of another byte order")
        words.append(value.__array_interface__["data"][0])
        words.extend(value.shape)
        return Array(value.dtype.name, value.ndim)
    if isinstance(value, tuple):
        return Group(type(value), tuple([flatten(member, words) for member in value]))
    words.append(int(value))
    if isinstance(value, np.generic):
        return value.dtype.name
    return "bool" if isinstance(value, bool) else "int64"
