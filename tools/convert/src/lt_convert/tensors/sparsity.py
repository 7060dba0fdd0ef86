"""Drop a part of a difference between two models: the smallest values, or random ones.

Both rules are computed window by window. Which values are the largest is found in histograms of their bits, in two passes for
float32 and one for 16 bits; of values that are equal, those with the lower index are kept, as in a stable sort.

Random masks are the numbers of a counter-based generator (Philox 4x64, ten rounds). Its key is made of the seed, the tensor's
name in Hugging Face files, and the number of the model. Value i, in row-major order, has the i-th 32-bit number. So a mask does
not depend on threads, blocks, the format, or a resume.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy
from numpy.typing import NDArray

from lt_convert.tensors.casts import cast, to_float32

Values = NDArray[numpy.float32]
Passes = Callable[[], Iterator[tuple[int, Values]]]
"""Starts a pass over the differences of a tensor: (index of the first value, values)."""

# mergekit does not rescale where a sum of magnitudes is smaller.
SMALLEST_SUM = 1e-7
# The first number that is rounded to infinity.
LARGEST = {"float16": 65520.0, "bfloat16": 3.3961775292304957e38}
# Random masks of so many values of a tensor wait for their use, in 16 MiB: random numbers take more time than all else.
REMEMBERED = 1 << 27
# The generator makes this many 32-bit numbers for each count.
NUMBERS_OF_A_COUNT = 8


@dataclasses.dataclass(frozen=True)
class Mask:
    """Values above `threshold` are kept, those equal to it up to the index `last`; the result is multiplied by `scale`.

    `random` has random masks by the index of their first value, in bits. Each is there until it is used.
    """

    threshold: int = 0
    last: int = -1
    scale: float = 1.0
    random: dict[int, NDArray[numpy.uint8]] = dataclasses.field(default_factory=dict)


class Sparsity(Protocol):
    def statistics(self, passes: Passes, dtype: str) -> Mask: ...

    def applied(self, values: Values, first: int, mask: Mask, dtype: str) -> Values:
        """The values with zeros for those that are dropped; the caller rounds them to `dtype`."""


@dataclasses.dataclass(frozen=True)
class Magnitude:
    """Keep the share `density` of values with the largest magnitudes, at least one.

    With `rescale`, the sum of their magnitudes is scaled to the sum over all values.
    """

    density: float
    size: int
    rescale: bool = False

    @property
    def kept_count(self) -> int:
        return max(1, int(self.density * self.size)) if self.density > 0 and self.size else 0

    def statistics(self, passes: Passes, dtype: str) -> Mask:
        if self.density >= 1 or self.kept_count == 0:
            return Mask()
        threshold, equal_kept, equal_count, kept_sum, total = self._threshold(passes, dtype)
        last = self.size
        if equal_kept < equal_count:
            last = _index_of(passes, threshold, equal_kept)
        return Mask(threshold, last, _scale(total, kept_sum, dtype) if self.rescale else 1.0)

    def _threshold(self, passes: Passes, dtype: str) -> tuple[int, int, int, float, float]:
        """(bits of the smallest magnitude that is kept, how many equal values are kept, how many there are, two sums).

        The sums are over the magnitudes that are kept, and over all magnitudes.
        """
        counts = numpy.zeros(1 << 15, numpy.int64)
        total = 0.0
        for _, values in passes():
            counts += numpy.bincount((values.view(numpy.uint32) & 0x7FFFFFFF) >> 16, minlength=1 << 15)
            if self.rescale:
                total += float(numpy.abs(values).sum(dtype=numpy.float64))
        upper, above = _bin_of_rank(counts, self.kept_count)
        # Every value of bfloat16 has a bin of its own.
        low_counts = numpy.zeros(1 << 16, numpy.int64)
        kept_sum = 0.0
        if dtype == "bfloat16":
            low_counts[0] = counts[upper]
            if self.rescale:
                occupied = numpy.flatnonzero(counts[upper + 1 :]) + upper + 1
                bins = (occupied.astype(numpy.uint32) << 16).view(numpy.float32)
                kept_sum = float(counts[occupied] @ bins.astype(numpy.float64))
        else:
            for _, values in passes():
                magnitudes = values.view(numpy.uint32) & 0x7FFFFFFF
                uppers = magnitudes >> 16
                low_counts += numpy.bincount(magnitudes[uppers == upper] & 0xFFFF, minlength=1 << 16)
                if self.rescale:
                    kept_sum += float(numpy.abs(values[uppers > upper]).sum(dtype=numpy.float64))
        lower, above_lower = _bin_of_rank(low_counts, self.kept_count - above)
        equal_kept = self.kept_count - above - above_lower
        if self.rescale:
            sizes = (numpy.arange(lower, 1 << 16, dtype=numpy.uint32) + (upper << 16)).view(numpy.float32)
            shares = low_counts[lower:].copy()
            shares[0] = equal_kept
            occupied = numpy.flatnonzero(shares)
            kept_sum += float(shares[occupied] @ sizes[occupied].astype(numpy.float64))
        return (upper << 16) + lower, equal_kept, int(low_counts[lower]), kept_sum, total

    def applied(self, values: Values, first: int, mask: Mask, dtype: str) -> Values:
        if self.density >= 1:
            return values
        if self.kept_count == 0:
            return numpy.zeros_like(values)
        magnitudes = values.view(numpy.uint32) & 0x7FFFFFFF
        if mask.last >= first + len(values):
            is_kept = magnitudes >= mask.threshold
        elif mask.last < first:
            is_kept = magnitudes > mask.threshold
        else:
            until = mask.last - first + 1
            is_kept = magnitudes > mask.threshold
            is_kept[:until] |= magnitudes[:until] == mask.threshold
        return _masked(values, is_kept, mask.scale, dtype)


@dataclasses.dataclass(frozen=True)
class Random:
    """Keep each value with the probability `density`, by the random numbers of `key`.

    With `rescale`, the sum of the magnitudes that are kept is scaled to the sum over all values.
    """

    density: float
    key: str
    rescale: bool = True

    def statistics(self, passes: Passes, dtype: str) -> Mask:
        if self.density >= 1 or not self.rescale:
            return Mask()
        total, kept_sum = 0.0, 0.0
        masks: dict[int, NDArray[numpy.uint8]] = {}
        for first, values in passes():
            is_kept = self.is_kept(first, len(values))
            if first + len(values) <= REMEMBERED:
                masks[first] = numpy.packbits(is_kept)
            magnitudes = numpy.abs(values).astype(numpy.float64)
            total += float(magnitudes.sum())
            magnitudes *= is_kept
            kept_sum += float(magnitudes.sum())
        # mergekit computes random masks of float16 in float32.
        return Mask(scale=_scale(total, kept_sum, "float32" if dtype == "float16" else dtype), random=masks)

    def is_kept(self, first: int, count: int) -> NDArray[numpy.bool_]:
        """Whether each of `count` values from the index `first` is kept."""
        begin = first // NUMBERS_OF_A_COUNT
        end = -(-(first + count) // NUMBERS_OF_A_COUNT)
        key = numpy.frombuffer(hashlib.sha256(self.key.encode()).digest()[:16], "<u8")
        words = numpy.random.Philox(key=key, counter=begin).random_raw((end - begin) * NUMBERS_OF_A_COUNT // 2)
        numbers = words.astype("<u8", copy=False).view("<u4")[first - begin * NUMBERS_OF_A_COUNT :][:count]
        is_kept: NDArray[numpy.bool_] = numbers < min(int(self.density * (1 << 32)), (1 << 32) - 1)
        return is_kept

    def applied(self, values: Values, first: int, mask: Mask, dtype: str) -> Values:
        if self.density >= 1:
            return values
        bits = mask.random.pop(first, None)
        if bits is None or len(bits) != -(-len(values) // 8):
            return _masked(values, self.is_kept(first, len(values)), mask.scale, dtype)
        return _masked(values, numpy.unpackbits(bits, count=len(values)).view(bool), mask.scale, dtype)


def _masked(values: Values, is_kept: NDArray[numpy.bool_], scale: float, dtype: str) -> Values:
    masked: Values = values * is_kept
    if scale != 1:
        masked *= numpy.float32(scale)
    return masked


def _scale(total: float, kept_sum: float, dtype: str) -> float:
    """The quotient of two sums; both sums and the quotient are rounded to `dtype`, as in torch.

    Sums beyond float16's range are not rounded: mergekit's quotient is then no number.
    """
    sums = [_rounded(total, dtype), _rounded(kept_sum, dtype)]
    if not all(map(math.isfinite, sums)):
        sums, dtype = [total, kept_sum], "float32"
    if not sums[0] >= SMALLEST_SUM or not sums[1] >= SMALLEST_SUM:
        return 1.0
    return _rounded(float(numpy.float32(sums[0]) / numpy.float32(sums[1])), dtype)


def _rounded(number: float, dtype: str) -> float:
    if dtype == "float32":
        return float(numpy.float32(number))
    with numpy.errstate(over="ignore"):
        bits = numpy.array([number]).view(numpy.uint64)
        return float(to_float32(cast(bits, "float64", dtype, "a sum"), dtype)[0]) if abs(number) < LARGEST[dtype] else math.inf


def _bin_of_rank(counts: NDArray[numpy.int64], rank: int) -> tuple[int, int]:
    """The bin with the `rank`-th largest value, counted from 1, and the number of values in the bins above it."""
    from_top = numpy.cumsum(counts[::-1])
    position = int(numpy.searchsorted(from_top, rank))
    above = int(from_top[position - 1]) if position else 0
    return len(counts) - 1 - position, above


def _index_of(passes: Passes, magnitude: int, count: int) -> int:
    """The index of the `count`-th value with the bits `magnitude`, -1 for none."""
    if count == 0:
        return -1
    for first, values in passes():
        equal = numpy.flatnonzero((values.view(numpy.uint32) & 0x7FFFFFFF) == magnitude)
        if len(equal) >= count:
            return first + int(equal[count - 1])
        count -= len(equal)
    raise AssertionError("a value that was counted is gone")
