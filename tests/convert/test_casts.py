"""Casts against torch: every value of the 16-bit dtypes, and any float32."""

import itertools

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lt_convert.casts import DTYPES, cast
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
    found = torch.from_numpy(cast(bits[fits], dtype, to, "t").astype(BITS[to][1]).view(BITS[to][1])).view(BITS[to][0])
    found = found.view(getattr(torch, to)).float()
    wanted = expected[torch.from_numpy(fits)]
    assert torch.equal(found.isnan(), wanted.isnan())
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
