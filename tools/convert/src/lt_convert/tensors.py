"""Tensors that are read only when somebody writes them: a shape, a dtype, and a way to get some of their rows.

Rows (slices of the first dimension) are the unit of everything here: every Llama mapping only moves rows. Values travel as raw
bits in unsigned integers, so nothing is rounded unless a `CastTensor` asks for it. Memory is bounded by what one `read_rows` call
returns; writers ask for about 64 MiB at a time.
"""

import collections
import dataclasses
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy
from numpy.typing import NDArray

from lt_shared.console import BadData

Bits = NDArray[Any]

DTYPES: dict[str, type] = {"float32": numpy.uint32, "bfloat16": numpy.uint16, "float16": numpy.uint16}
BLOCK_BYTES = 64 << 20


class Tensor(Protocol):
    """`dtype` is one of `DTYPES`; `read_rows(start, stop)` gives bits [stop - start, *shape[1:]]."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def read_rows(self, start: int, stop: int) -> Bits: ...


def row_bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape[1:]) * numpy.dtype(DTYPES[tensor.dtype]).itemsize


def size_bytes(tensor: Tensor) -> int:
    return tensor.shape[0] * row_bytes(tensor)


def row_blocks(tensor: Tensor, block_bytes: int = BLOCK_BYTES) -> Iterator[tuple[int, int]]:
    """Row ranges (start, stop) that cover the tensor in order, each of at most `block_bytes` (or one row)."""
    step = max(1, block_bytes // max(1, row_bytes(tensor)))
    for start in range(0, tensor.shape[0], step):
        yield start, min(start + step, tensor.shape[0])


class OpenFiles:
    """Files of a checkpoint, opened on first use. At most `limit` are open: a large run has more shards than descriptors."""

    def __init__(self, limit: int = 128):
        self.limit = limit
        self._descriptors: collections.OrderedDict[Path, int] = collections.OrderedDict()

    def read(self, path: Path, offset: int, length: int) -> bytes:
        """Exactly `length` bytes. Raises BadData when the file is missing or ends early."""
        if path not in self._descriptors:
            if len(self._descriptors) >= self.limit:
                os.close(self._descriptors.popitem(last=False)[1])
            try:
                self._descriptors[path] = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                raise BadData(f"{path}: missing", "the checkpoint is incomplete: copy it again") from None
        self._descriptors.move_to_end(path)
        parts = []
        while length > 0:
            part = os.pread(self._descriptors[path], length, offset)
            if not part:
                raise BadData(f"{path}: truncated at {offset} bytes", "the checkpoint is incomplete: copy it again")
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __enter__(self) -> "OpenFiles":
        return self

    def __exit__(self, *error: object) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A box of a tensor, row-major at byte `position` of a file: rows `offsets[0]` to `offsets[0] + sizes[0]` and so on."""

    path: Path
    position: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in files, cut into boxes in any way."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: Sequence[Chunk]
    files: OpenFiles = dataclasses.field(repr=False)

    def check(self) -> None:
        """Raises BadData unless the chunks cover the tensor exactly once."""
        for chunk in self.chunks:
            if any(offset + size > whole for offset, size, whole in zip(chunk.offsets, chunk.sizes, self.shape, strict=True)):
                raise BadData(f"{chunk.path}: a chunk of {self.name} lies outside its shape {list(self.shape)}")
        covered = sum(math.prod(chunk.sizes) for chunk in self.chunks)
        overlap = any(_overlap(one, other) for one, other in itertools.combinations(self.chunks, 2))
        if covered != math.prod(self.shape) or overlap:
            raise BadData(f"{self.name}: its chunks do not cover its shape {list(self.shape)} exactly once")

    def read_rows(self, start: int, stop: int) -> Bits:
        bits = DTYPES[self.dtype]
        result: Bits = numpy.empty((stop - start, *self.shape[1:]), bits)
        for chunk in self.chunks:
            first, last = max(start, chunk.offsets[0]), min(stop, chunk.offsets[0] + chunk.sizes[0])
            if first >= last:
                continue
            width = math.prod(chunk.sizes[1:]) * result.itemsize
            data = self.files.read(chunk.path, chunk.position + (first - chunk.offsets[0]) * width, (last - first) * width)
            box = tuple(slice(offset, offset + size) for offset, size in zip(chunk.offsets[1:], chunk.sizes[1:], strict=True))
            values: Bits = numpy.frombuffer(data, bits).reshape(last - first, *chunk.sizes[1:])
            result[(slice(first - start, last - start), *box)] = values
        return result


def _overlap(one: Chunk, other: Chunk) -> bool:
    boxes = zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
    return all(
        offset < other_offset + other_size and other_offset < offset + size for offset, size, other_offset, other_size in boxes
    )


@dataclasses.dataclass(frozen=True)
class ZeroTensor:
    """A tensor of zeros, for rows that have no source."""

    dtype: str
    shape: tuple[int, ...]

    def read_rows(self, start: int, stop: int) -> Bits:
        return numpy.zeros((stop - start, *self.shape[1:]), DTYPES[self.dtype])


@dataclasses.dataclass(frozen=True)
class Piece:
    """Rows `start` to `start + rows` of `source`, known as `name`."""

    name: str
    source: Tensor
    start: int
    rows: int


@dataclasses.dataclass(frozen=True)
class AssembledTensor:
    """Pieces of other tensors, one below the other. `operation` tells a person what is done."""

    operation: str
    pieces: Sequence[Piece]

    @property
    def dtype(self) -> str:
        return self.pieces[0].source.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(piece.rows for piece in self.pieces), *self.pieces[0].source.shape[1:])

    def check(self, name: str) -> None:
        """Raises BadData when the pieces differ in dtype: stacking them would need a cast."""
        dtypes = sorted({piece.source.dtype for piece in self.pieces})
        if len(dtypes) > 1:
            raise BadData(f"{name}: its parts are stored as {' and '.join(dtypes)}", "pass --dtype to choose one")

    def read_rows(self, start: int, stop: int) -> Bits:
        parts = []
        ends = itertools.accumulate(piece.rows for piece in self.pieces)
        for piece, end in zip(self.pieces, ends, strict=True):
            begin = end - piece.rows
            first, last = max(start, begin), min(stop, end)
            if first < last:
                parts.append(piece.source.read_rows(piece.start + first - begin, piece.start + last - begin))
        return parts[0] if len(parts) == 1 else numpy.concatenate(parts)


@dataclasses.dataclass(frozen=True)
class CastTensor:
    """`source` rounded to another dtype (to nearest, ties to even)."""

    name: str
    source: Tensor
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    def read_rows(self, start: int, stop: int) -> Bits:
        """Raises BadData when a finite value becomes infinite."""
        import torch

        values = torch.from_numpy(self.source.read_rows(start, stop)).view(getattr(torch, self.source.dtype))
        cast = values.to(getattr(torch, self.dtype))
        if bool((cast.isinf() & ~values.isinf()).any()):
            raise BadData(f"{self.name}: has values too large for {self.dtype}", "choose bfloat16 or float32")
        return cast.view(getattr(torch, numpy.dtype(DTYPES[self.dtype]).name)).numpy()
