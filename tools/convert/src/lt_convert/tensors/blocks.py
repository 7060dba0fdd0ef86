"""Read a lazy tensor block by block: the only place where values are touched.

A block is some rows of the tensor as they will lie in the result. The parts that fill it are looked up, their places in the
source files are joined to few large reads, and NumPy moves the values where they belong. A part that lies in the source as it
does in the result is read straight into the block. What limits a conversion then is the disk, or two copies in memory where rows
are permuted.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy
from numpy.typing import NDArray

from lt_convert.tensors.casts import cast
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import ITEM_BYTES, Tensor, View, meet, row_major, sliced
from lt_shared import storage

Bits = NDArray[Any]

BITS: dict[int, type] = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32, 8: numpy.uint64}
# Small enough for the processor's second-level cache: copying 2.5 GB in blocks of 16 MiB took three times as long as in blocks of
# 1.
BLOCK_BYTES = 1 << 20
# A transposed block takes a short piece of every source row; larger blocks make the pieces longer.
TRANSPOSED_BLOCK_BYTES = 64 << 20
# A remote store answers a request for a few megabytes not much later than one for a few bytes.
REMOTE_BLOCK_BYTES = 16 << 20
REMOTE_GAP_BYTES = 1 << 20
# Reads closer together than this become one, and one read is no longer than this.
GAP_BYTES = 64 << 10
SPAN_BYTES = 64 << 20
# Of a transposed matrix: its rows, which lie close together in the source, and columns.
TILE = (512, 32)


def row_blocks(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """Row ranges (start, stop) that cover the tensor in order, each small enough to be held in memory."""
    row_bytes = math.prod(tensor.shape[1:]) * ITEM_BYTES[tensor.stored]
    limit = BLOCK_BYTES
    if any(part.view and _is_transposed(part.view) for part in tensor.parts):
        limit = TRANSPOSED_BLOCK_BYTES
    elif any(storage.is_remote(file) for file in tensor.files):
        limit = REMOTE_BLOCK_BYTES
    step = max(1, limit // max(1, row_bytes))
    for start in range(0, tensor.shape[0], step):
        yield start, min(start + step, tensor.shape[0])


def flat(tensor: Tensor) -> Tensor:
    """The tensor without leading axes of size 1, with at least one axis: what `row_blocks` and `Blocks` take."""
    if not tensor.shape:
        return tensor.expanded(1)
    leading = 0
    while leading < len(tensor.shape) - 1 and tensor.shape[leading] == 1:
        leading += 1
    return tensor.squeezed(leading)


def read(tensor: Tensor, files: Files) -> Bits:
    """All values of a small tensor as raw bits [*shape]."""
    values = Blocks(files).rows(flat(tensor), 0, flat(tensor).shape[0])
    return values.reshape(tensor.shape).copy()


class Blocks:
    """Reads blocks into memory of its own, which the next call overwrites."""

    def __init__(self, files: Files):
        self.files = files
        self._block = bytearray()
        self._span = bytearray()

    def rows(self, tensor: Tensor, start: int, stop: int) -> Bits:
        """Bits [stop - start, *shape[1:]] of a `flat` tensor. Raises BadData when a source ends early or a cast overflows."""
        shape = (stop - start, *tensor.shape[1:])
        item_bytes = ITEM_BYTES[tensor.stored]
        size_bytes = math.prod(shape) * item_bytes
        if len(self._block) < size_bytes:
            self._block = bytearray(size_bytes)
        block: Bits = numpy.frombuffer(self._block, BITS[item_bytes], math.prod(shape)).reshape(shape)
        wanted = []
        for part in tensor.parts:
            common = meet(part.place[0], range(start, stop))
            if not common:
                continue
            place = (slice(common.start - start, common[-1] + 1 - start, common.step), *map(_as_slice, part.place[1:]))
            if part.view is None:
                block[place] = 0
            else:
                wanted.append(_Wanted(sliced(part.view, part.place[0], 0, common), place))
        for group in _grouped(wanted, item_bytes):
            self._fill(block, group, item_bytes)
        return block if tensor.dtype == tensor.stored else cast(block, tensor.stored, tensor.dtype, tensor.name)

    def _fill(self, block: Bits, group: "list[_Wanted]", item_bytes: int) -> None:
        if len(group) == 1 and _is_row_major(group[0].view, item_bytes):
            target = block[group[0].place]
            if target.flags.c_contiguous:
                self.files.read_into(group[0].view.file, group[0].view.position, target.reshape(-1).data.cast("B"))
                return
        begin = group[0].view.position
        length = max(_end(wanted.view, item_bytes) for wanted in group) - begin
        if length > SPAN_BYTES:
            for wanted in group:
                self._fill_by_runs(block[wanted.place], wanted.view, item_bytes)
            return
        span = self._reserve(length)
        self.files.read_into(group[0].view.file, begin, span)
        for wanted in group:
            _assign(block[wanted.place], _on(span, wanted.view, begin, item_bytes))

    def _fill_by_runs(self, target: Bits, view: View, item_bytes: int) -> None:
        """Values so far apart that what lies between is not read too: the longest axis is halved until the span is short."""
        if _end(view, item_bytes) - view.position <= SPAN_BYTES:
            length = _end(view, item_bytes) - view.position
            span = self._reserve(length)
            self.files.read_into(view.file, view.position, span)
            _assign(target, _on(span, view, view.position, item_bytes))
            return
        axis = max(range(len(view.shape)), key=lambda axis: (view.shape[axis] - 1) * view.strides[axis])
        half = view.shape[axis] // 2
        for first, last in ((0, half), (half, view.shape[axis])):
            shape = (*view.shape[:axis], last - first, *view.shape[axis + 1 :])
            part = View(view.file, view.position + first * view.strides[axis], shape, view.strides)
            self._fill_by_runs(target[(slice(None),) * axis + (slice(first, last),)], part, item_bytes)

    def _reserve(self, length: int) -> memoryview:
        if len(self._span) < length:
            self._span = bytearray(length)
        return memoryview(self._span)[:length]


@dataclasses.dataclass(frozen=True, slots=True)
class _Wanted:
    view: View
    place: tuple[slice, ...]


def _grouped(wanted: list[_Wanted], item_bytes: int) -> Iterator[list[_Wanted]]:
    """The views whose bytes interleave or nearly touch in one file, unless one read of them would be too long."""
    wanted.sort(key=lambda one: (one.view.file, one.view.position))
    group: list[_Wanted] = []
    end = 0
    for one in wanted:
        its_end = _end(one.view, item_bytes)
        gap_bytes = REMOTE_GAP_BYTES if storage.is_remote(one.view.file) else GAP_BYTES
        joins = (
            group
            and one.view.file == group[0].view.file
            and one.view.position <= end + gap_bytes
            and max(end, its_end) - group[0].view.position <= SPAN_BYTES
            # Two neighbours that both go straight into the block are better read one by one.
            and not (one.view.position >= end and _is_row_major(one.view, item_bytes) and its_end - one.view.position > gap_bytes)
        )
        if group and not joins:
            yield group
            group = []
        end = max(end, its_end) if group else its_end
        group.append(one)
    if group:
        yield group


def _end(view: View, item_bytes: int) -> int:
    return view.position + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True)) + item_bytes


def _is_row_major(view: View, item_bytes: int) -> bool:
    expected = row_major(view.shape, item_bytes)
    return all(size == 1 or stride == its for size, stride, its in zip(view.shape, view.strides, expected, strict=True))


def _is_transposed(view: View) -> bool:
    strides = [stride for size, stride in zip(view.shape, view.strides, strict=True) if size > 1]
    return strides != sorted(strides, reverse=True)


def _on(span: memoryview, view: View, begin: int, item_bytes: int) -> Bits:
    """The view's values in `span`, whose first byte lies at `begin` of the file."""
    return numpy.ndarray(view.shape, BITS[item_bytes], span, view.position - begin, view.strides)


def _assign(target: Bits, values: Bits) -> None:
    """Copy; a transposed matrix in tiles that stay in the processor's cache, 2.4 times as fast as at once."""
    if values.ndim != 2 or values.strides[0] >= values.strides[1]:
        target[...] = values
        return
    rows, columns = TILE
    for top in range(0, values.shape[0], rows):
        for left in range(0, values.shape[1], columns):
            target[top : top + rows, left : left + columns] = values[top : top + rows, left : left + columns]


def _as_slice(places: range) -> slice:
    return slice(places.start, places.stop, places.step)
