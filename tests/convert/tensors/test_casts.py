"""Casts against torch: every value of the 16-bit dtypes, and any float32. Those from float64 against fractions."""

import itertools
import math
from fractions import Fraction

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lt_convert.tensors.casts import DTYPES, cast
from lt_shared.console import BadData

BITS = {"float32": (torch.int32, numpy.uint32), "bfloat16": (torch.int16, numpy.uint16), "float16": (torch.int16, numpy.uint16)}


def by_torch(bits: numpy.ndarray, dtype: str, to: str) -> torch.Tensor:
    """The cast values as float32: infinities where a value is too large."""
    signed = torch.from_numpy(bits.view(numpy.int32 if bits.itemsize == 4 else numpy.int16).copy())
    return signed.view(getattr(torch, dtype)).to(getattr(torch, to)).float()


def check(bits: numpy.ndarray, dtype: str, to: str) -> None:
    expected = by_torch(bits, dtype, to)
    infinite = by_torch(bits, dtype, "float32").isinf()
    fits = (expected.isinf() == infinite).numpy()
    result = cast(bits[fits], dtype, to, "t").astype(BITS[to][1])
    found = torch.from_numpy(result).view(BITS[to][0])
    found = found.view(getattr(torch, to)).float()
    wanted = expected[torch.from_numpy(fits)]
    assert torch.equal(found.isnan(), wanted.isnan())
    assert ((result >> (8 * result.itemsize - 1)) == (bits[fits] >> (8 * bits.itemsize - 1))).all()
    assert torch.equal(found[~found.isnan()].view(torch.int32), wanted[~wanted.isnan()].view(torch.int32))
    if not fits.all():
        with pytest.raises(BadData, match=f"t: has values too large for {to}"):
            cast(bits, dtype, to, "t")


@pytest.mark.parametrize(("dtype", "to"), list(itertools.product(("bfloat16", "float16"), DTYPES)))
def test_every_value_of_16_bits(dtype: str, to: str) -> None:
    check(numpy.arange(1 << 16, dtype=numpy.uint16), dtype, to)


@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=40), st.sampled_from(DTYPES))
def test_any_float32(values: list[int], to: str) -> None:
    check(numpy.array(values, numpy.uint32), "float32", to)


@pytest.mark.parametrize("to", DTYPES)
def test_float32_around_the_ties(to: str) -> None:
    high = numpy.arange(0, 1 << 16, 7, dtype=numpy.uint32)[:, None] << 16
    low = numpy.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], numpy.uint32)
    check((high | low).reshape(-1), "float32", to)


def test_other_dtypes_are_not_cast() -> None:
    with pytest.raises(BadData, match="t: is stored as int64, which is not cast to float32"):
        cast(numpy.zeros(1, numpy.uint64), "int64", "float32", "t")


def from_float64(values: list[float], to: str) -> numpy.ndarray:
    """The cast values as float64."""
    found = cast(numpy.array(values, numpy.float64).view(numpy.uint64), "float64", to, "t").astype(BITS[to][1])
    return torch.from_numpy(found.view(BITS[to][1])).view(BITS[to][0]).view(getattr(torch, to)).double().numpy()


DIGITS = {"float32": (24, -149, 128), "bfloat16": (8, -133, 128), "float16": (11, -24, 16)}


def nearest(value: float, to: str) -> float:
    """To nearest and ties to even, in exact arithmetic; infinite where it is too large."""
    digits, smallest, largest = DIGITS[to]
    step = Fraction(2) ** max(math.frexp(value)[1] - digits, smallest)
    rounded = round(Fraction(value) / step) * step
    return math.copysign(math.inf if abs(rounded) >= 2**largest else float(rounded), value)


NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.floats(-70000, 70000) | st.floats(-1e-4, 1e-4)


@given(NUMBERS, st.sampled_from(DTYPES))
def test_any_float64(value: float, to: str) -> None:
    wanted = nearest(value, to)
    if math.isinf(wanted):
        with pytest.raises(BadData, match=f"t: has values too large for {to}"):
            from_float64([value], to)
    else:
        assert from_float64([value], to)[0] == wanted
        assert numpy.signbit(from_float64([value], to)[0]) == numpy.signbit(value)


@given(st.integers(0, (1 << 15) - 1), st.integers(-3, 3), st.sampled_from(("bfloat16", "float16")))
def test_float64_around_the_ties(low: int, ulps: int, to: str) -> None:
    """A first rounding to float32 would put these on the tie."""
    pair = numpy.array([low, low + 1], numpy.uint16)
    one, other = by_torch(pair, to, "float32").double().tolist()
    if math.isfinite(one) and math.isfinite(other):
        value = (one + other) / 2
        for _ in range(abs(ulps)):
            value = math.nextafter(value, math.copysign(math.inf, ulps))
        assert from_float64([value, -value], to).tolist() == [nearest(value, to), -nearest(value, to)]


def test_float64_keeps_what_is_no_number() -> None:
    for to in DTYPES:
        found = from_float64([math.inf, -math.inf, math.nan, 0.0], to)
        assert found[:2].tolist() == [math.inf, -math.inf]
        assert numpy.isnan(found[2])
