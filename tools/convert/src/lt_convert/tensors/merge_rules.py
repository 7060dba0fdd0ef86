"""The arithmetic of merge methods: aligned values of several models in, merged values out.

Each result equals mergekit 0.1.5's on a CPU bit for bit where mergekit's arithmetic is defined: every operation is computed in
float32 and rounded to the dtype of the models, as torch does it, and sums run over the models in order. Sums over a whole tensor
(norms, products) have no defined order in torch; here they are float64 sums.

Values are float32 arrays of shape [count], exact values of the `dtype` they are rounded to. A rule sees a tensor as windows, so
a tensor needs the memory of a single window. `statistics` hold the numbers that need a first pass over the tensor.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy
from numpy.typing import NDArray

from lt_convert.tensors.sparsity import Sparsity

Values = NDArray[numpy.float32]
Windows = Callable[[Sequence[int]], Iterator[tuple[int, list[Values]]]]
"""Starts a pass over a tensor of the models with these numbers: (index of the first value, values of each model)."""

# mergekit interpolates linearly where the angle between two tensors is smaller, and takes smaller norms for zero.
SLERP_LARGEST_DOT, SLERP_SMALLEST_NORM = 0.9995, 1e-8
SMALLEST_DIVISOR = 1e-8


class Rule(Protocol):
    """Merges the values of a tensor. `statistics` of the whole tensor are computed once and passed to each `merged`."""

    def statistics(self, windows: Windows, dtype: str) -> Any: ...

    def merged(self, values: list[Values], first: int, statistics: Any, dtype: str) -> Values: ...


def rounded(values: Values, dtype: str) -> Values:
    """Round float32 values to `dtype`, to nearest and ties to even, in place where possible."""
    if dtype == "float32":
        return values
    if dtype == "float16":
        with numpy.errstate(over="ignore"):
            return values.astype(numpy.float16).astype(numpy.float32)
    # Values of bfloat16 have no NaN whose payload lies in the lower half alone, so none can become infinite here.
    bits = values.view(numpy.uint32)
    odd = bits >> 16
    odd &= 1
    odd += 0x7FFF
    odd += bits
    odd &= 0xFFFF0000
    return odd.view(numpy.float32)


def _rounded_number(number: float, dtype: str) -> numpy.float32:
    result: numpy.float32 = rounded(numpy.array([number], numpy.float32), dtype)[0]
    return result


@dataclasses.dataclass(frozen=True)
class Linear:
    """The weighted sum, in float32; with `normalize` divided by the sum of the weights."""

    weights: tuple[float, ...]
    normalize: bool = True

    def statistics(self, windows: Windows, dtype: str) -> None:
        return None

    def merged(self, values: list[Values], first: int, statistics: None, dtype: str) -> Values:
        weights = numpy.array(self.weights, numpy.float32)
        total = numpy.zeros_like(values[0])
        for weight, one in zip(weights, values, strict=True):
            # torch's addcmul multiplies and adds with one rounding; a product of two float32 is exact in float64.
            total = (one.astype(numpy.float64) * weight + total).astype(numpy.float32)
        if self.normalize:
            total /= weights.sum(dtype=numpy.float32)
        return rounded(total, dtype)


@dataclasses.dataclass(frozen=True)
class Slerp:
    """Spherical interpolation from the first to the second of two tensors."""

    t: float

    def statistics(self, windows: Windows, dtype: str) -> tuple[numpy.float32, numpy.float32]:
        """Return the two tensors' coefficients."""
        squares, other_squares, product = 0.0, 0.0, 0.0
        for _, (one, other) in windows((0, 1)):
            wide, other_wide = one.astype(numpy.float64), other.astype(numpy.float64)
            # Not by BLAS: its threads wait for work in a loop, which took ten times the processor time.
            squares += float(numpy.einsum("i,i->", wide, wide))
            other_squares += float(numpy.einsum("i,i->", other_wide, other_wide))
            product += float(numpy.einsum("i,i->", wide, other_wide))
        norms = [norm if norm > SLERP_SMALLEST_NORM else 1.0 for norm in (math.sqrt(squares), math.sqrt(other_squares))]
        dot = min(1.0, max(-1.0, product / norms[0] / norms[1]))
        t = float(numpy.float32(self.t))
        if not abs(dot) <= SLERP_LARGEST_DOT:
            return numpy.float32(1 - t), numpy.float32(t)
        angle = math.acos(dot)
        sine = math.sin(angle)
        return numpy.float32(math.sin((1 - t) * angle) / sine), numpy.float32(math.sin(t * angle) / sine)

    def merged(self, values: list[Values], first: int, statistics: tuple[numpy.float32, numpy.float32], dtype: str) -> Values:
        one, other = values
        total = one * statistics[0]
        total += other * statistics[1]
        return rounded(total, dtype)


@dataclasses.dataclass(frozen=True)
class TaskArithmetic:
    """The first tensor plus the weighted differences of the tuned from the first.

    `sparsities` drop values from the differences; None drops nothing. With `elects_sign`, each value takes only the differences
    that have the sign of their weighted sum. With `normalize`, the sum is divided by the weights that took part.
    """

    weights: tuple[float, ...]
    scale: float = 1.0
    normalize: bool = False
    elects_sign: bool = False
    sparsities: tuple[Sparsity | None, ...] = ()

    def statistics(self, windows: Windows, dtype: str) -> list[Any]:
        def differences(index: int) -> Iterator[tuple[int, Values]]:
            for first, (base, tuned) in windows((0, index + 1)):
                yield first, rounded(tuned - base, dtype)

        return [
            sparsity and sparsity.statistics(functools.partial(differences, index), dtype)
            for index, sparsity in enumerate(self.sparsities)
        ]

    def merged(self, values: list[Values], first: int, statistics: list[Any], dtype: str) -> Values:
        base, *tuned = values
        weights = [_rounded_number(weight, dtype) for weight in self.weights]
        weighted = []
        for index, (weight, other) in enumerate(zip(weights, tuned, strict=True)):
            difference = rounded(other - base, dtype)
            sparsity = self.sparsities[index] if self.sparsities else None
            if sparsity:
                difference = rounded(sparsity.applied(difference, first, statistics[index], dtype), dtype)
            if weight != 1:
                difference *= weight
                difference = rounded(difference, dtype)
            weighted.append(difference)
        mixed, divisor = self._mixed(weighted, weights, dtype)
        if self.normalize:
            mixed /= divisor
            mixed = rounded(mixed, dtype)
        if self.scale != 1:
            mixed *= numpy.float32(self.scale)
            mixed = rounded(mixed, dtype)
        mixed += base
        return rounded(mixed, dtype)

    def _mixed(
        self, weighted: Sequence[Values], weights: Sequence[numpy.float32], dtype: str
    ) -> tuple[Values, Values | numpy.float32]:
        """The sum of the weighted differences that count, and the sum of their weights."""
        total = _sum(weighted, dtype)
        if not self.elects_sign:
            divisor = _rounded_number(float(numpy.cumsum(numpy.array(weights, numpy.float32))[-1]), dtype)
            return total, divisor if abs(divisor) >= SMALLEST_DIVISOR else numpy.float32(1)
        is_positive = total >= 0
        counted, divisors = [], []
        for weight, difference in zip(weights, weighted, strict=True):
            # A difference of zero has no sign, and a NaN neither. numpy.where takes ten times as long.
            agrees = ((difference > 0) & is_positive) | ((difference < 0) & ~is_positive)
            counted.append(difference * agrees)
            if self.normalize:
                divisors.append(agrees * weight)
        if not self.normalize:
            return _sum(counted, dtype), numpy.float32(1)
        sums = _sum(divisors, dtype)
        # Zeros become ones. An assignment by mask takes 13 ns for a value, this sum 0.2.
        sums += sums == 0
        return _sum(counted, dtype), sums


def _sum(terms: Sequence[Values], dtype: str) -> Values:
    total = terms[0].copy()
    for term in terms[1:]:
        total += term
    # A new array, which the caller may change.
    return rounded(total, dtype)
