"""Read a lazy tensor block by block: the only module that reads values.

A block is a range of the tensor's rows, laid out as in the result. The chunks that fill it are looked up, their byte ranges in
the source files are merged into few large reads, and NumPy copies the values to their indices. A chunk with the same layout in
the source as in the result is read straight into the block. A conversion then takes as long as the disk, or as two copies in
memory if rows are permuted.

A transposed matrix of up to MATRIX_BYTES is read once, from beginning to end, and stays in memory while all its blocks are
copied. So these blocks are small, too, and are hashed and written from the processor's cache.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy
from numpy.typing import NDArray

from lt_convert.tensors.casts import cast
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import ITEM_BYTES, Tensor, View, intersection, row_major, sliced
from lt_shared.files import storage

Bits = NDArray[Any]

BITS: dict[int, type] = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32, 8: numpy.uint64}
# Fits the processor's L2 cache: copying 2.5 GB in blocks of 16 MiB took three times as long as in blocks of 1 MiB. Blocks of
# 512 KiB take the kernel less time, and Python more.
BLOCK_BYTES = 1 << 20
# The largest transposed matrix in memory, and the size of its blocks. They have 128 rows or more, so that a block takes whole
# cache lines from every source row.
MATRIX_BYTES = 128 << 20
OF_MATRIX_BYTES = 2 << 20
# A block of a larger transposed matrix reads a short range of every source row. The larger the block, the longer the ranges.
TRANSPOSED_BLOCK_BYTES = 64 << 20
# A remote store takes little longer to answer a request for a few megabytes than one for a few bytes.
REMOTE_BLOCK_BYTES = 16 << 20
# Blocks of several tensors are smaller by this factor.
SHARED = 4
REMOTE_GAP_BYTES = 1 << 20
# Reads with at most GAP_BYTES between them are merged, up to SPAN_BYTES.
GAP_BYTES = 64 << 10
SPAN_BYTES = 64 << 20
# Rows and columns in a tile of a transposed matrix, and unused items between the tile's rows. Without the gap, the rows would be
# a power of two apart and compete for the same few lines of the processor's cache. A tile of bf16 takes 270 KB of the L2 cache.
# Two threads copy smaller tiles no faster than one, because NumPy takes the interpreter's lock again after each copy: 0.20
# seconds per GB with tiles of 128 x 256, 0.11 with these.
TILE = (256, 512)
TILE_GAP = 8


def row_blocks(*tensors: Tensor) -> Iterator[tuple[int, int]]:
    """Yield row ranges (start, stop) that cover tensors of one shape in order, each small enough for memory."""
    step = max(1, _limit(*tensors) // max(1, _row_bytes(*tensors)))
    for start in range(0, tensors[0].shape[0], step):
        yield start, min(start + step, tensors[0].shape[0])


def flat(tensor: Tensor) -> Tensor:
    """The tensor without leading axes of size 1, with at least one axis: what `row_blocks` and `TensorReader` take."""
    if not tensor.shape:
        return tensor.expanded(1)
    leading = 0
    while leading < len(tensor.shape) - 1 and tensor.shape[leading] == 1:
        leading += 1
    return tensor.squeezed(leading) if leading else tensor


def parts(tensor: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the consecutive `flat` parts of the tensor: its experts, if one expert alone is more than a block.

    With `others` in the same shape, yield each part with their parts.
    """
    tensors = [flat(one) for one in (tensor, *others)]
    if len(tensors[0].shape) < 3 or _row_bytes(*tensors) <= _limit(*tensors):
        yield tuple(tensors)
        return
    for index in range(tensors[0].shape[0]):
        yield from parts(*(one.at(index) for one in tensors))


def _row_bytes(*tensors: Tensor) -> int:
    return math.prod(tensors[0].shape[1:]) * max(ITEM_BYTES[tensor.stored_dtype] for tensor in tensors)


def _limit(*tensors: Tensor) -> int:
    """Return the number of bytes in a block.

    With several tensors, a block of one tensor and the sum over the others are in memory at once, in fp32: blocks are smaller.
    One matrix is in memory at a time, so a block of a matrix must have room for many rows.
    """
    if len(tensors) > 1:
        return max(map(_block_bytes, tensors)) // SHARED
    return OF_MATRIX_BYTES if _matrix(*tensors) else _block_bytes(*tensors)


def _block_bytes(tensor: Tensor) -> int:
    if any(chunk.view and is_transposed(chunk.view) for chunk in tensor.chunks):
        # Decoding makes copies.
        return TRANSPOSED_BLOCK_BYTES // 4 if tensor.encodings else TRANSPOSED_BLOCK_BYTES
    return REMOTE_BLOCK_BYTES if any(storage.is_remote(file) for file in tensor.files) else BLOCK_BYTES


def is_read_at_once(tensor: Tensor) -> bool:
    """Whether each block is copied from one transposed matrix in memory: then some rows cost as much as all."""
    return _matrix(tensor) is not None


def read(tensor: Tensor, files: Files) -> Bits:
    """All values of a small tensor as raw bits, unsigned integers of shape [*shape]."""
    values = TensorReader(files).rows(flat(tensor), 0, flat(tensor).shape[0])
    return values.reshape(tensor.shape).copy()


class TensorReader:
    """Reads blocks into a buffer of its own, which the next call overwrites."""

    def __init__(self, files: Files):
        self.files = files
        self._block = bytearray()
        self._span = bytearray()
        self._tensor: Tensor | None = None
        self._matrix: _Range | None = None
        self._held: _Range | None = None

    def rows(self, tensor: Tensor, start: int, stop: int) -> Bits:
        """Rows `start` to `stop` of a `flat` tensor as raw bits, unsigned integers of shape [stop - start, *shape[1:]].

        Raises BadData when a source file ends early or a cast overflows.
        """
        shape = (stop - start, *tensor.shape[1:])
        item_bytes = ITEM_BYTES[tensor.stored_dtype]
        size_bytes = math.prod(shape) * item_bytes
        if len(self._block) < size_bytes:
            self._block = bytearray(size_bytes)
        block: Bits = numpy.frombuffer(self._block, BITS[item_bytes], math.prod(shape)).reshape(shape)
        if tensor is not self._tensor:
            self._tensor, self._matrix = tensor, _matrix(tensor)
        reads = []
        for chunk in tensor.chunks:
            rows = intersection(chunk.indices[0], range(start, stop))
            if not rows:
                continue
            target = (slice(rows.start - start, rows[-1] + 1 - start, rows.step), *map(_as_slice, chunk.indices[1:]))
            if chunk.view is None:
                block[target] = 0
            else:
                reads.append(_Read(sliced(chunk.view, chunk.indices[0], 0, rows), target))
        for group in _merged(reads, tensor.stored_dtype):
            self._fill(block, group, tensor)
        return block if tensor.dtype == tensor.stored_dtype else cast(block, tensor.stored_dtype, tensor.dtype, tensor.name)

    def _fill(self, block: Bits, group: "list[_Read]", tensor: Tensor) -> None:
        dtype = tensor.stored_dtype
        if self._matrix and all(self._matrix.has(one.view, dtype) for one in group):
            span = self._hold(self._matrix)
            for one in group:
                self._assign(block[one.target], span, one.view, self._matrix.begin, tensor)
            return
        if len(group) == 1 and not group[0].view.encoding and _is_row_major(group[0].view, dtype):
            target = block[group[0].target]
            if target.flags.c_contiguous:
                self.files.read_into(group[0].view.file, group[0].view.offset_bytes, target.reshape(-1).data.cast("B"))
                return
        begin = group[0].view.offset_bytes
        length = max(one.view.end(dtype) for one in group) - begin
        if length > SPAN_BYTES:
            for one in group:
                self._fill_in_halves(block[one.target], one.view, tensor)
            return
        span = self._reserve(length)
        self.files.read_into(group[0].view.file, begin, span)
        for one in group:
            self._assign(block[one.target], span, one.view, begin, tensor)

    def _fill_in_halves(self, target: Bits, view: View, tensor: Tensor) -> None:
        """Read values that are spread over more than SPAN_BYTES: the widest axis is halved until each read is short enough."""
        length = view.end(tensor.stored_dtype) - view.offset_bytes
        if length <= SPAN_BYTES:
            span = self._reserve(length)
            self.files.read_into(view.file, view.offset_bytes, span)
            self._assign(target, span, view, view.offset_bytes, tensor)
            return
        axis = max(range(len(view.shape)), key=lambda axis: (view.shape[axis] - 1) * view.strides_bytes[axis])
        whole, half = range(view.shape[axis]), view.shape[axis] // 2
        for part in (whole[:half], whole[half:]):
            self._fill_in_halves(target[(slice(None),) * axis + (_as_slice(part),)], sliced(view, whole, axis, part), tensor)

    def _assign(self, target: Bits, span: memoryview, view: View, begin: int, tensor: Tensor) -> None:
        """Copy the view's values, decoded, from `span`, whose first byte is the file's byte `begin`."""
        item_bytes = view.item_bytes(tensor.stored_dtype)
        items: Bits = numpy.ndarray(view.shape, BITS[item_bytes], span, view.offset_bytes - begin, view.strides_bytes)
        if view.encoding is None:
            _copy(target, items)
        else:
            target[...] = view.encoding.decoded(items, self.files.read, tensor.name).view(target.dtype)

    def _hold(self, matrix: "_Range") -> memoryview:
        """Return the bytes of a matrix. They stay in memory until other bytes are read."""
        length = matrix.end - matrix.begin
        if self._held != matrix:
            span, step = self._reserve(length), REMOTE_BLOCK_BYTES if storage.is_remote(matrix.file) else BLOCK_BYTES
            for first in range(0, length, step):
                self.files.read_into(matrix.file, matrix.begin + first, span[first : first + step])
            self._held = matrix
        return memoryview(self._span)[:length]

    def _reserve(self, length: int) -> memoryview:
        self._held = None
        if len(self._span) < length:
            self._span = bytearray(length)
        return memoryview(self._span)[:length]


@dataclasses.dataclass(frozen=True, slots=True)
class _Range:
    """Bytes of a file."""

    file: str
    begin: int
    end: int

    def has(self, view: View, dtype: str) -> bool:
        return view.file == self.file and self.begin <= view.offset_bytes and view.end(dtype) <= self.end


def _matrix(tensor: Tensor) -> _Range | None:
    """Return the bytes of the one matrix whose transpose fills the tensor, whole or in part.

    None if there are several such matrices, or if the matrix is larger than MATRIX_BYTES.
    """
    matrix: _Range | None = None
    views = [chunk.view for chunk in tensor.chunks if chunk.view and is_transposed(chunk.view)]
    for view in sorted(views, key=lambda view: (view.file, view.offset_bytes)):
        end = view.end(tensor.stored_dtype)
        if matrix and (view.file != matrix.file or view.offset_bytes > matrix.end + GAP_BYTES):
            return None
        matrix = _Range(view.file, matrix.begin, max(matrix.end, end)) if matrix else _Range(view.file, view.offset_bytes, end)
    return matrix if matrix and matrix.end - matrix.begin <= MATRIX_BYTES and not tensor.encodings else None


@dataclasses.dataclass(frozen=True, slots=True)
class _Read:
    """A view and the slices of the block that it fills."""

    view: View
    target: tuple[slice, ...]


def _merged(reads: list[_Read], dtype: str) -> Iterator[list[_Read]]:
    """Groups of reads whose bytes interleave or nearly touch in one file, a group of several at most SPAN_BYTES long."""
    reads.sort(key=lambda one: (one.view.file, one.view.offset_bytes))
    group: list[_Read] = []
    end = 0
    for one in reads:
        one_end = one.view.end(dtype)
        gap_bytes = REMOTE_GAP_BYTES if storage.is_remote(one.view.file) else GAP_BYTES
        joins = (
            group
            and one.view.file == group[0].view.file
            and one.view.offset_bytes <= end + gap_bytes
            and max(end, one_end) - group[0].view.offset_bytes <= SPAN_BYTES
            # A long contiguous read goes straight into the block: cheaper than through a merged read.
            and not (
                one.view.offset_bytes >= end and _is_row_major(one.view, dtype) and one_end - one.view.offset_bytes > gap_bytes
            )
        )
        if group and not joins:
            yield group
            group = []
        end = max(end, one_end) if group else one_end
        group.append(one)
    if group:
        yield group


def _is_row_major(view: View, dtype: str) -> bool:
    expected = row_major(view.shape, view.item_bytes(dtype))
    return all(size == 1 or stride == its for size, stride, its in zip(view.shape, view.strides_bytes, expected, strict=True))


def is_transposed(view: View) -> bool:
    strides = [stride for size, stride in zip(view.shape, view.strides_bytes, strict=True) if size > 1]
    return strides != sorted(strides, reverse=True)


def _copy(target: Bits, values: Bits) -> None:
    """Copy `values` to `target`.

    A transposed matrix goes through a tile that stays in the processor's cache: 0.2 seconds for a GB of bf16.
    """
    if values.ndim != 2 or values.strides[0] >= values.strides[1]:
        target[...] = values
        return
    rows, columns = TILE
    tile: Bits = numpy.empty((columns, rows + TILE_GAP), values.dtype)
    for top in range(0, values.shape[0], rows):
        for first_column in range(0, values.shape[1], columns):
            part = values[top : top + rows, first_column : first_column + columns]
            copied = tile[: part.shape[1], : part.shape[0]].T
            copied[...] = part
            target[top : top + rows, first_column : first_column + columns] = copied


def _as_slice(indices: range) -> slice:
    return slice(indices.start, indices.stop, indices.step)
