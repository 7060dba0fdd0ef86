"""A part of a flat tensor as a tensor of several axes: still views of files, and nothing is read.

A flat buffer may be cut into chunks anywhere, also within a row. A chunk is then at most two boxes per axis and one of whole
rows, so the views stay rectangular: three for a matrix, whatever its size.
"""

import dataclasses
import math
from collections.abc import Iterator

from lt_convert.tensors.tensor import ITEM_BYTES, Chunk, Tensor, View, row_major


def reshaped(flat: Tensor, start: int, shape: tuple[int, ...]) -> Tensor:
    """The values of a one-dimensional tensor from `start` on, in `shape`."""
    part = flat.take(0, range(start, start + math.prod(shape)))
    chunks = tuple(
        Chunk(box, chunk.view and _part(chunk, box, shape, ITEM_BYTES[flat.stored_dtype]))
        for chunk in part.chunks
        for box in _boxes(chunk.indices[0].start, chunk.indices[0].stop, shape)
    )
    return dataclasses.replace(part, shape=shape, chunks=chunks)


def _part(chunk: Chunk, box: tuple[range, ...], shape: tuple[int, ...], item_bytes: int) -> View:
    """The view of a box of a chunk whose values are contiguous."""
    assert chunk.view is not None
    sizes = tuple(map(len, box))
    first = sum(indices.start * math.prod(shape[axis + 1 :]) for axis, indices in enumerate(box))
    offset = chunk.view.offset_bytes + (first - chunk.indices[0].start) * item_bytes
    return View(chunk.view.file, offset, sizes, row_major(shape, item_bytes))


def _boxes(start: int, stop: int, shape: tuple[int, ...]) -> Iterator[tuple[range, ...]]:
    """The indices in `shape` of the row-major positions from `start` to `stop`, as boxes."""
    if not shape:
        if start < stop:
            yield ()
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:
        yield from _in_row(last, start, stop, shape)
        return
    if start < first * row:
        yield from _in_row(first - 1, start, first * row, shape)
    if first < last:
        yield (range(first, last), *map(range, shape[1:]))
    if last * row < stop:
        yield from _in_row(last, last * row, stop, shape)


def _in_row(index: int, start: int, stop: int, shape: tuple[int, ...]) -> Iterator[tuple[range, ...]]:
    row = math.prod(shape[1:])
    for box in _boxes(start - index * row, stop - index * row, shape[1:]):
        yield (range(index, index + 1), *box)
