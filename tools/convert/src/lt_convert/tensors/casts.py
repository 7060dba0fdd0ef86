"""Casts between floating-point dtypes on raw bits, to nearest and ties to even, as IEEE 754 has them.

Results equal torch's, except from float64 to 16 bits: torch rounds to float32 first and then again, which can miss the nearest
16-bit number; here it is rounded once. A NaN stays a NaN of the same sign, but its payload may differ from torch's, which depends
on the processor (AVX-512 code makes every NaN 0xFFFF, scalar code 0x7FC0).
"""

from typing import Any

import numpy
from numpy.typing import NDArray

from lt_convert.tensors.tensor import CASTABLE
from lt_shared.console import BadData

Bits = NDArray[Any]

DTYPES = ("float32", "bfloat16", "float16")


def cast(bits: Bits, dtype: str, to: str, name: str) -> Bits:
    """Cast `bits`, the raw bits of `dtype` as unsigned integers of any shape, to the raw bits of `to`, in the same shape.

    Raises BadData, naming the tensor `name`, when a finite value becomes infinite or there is no such cast.
    """
    if dtype not in CASTABLE or to not in DTYPES:
        raise BadData(f"{name}: is stored as {dtype}, which is not cast to {to}", f"casts are to {', '.join(DTYPES)}")
    wide = bits.view(numpy.float64) if dtype == "float64" else _to_float32(bits, dtype)
    values = _from_float64(wide, to) if dtype == "float64" else wide
    result = _from_float32(values, to)
    if numpy.isinf(_to_float32(result, to)).sum() != numpy.isinf(wide).sum():
        raise BadData(f"{name}: has values too large for {to}", "choose bfloat16 or float32")
    return result


def _from_float64(values: Bits, to: str) -> Bits:
    """float32 values that round to the same 16 bits as `values`: round to odd, so that an inexact value is never a tie."""
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
    # Rounding up could carry a NaN's payload into the sign bit; a NaN becomes a quiet NaN instead.
    return numpy.where(numpy.isnan(values), (bits >> 16) | 0x40, rounded).astype(numpy.uint16)
