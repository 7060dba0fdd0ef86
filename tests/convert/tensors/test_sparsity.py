"""Which values a sparsity keeps, over windows of any size."""

import hashlib
from collections.abc import Iterator

import numpy
import pytest
from numpy.typing import NDArray

from lt_convert.tensors import sparsity as sparsity_module
from lt_convert.tensors.sparsity import Magnitude, Mask, Random

Values = NDArray[numpy.float32]


def kept(sparsity: Magnitude | Random, values: Values, window: int, dtype: str = "float32") -> Values:
    def passes() -> Iterator[tuple[int, Values]]:
        for first in range(0, len(values), window):
            yield first, values[first : first + window]

    mask = sparsity.statistics(passes, dtype)
    return numpy.concatenate([sparsity.applied(part, first, mask, dtype) for first, part in passes()])


@pytest.mark.parametrize("window", [1, 3, 100])
def test_of_equal_magnitudes_the_first_are_kept(window: int) -> None:
    values = numpy.array([1, -2, 2, 0.5, -2, 2, 3], numpy.float32)
    for count, expected in {
        1: [0, 0, 0, 0, 0, 0, 3],
        3: [0, -2, 2, 0, 0, 0, 3],
        4: [0, -2, 2, 0, -2, 0, 3],
        5: [0, -2, 2, 0, -2, 2, 3],
        6: [1, -2, 2, 0, -2, 2, 3],
    }.items():
        result = kept(Magnitude((count + 0.5) / 7, 7), values, window)
        assert result.tolist() == expected, count


def test_bounds_of_the_density() -> None:
    values = numpy.array([1, -2, 3], numpy.float32)
    assert kept(Magnitude(1.0, 3), values, 2).tolist() == [1, -2, 3]
    assert kept(Magnitude(0.0, 3), values, 2).tolist() == [0, 0, 0]
    assert kept(Magnitude(1e-6, 3), values, 2).tolist() == [0, 0, 3], "at least one"
    assert kept(Random(0.0, "k"), values, 2).tolist() == [0, 0, 0]
    assert kept(Random(1.0, "k"), values, 2).tolist() == [1, -2, 3]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rescaled_values_have_the_sum_of_all(dtype: str) -> None:
    values = numpy.array([1, -2, 4, 0.5, 8, -16, 0.25, 32], numpy.float32)
    result = kept(Magnitude(0.5, 8, rescale=True), values, 3, dtype)
    assert numpy.count_nonzero(result) == 4
    assert numpy.abs(result).sum() == pytest.approx(numpy.abs(values).sum(), rel=2**-7 if dtype == "bfloat16" else 1e-6)


def test_random_numbers_do_not_depend_on_where_a_window_begins() -> None:
    sparsity = Random(0.5, "0/lm_head.weight/1")
    whole = sparsity.is_kept(0, 1000)
    assert 420 < numpy.count_nonzero(whole) < 580
    for first, count in ((0, 1), (7, 9), (8, 16), (501, 499)):
        assert numpy.array_equal(sparsity.is_kept(first, count), whole[first : first + count])
    assert not numpy.array_equal(Random(0.5, "0/lm_head.weight/2").is_kept(0, 1000), whole)


def test_random_masks_of_this_version_stay() -> None:
    """A merge with the same seed has the same result in later versions, and on other machines."""
    digest = hashlib.sha256(Random(0.3, "0/lm_head.weight/0").is_kept(0, 4096).tobytes()).hexdigest()
    assert digest[:16] == "ce78732617d9e795"
    assert Random(0.3, "k", rescale=False).statistics(lambda: iter(()), "float32") == Mask()


@pytest.mark.parametrize("remembered", [0, 40, 1 << 20])
def test_random_masks_do_not_depend_on_what_is_remembered(remembered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask of the first pass is used once; a window that is read again, or cut otherwise, gets the same mask."""
    sparsity = Random(0.4, "k")
    values = numpy.linspace(1, 2, 100, dtype=numpy.float32)
    windows = [(first, values[first : first + 24]) for first in range(0, 100, 24)]
    expected = [sparsity.applied(part, first, Mask(scale=2.0), "float32") for first, part in windows]
    monkeypatch.setattr(sparsity_module, "REMEMBERED", remembered)
    mask = sparsity.statistics(lambda: iter(windows), "float32")
    assert len(mask.random) == {0: 0, 40: 1}.get(remembered, 5)
    for _ in range(2):
        for (first, part), other in zip(windows, expected, strict=True):
            numpy.testing.assert_array_equal(sparsity.applied(part, first, mask, "float32") != 0, other != 0)
    assert not mask.random
    mask = sparsity.statistics(lambda: iter(windows), "float32")
    again = sparsity.applied(values, 0, mask, "float32")
    numpy.testing.assert_array_equal(again != 0, numpy.concatenate(expected) != 0)
