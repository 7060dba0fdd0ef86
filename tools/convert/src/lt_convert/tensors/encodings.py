"""Values that are stored in fewer bits: a view's `Encoding` says how its bytes become float32 while a block is read.

Block fp8 has a scale per block of 128 x 128 values, MXFP4 one per 32; the scales are a separate tensor. The scale of a value is
found by arithmetic on indices, like the view itself: an encoded tensor can be sliced, transposed and stacked like any other, and
nothing is decoded before a block of output is written. Products are float32, as in DeepSeek's and in transformers' code, and are
rounded once, to the requested dtype.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy
from numpy.typing import NDArray

from lt_shared.console import BadData

Read = Callable[[str, int, int], bytes]
"""(path, offset, length) to bytes."""

FP8, FP4_LOW, FP4_HIGH = "float8_e4m3fn", "float4_e2m1 low", "float4_e2m1 high"
E8M0 = "float8_e8m0fnu"
E8M0_NAN = 255
# Bytes of an item in the files: a byte has two values of fp4, the one at the even index in its low half.
ITEM_BYTES = {FP8: 1, FP4_LOW: 1, FP4_HIGH: 1, "float32": 4, "bfloat16": 2, "float16": 2}
SCALE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, E8M0: 1}
FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclasses.dataclass(frozen=True, slots=True)
class ScaleAxis:
    """Along one axis of a view, value k has the scale at (first + k * step) // block, `stride_bytes` apart in the file."""

    first: int
    step: int
    block: int
    stride_bytes: int

    def sliced(self, first: int, step: int) -> Self:
        return dataclasses.replace(self, first=self.first + first * self.step, step=self.step * step)

    def of(self, count: int) -> NDArray[numpy.int64]:
        """The scale's index for each of `count` values."""
        return (self.first + numpy.arange(count) * self.step) // self.block


@dataclasses.dataclass(frozen=True, slots=True)
class Scales:
    """The location of the scale for each value in a view; `axes` are in the order of the view's axes."""

    file: str
    offset_bytes: int
    dtype: str
    axes: tuple[ScaleAxis, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Encoding:
    """The stored form of values: `dtype` is a key of `ITEM_BYTES`; without `scales` the stored numbers are the values."""

    dtype: str
    scales: Scales | None = None

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    def sliced(self, axis: int, first: int, step: int) -> Self:
        return self._with(
            lambda axes: [scale_axis.sliced(first, step) if at == axis else scale_axis for at, scale_axis in enumerate(axes)]
        )

    def permuted(self, order: Sequence[int]) -> Self:
        return self._with(lambda axes: [axes[axis] for axis in order])

    def expanded(self, count: int) -> Self:
        """With `count` axes of size 1 before the others."""
        return self._with(lambda axes: [*[ScaleAxis(0, 1, 1, 0)] * count, *axes])

    def squeezed(self, count: int) -> Self:
        """Without the first `count` axes, which have size 1: their part of a scale's offset is fixed."""
        if self.scales is None:
            return self
        fixed = sum(int(axis.of(1)[0]) * axis.stride_bytes for axis in self.scales.axes[:count])
        remaining = self._with(lambda axes: axes[count:])
        assert remaining.scales is not None
        return dataclasses.replace(
            remaining, scales=dataclasses.replace(remaining.scales, offset_bytes=remaining.scales.offset_bytes + fixed)
        )

    def scales_read(self, shape: Sequence[int]) -> tuple[str, int, int] | None:
        """(path, first byte, byte after the last) of the scales of a view of this shape; None without scales."""
        if self.scales is None:
            return None
        scales = self.scales
        axes = [(axis, axis.of(size)) for axis, size in zip(scales.axes, shape, strict=True)]
        first, last = (sum(int(index[at]) * axis.stride_bytes for axis, index in axes) for at in (0, -1))
        return scales.file, scales.offset_bytes + first, scales.offset_bytes + last + SCALE_BYTES[scales.dtype]

    def _with(self, change: Callable[[tuple[ScaleAxis, ...]], Sequence[ScaleAxis]]) -> Self:
        if self.scales is None:
            return self
        scales = self.scales
        return type(self)(self.dtype, Scales(scales.file, scales.offset_bytes, scales.dtype, _shared(tuple(change(scales.axes)))))

    def decoded(self, items: NDArray[Any], read: Read, name: str) -> NDArray[numpy.float32]:
        """The float32 values of `items`, the view's items as unsigned integers. Raises BadData, naming the tensor `name`."""
        values = _values(items, self.dtype)
        if self.scales is None or not items.size:
            return values
        scales = self.scales
        indices = [axis.of(size) for axis, size in zip(scales.axes, items.shape, strict=True)]
        factors = _scales(scales, indices, read, name)
        for axis, index in enumerate(indices):
            if factors.shape[axis] > 1:
                factors = factors.take(index - index[0], axis)
        with numpy.errstate(over="ignore", invalid="ignore", under="ignore"):
            product: NDArray[numpy.float32] = numpy.multiply(values, factors, out=values)
        if numpy.isinf(product).any():
            raise BadData(f"{name}: a value times its scale is too large for float32", f"{scales.file} is damaged")
        return product


def _scales(scales: Scales, indices: Sequence[NDArray[numpy.int64]], read: Read, name: str) -> NDArray[numpy.float32]:
    """The scales from the first to the last index of every axis, read at once."""
    item_bytes = SCALE_BYTES[scales.dtype]
    strides = [axis.stride_bytes for axis in scales.axes]
    shape = [int(index[-1] - index[0]) + 1 for index in indices]
    begin = scales.offset_bytes + sum(int(index[0]) * stride for index, stride in zip(indices, strides, strict=True))
    length = item_bytes + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    data = read(scales.file, begin, length)
    kind = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32}[item_bytes]
    bits: NDArray[Any] = numpy.ndarray(shape, kind, data, 0, strides)
    if scales.dtype == E8M0 and (bits == E8M0_NAN).any():
        raise BadData(f"{name}: has a scale that is not a number", f"{scales.file} is damaged")
    factors = _values(bits, scales.dtype)
    # A block of zeros may have a scale of zero.
    if not (numpy.isfinite(factors) & (factors >= 0)).all():
        raise BadData(f"{name}: has a scale that is negative, or no finite number", f"{scales.file} is damaged")
    return factors


def _values(items: NDArray[Any], dtype: str) -> NDArray[numpy.float32]:
    """A new float32 array."""
    if dtype == "bfloat16":
        return (items.astype(numpy.uint32) << 16).view(numpy.float32)
    if dtype == "float16":
        return numpy.ascontiguousarray(items).view(numpy.float16).astype(numpy.float32)
    if dtype == "float32":
        return numpy.array(items, order="C").view(numpy.float32)
    result: NDArray[numpy.float32] = table(dtype).take(items)
    return result


@functools.lru_cache(maxsize=4096)
def _shared(axes: tuple[ScaleAxis, ...]) -> tuple[ScaleAxis, ...]:
    """`axes`, or the equal ones that were given before: the weights of a model have few shapes."""
    return axes


@functools.cache
def table(dtype: str) -> NDArray[numpy.float32]:
    """Return the float32 values of the 256 bytes in a dtype."""
    codes = numpy.arange(256)
    if dtype == E8M0:
        with numpy.errstate(over="ignore"):
            return numpy.ldexp(numpy.float32(1), codes - 127).astype(numpy.float32)
    if dtype in (FP4_LOW, FP4_HIGH):
        nibbles = codes & 15 if dtype == FP4_LOW else codes >> 4
        signs = numpy.where(nibbles & 8, numpy.float32(-1), numpy.float32(1))
        values: NDArray[numpy.float32] = signs * numpy.array(FP4_MAGNITUDES, numpy.float32)[nibbles & 7]
        return values
    exponents, mantissas = codes >> 3 & 15, codes & 7
    normal = numpy.ldexp((8 + mantissas).astype(numpy.float32), exponents - 10)
    subnormal = numpy.ldexp(mantissas.astype(numpy.float32), -9)
    magnitudes = numpy.where(exponents > 0, normal, subnormal).astype(numpy.float32)
    magnitudes[codes & 127 == 127] = numpy.nan
    return numpy.copysign(magnitudes, numpy.where(codes & 128, numpy.float32(-1), numpy.float32(1)))
