"""Casts between floating-point dtypes on raw bits, to nearest and ties to even, as IEEE 754 and torch have them."""

from typing import Any

import numpy
from numpy.typing import NDArray

from lt_shared.console import BadData

Bits = NDArray[Any]

DTYPES = ("float32", "bfloat16", "float16")


def cast(bits: Bits, dtype: str, to: str, name: str) -> Bits:
    """`bits` of `dtype` as bits of `to`. Raises BadData, naming the tensor, when a finite value becomes infinite."""
    if dtype not in DTYPES or to not in DTYPES:
        raise BadData(f"{name}: is stored as {dtype}, which is not cast to {to}", f"casts are between {', '.join(DTYPES)}")
    values = _to_float32(bits, dtype)
    result = _from_float32(values, to)
    if numpy.isinf(_to_float32(result, to)).sum() != numpy.isinf(values).sum():
        raise BadData(f"{name}: has values too large for {to}", "choose bfloat16 or float32")
    return result


def _to_float32(bits: Bits, dtype: str) -> Bits:
    if dtype == "bfloat16":
        return (bits.astype(numpy.uint32) << 16).view(numpy.float32)
    if dtype == "float16":
        return bits.view(numpy.float16).astype(numpy.float32)
    return bits.view(numpy.float32)


def _from_float32(values: Bits, to: str) -> Bits:
    if to == "float32":
        return values.view(numpy.uint32)
    if to == "float16":
        with numpy.errstate(over="ignore"):
            return values.astype(numpy.float16).view(numpy.uint16)
    bits = values.view(numpy.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # Rounding up could carry a NaN's bits into the sign; it stays a quiet one.
    return numpy.where(numpy.isnan(values), (bits >> 16) | 0x40, rounded).astype(numpy.uint16)
