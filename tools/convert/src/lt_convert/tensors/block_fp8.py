"""Encode a weight in block fp8: its values in fp8, and a float32 scale for each block of 128 x 128.

The largest magnitude of a block becomes 448, the largest fp8. The arithmetic equals transformers', so its results are the same
bits: float32, times (1 / largest) x 448, rounded to nearest and ties to even; the stored scale is one over that factor. A file
has all values of a tensor before its scales, so a weight is read twice, the second time from the page cache. The error of a
value is at most a sixteenth of the value, or 1 / 458,752 of the largest value in its block if that is more.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy
from numpy.typing import NDArray

from lt_convert.tensors.blocks import TensorReader
from lt_convert.tensors.encodings import FP8
from lt_convert.tensors.tensor import ITEM_BYTES, Chunk, Tensor
from lt_shared.console import BadData

BLOCK = 128
LARGEST = numpy.float32(448)
# 448 divided by much less is infinite in float32, and transformers' code makes NaNs there.
_SMALLEST = numpy.float32(2.0**-100)
_SMALLEST_NORMAL = numpy.float32(2.0**-6)
# Values that are encoded at once.
_BLOCK_VALUES = 1 << 18


@dataclasses.dataclass(frozen=True, slots=True)
class BlockFp8:
    """The weight `source` in fp8, or, with `scales`, the scales of its blocks. Rows and columns are multiples of BLOCK.

    A `BlockFp8` has the attributes of a `Tensor` that a format needs.
    """

    source: Tensor
    scales: bool = False

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def dtype(self) -> str:
        return "float32" if self.scales else FP8

    @property
    def stored_dtype(self) -> str:
        return self.source.stored_dtype

    @property
    def shape(self) -> tuple[int, ...]:
        rows, columns = self.source.shape
        return (rows // BLOCK, columns // BLOCK) if self.scales else self.source.shape

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return self.source.chunks

    @property
    def size_bytes(self) -> int:
        rows, columns = self.shape
        return rows * columns * ITEM_BYTES[self.dtype]

    def contents(self, reader: TensorReader) -> Iterator[memoryview]:
        """Its bytes, some rows of blocks at a time. Raises BadData for a weight that has values without a finite magnitude."""
        rows, columns = self.source.shape
        step = BLOCK * max(1, _BLOCK_VALUES // (BLOCK * columns))
        values = self.source.cast("float32")
        for start in range(0, rows, step):
            block = reader.rows(values, start, min(start + step, rows)).view(numpy.float32)
            fp8, scales = encoded(block, self.name)
            yield (scales if self.scales else fp8).reshape(-1).data.cast("B")


def encoded(values: NDArray[numpy.float32], name: str) -> tuple[NDArray[numpy.uint8], NDArray[numpy.float32]]:
    """Encode float32 `values` [rows, columns]; return fp8 and the scale per block. Raises BadData, naming the tensor `name`."""
    rows, columns = values.shape
    blocks = values.reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    largest: NDArray[numpy.float32] = numpy.abs(blocks).max(axis=(1, 3), initial=0)
    if not numpy.isfinite(largest).all():
        raise BadData(f"{name}: has values that are not finite, which no fp8 stands for", "convert without --quantize")
    one = numpy.float32(1)
    factors: NDArray[numpy.float32] = numpy.where(largest > 0, one / numpy.maximum(largest, _SMALLEST) * LARGEST, one)
    scaled = numpy.clip(blocks * factors[:, None, :, None], -LARGEST, LARGEST)
    scales: NDArray[numpy.float32] = one / factors
    return _rounded(scaled.reshape(rows, columns)), scales


def _rounded(values: NDArray[numpy.float32]) -> NDArray[numpy.uint8]:
    """To fp8 e4m3, to nearest and ties to even. No value is beyond 448."""
    bits = values.view(numpy.uint32)
    signs = (bits >> 24) & 0x80
    magnitudes = bits & 0x7FFFFFFF
    # Exponents are biased by 127 and by 7: 120 less, above a mantissa of 3 bits.
    normal = ((magnitudes + 0x7FFFF + ((magnitudes >> 20) & 1)) >> 20) - (120 << 3)
    absolute: NDArray[Any] = magnitudes.view(numpy.float32)
    small = absolute < _SMALLEST_NORMAL
    subnormal = numpy.rint(numpy.where(small, absolute, 0) * numpy.float32(512)).astype(numpy.uint32)
    result: NDArray[numpy.uint8] = (numpy.where(small, subnormal, normal) | signs).astype(numpy.uint8)
    return result
