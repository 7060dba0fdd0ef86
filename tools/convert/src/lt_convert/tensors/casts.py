"""Casts between floating-point dtypes on raw bits, to nearest and ties to even, as IEEE 754 has them.

Every number is what torch makes of it, but for float64: torch rounds it to float32 first and then again, which can miss the
nearest 16-bit number; here it is rounded once. A NaN stays a NaN of its sign; its other bits are not torch's, which change with
the processor (AVX-512 makes 0xFFFF of each, plain code 0x7FC0).
"""

from typing import Any

import numpy
from numpy.typing import NDArray

from lt_convert.tensors.tensor import CASTABLE
from lt_shared.console import BadData

Bits = NDArray[Any]

DTYPES = ("float32", "bfloat16", "float16")


def cast(bits: Bits, dtype: str, to: str, name: str) -> Bits:
    """`bits` of `dtype` as bits of `to`. Raises BadData, naming the tensor, when a finite value becomes infinite."""
    if dtype not in CASTABLE or to not in DTYPES:
        raise BadData(f"{name}: is stored as {dtype}, which is not cast to {to}", f"casts are to {', '.join(DTYPES)}")
    wide = bits.view(numpy.float64) if dtype == "float64" else _to_float32(bits, dtype)
    values = _from_float64(wide, to) if dtype == "float64" else wide
    result = _from_float32(values, to)
    if numpy.isinf(_to_float32(result, to)).sum() != numpy.isinf(wide).sum():
        raise BadData(f"{name}: has values too large for {to}", "choose bfloat16 or float32")
    return result


def _from_float64(values: Bits, to: str) -> Bits:
    """float32, or what rounds to the same 16 bits as `values`: an inexact one gets a last bit of 1, so that it is on no tie."""
    with numpy.errstate(over="ignore", invalid="ignore"):
        nearest: Bits = values.astype(numpy.float32)
    if to == "float32":
        return nearest
    bits = nearest.view(numpy.uint32)
    wide = nearest.astype(numpy.float64)
    even = (bits & 1) == 0
    outwards = even & (numpy.abs(wide) < numpy.abs(values))
    inwards = even & (numpy.abs(wide) > numpy.abs(values))
    odd: Bits = bits + outwards.astype(numpy.uint32) - inwards.astype(numpy.uint32)
    result: Bits = odd.view(numpy.float32)
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
