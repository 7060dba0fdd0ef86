"""Tensors as strided views of files: a conversion does arithmetic on their byte offsets, and no value is read.

A tensor is a shape and the chunks it is made of. A chunk says which of the tensor's indices it fills (a `range` per axis, with
steps where rows are interleaved) and where its values are (a view: file, byte offset, and a byte stride per axis, as NumPy has
them). Slicing, transposing, stacking and interleaving give another such tensor, so any chain of operations costs nothing until a
writer reads the result block by block (`blocks`). Planning Llama 3 70B, 723 tensors in 50,000 chunks, takes about a second.

A model with experts has tens of thousands of tensors of few shapes, so shapes, strides and indices that are equal are one object
(`shared`): a plan of DeepSeek-V3 takes half the memory.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, Self

from lt_convert.tensors.encodings import Encoding
from lt_shared.console import BadData

# Values travel as raw bits; the size is in bytes.
ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e8m0fnu": 1,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
}
CASTABLE = ("float64", "float32", "bfloat16", "float16")
ONE_DTYPE = "give all tensors one dtype first: lt-convert SRC --to hf --dtype bfloat16 -o DST"
# A model has fewer shapes; the indices of its experts are many times as many.
SHARED = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """Values in `file`: the first at `offset_bytes`, the next one along an axis `strides_bytes[axis]` after it.

    With an `encoding`, they are what that makes of the items there.
    """

    file: str
    offset_bytes: int
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    encoding: Encoding | None = None

    def item_bytes(self, dtype: str) -> int:
        """The size of an item in the file, where the tensor is stored as `dtype`."""
        return self.encoding.item_bytes if self.encoding else ITEM_BYTES[dtype]

    def end(self, dtype: str) -> int:
        """The byte after the last."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides_bytes, strict=True))
        return self.offset_bytes + last + self.item_bytes(dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """The values of a tensor at `indices`, one range per axis. Without a view they are zeros."""

    indices: tuple[range, ...]
    view: View | None


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of `shape`. A reader gets `dtype`, the files have `stored_dtype`; they differ only after `cast`.

    Encoded values count as stored in float32, the dtype of their views. `name` names the stored source tensors in messages and
    plans.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    stored_dtype: str

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(chunk.view.file for chunk in self.chunks if chunk.view))

    @property
    def encodings(self) -> list[str]:
        """Return the stored dtypes of encoded values; empty if no value is encoded."""
        return list(dict.fromkeys(chunk.view.encoding.dtype for chunk in self.chunks if chunk.view and chunk.view.encoding))

    def widened(self) -> Self:
        """Return a 16-bit tensor as an encoded one, so that its values can be joined with encoded values."""
        if self.stored_dtype not in ("bfloat16", "float16"):
            return self
        chunks = tuple(
            Chunk(chunk.indices, chunk.view and dataclasses.replace(chunk.view, encoding=Encoding(self.stored_dtype)))
            for chunk in self.chunks
        )
        return dataclasses.replace(self, chunks=chunks, stored_dtype="float32")

    def cast(self, dtype: str) -> Self:
        """Its values as another dtype. Raises BadData where there is no such cast."""
        if dtype != self.stored_dtype and self.stored_dtype not in CASTABLE:
            raise BadData(
                f"{self.name}: is stored as {self.stored_dtype}, which is not cast to {dtype}",
                f"casts are of {', '.join(CASTABLE)}",
            )
        return dataclasses.replace(self, dtype=dtype)

    def named(self, name: str) -> Self:
        return dataclasses.replace(self, name=name)

    def _of(self, shape: tuple[int, ...], chunks: tuple[Chunk, ...]) -> Self:
        return type(self)(self.name, self.dtype, shape, chunks, self.stored_dtype)

    def take(self, axis: int, indices: range) -> Self:
        """The slices at the ascending `indices` of an axis, as `numpy.take`. Every index exists."""
        if indices == range(self.shape[axis]):
            return self
        chunks = []
        for chunk in self.chunks:
            common = intersection(chunk.indices[axis], indices)
            if not common:
                continue
            positions = range((common.start - indices.start) // indices.step, len(indices), max(1, common.step // indices.step))
            positions = positions[: len(common)]
            chunks.append(
                Chunk(
                    shared_indices(_replaced(chunk.indices, axis, positions)),
                    chunk.view and sliced(chunk.view, chunk.indices[axis], axis, common),
                )
            )
        return self._of(shared(_replaced(self.shape, axis, len(indices))), tuple(chunks))

    def permuted(self, order: Sequence[int]) -> Self:
        """The axes in another order, as `numpy.transpose`."""
        chunks = tuple(
            Chunk(shared_indices(_ordered(chunk.indices, order)), chunk.view and _permuted(chunk.view, order))
            for chunk in self.chunks
        )
        return self._of(shared(_ordered(self.shape, order)), chunks)

    def transposed(self) -> Self:
        return self.permuted(range(len(self.shape))[::-1])

    def expanded(self, axes: int) -> Self:
        """With `axes` axes of size 1 before the others."""
        chunks = tuple(
            Chunk(shared_indices((range(1),) * axes + chunk.indices), chunk.view and _expanded(chunk.view, axes))
            for chunk in self.chunks
        )
        return self._of(shared((1,) * axes + self.shape), chunks)

    def squeezed(self, axes: int) -> Self:
        """Without the first `axes` axes, which have size 1."""
        chunks = tuple(
            Chunk(shared_indices(chunk.indices[axes:]), chunk.view and _squeezed(chunk.view, axes)) for chunk in self.chunks
        )
        return self._of(shared(self.shape[axes:]), chunks)

    def at(self, *indices: int) -> Self:
        """The tensor at these indices of the first axes: one layer of a stack."""
        result = self
        for axis, index in enumerate(indices):
            result = result.take(axis, range(index, index + 1))
        return result.squeezed(len(indices))

    def slices(self) -> list[Self]:
        """The tensor at each index of its first axis. Each chunk is looked at once, by `at` as often as there are indices."""
        by_index: list[list[Chunk]] = [[] for _ in range(self.shape[0])]
        for chunk in self.chunks:
            along, indices = chunk.indices[0], shared_indices(chunk.indices[1:])
            for index in along:
                view = chunk.view and _squeezed(sliced(chunk.view, along, 0, range(index, index + 1)), 1)
                by_index[index].append(Chunk(indices, view))
        shape = shared(self.shape[1:])
        return [self._of(shape, tuple(chunks)) for chunks in by_index]

    def check_cover(self) -> None:
        """Raises BadData unless the chunks cover the tensor exactly once."""
        for chunk in self.chunks:
            if any(indices and indices[-1] >= size for indices, size in zip(chunk.indices, self.shape, strict=True)):
                raise BadData(f"{self.name}: a chunk lies outside its shape {list(self.shape)}")
        covered = sum(math.prod(map(len, chunk.indices)) for chunk in self.chunks)
        if covered != math.prod(self.shape) or _overlapping(self.chunks):
            raise BadData(f"{self.name}: its chunks do not cover its shape {list(self.shape)} exactly once")


def tensor_in_files(
    name: str, dtype: str, shape: Sequence[int], chunks: Iterable[tuple[Sequence[int], Sequence[int], str, int]]
) -> Tensor:
    """A tensor in files: chunks of (offsets, sizes, file, offset in bytes), each row-major.

    Raises BadData unless they cover the tensor exactly once.
    """
    parts = []
    for offsets, sizes, file, offset_bytes in chunks:
        indices = shared_indices(tuple(range(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True)))
        parts.append(Chunk(indices, View(file, offset_bytes, shared(tuple(sizes)), row_major(sizes, ITEM_BYTES[dtype]))))
    tensor = Tensor(name, dtype, shared(tuple(shape)), tuple(parts), dtype)
    tensor.check_cover()
    return tensor


def zeros(dtype: str, shape: Sequence[int]) -> Tensor:
    return Tensor("zeros", dtype, tuple(shape), (Chunk(tuple(map(range, shape)), None),), dtype)


def assemble(name: str, shape: Sequence[int], pieces: Iterable[tuple[Sequence[range], Tensor]]) -> Tensor:
    """Assemble a tensor from `pieces`, each with the indices that it fills: a range per axis, as long as the piece's axis.

    Raises BadData if the pieces differ in dtype, because joining them would need a cast. Zeros take the stored dtype of the other
    pieces.
    """
    pieces = list(pieces)
    if len(pieces) == 1 and tuple(pieces[0][0]) == whole(shape):
        return pieces[0][1]
    if any(tensor.encodings for _, tensor in pieces):
        pieces = [(indices, tensor.widened()) for indices, tensor in pieces]
    dtypes = {tensor.dtype: tensor.name for _, tensor in pieces}
    stored = {tensor.stored_dtype: tensor.name for _, tensor in pieces if any(chunk.view for chunk in tensor.chunks)} or dtypes
    differing = stored if len(stored) > 1 else dtypes
    if len(differing) > 1:
        names = ", ".join(f"{differing[dtype]} is {dtype}" for dtype in sorted(differing))
        raise BadData(f"{name}: its pieces are stored as {' and '.join(sorted(differing))}: {names}", ONE_DTYPE)
    chunks = tuple(
        Chunk(
            shared_indices(
                tuple(outer[inner.start : inner.stop : inner.step] for outer, inner in zip(indices, chunk.indices, strict=True))
            ),
            chunk.view,
        )
        for indices, tensor in pieces
        for chunk in tensor.chunks
    )
    names = ", ".join(dict.fromkeys(tensor.name for _, tensor in pieces))
    (dtype,), (stored_dtype,) = dtypes, stored
    return Tensor(names, dtype, tuple(shape), chunks, stored_dtype)


def concatenate(name: str, axis: int, tensors: Sequence[Tensor]) -> Tensor:
    """The tensors one after the other along an axis."""
    pieces, end = [], 0
    for tensor in tensors:
        start, end = end, end + tensor.shape[axis]
        pieces.append((_replaced(tuple(map(range, tensor.shape)), axis, range(start, end)), tensor))
    return assemble(name, _replaced(tensors[0].shape, axis, end), pieces)


def row_major(shape: Sequence[int], item_bytes: int) -> tuple[int, ...]:
    """The strides in bytes of contiguous values."""
    return shared(tuple(item_bytes * math.prod(shape[axis + 1 :]) for axis in range(len(shape))))


def whole(shape: Sequence[int]) -> tuple[range, ...]:
    """Return the indices that cover a tensor with this shape."""
    return shared_indices(tuple(map(range, shape)))


@functools.lru_cache(maxsize=SHARED)
def shared(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """`sizes`, or the equal tuple that was given before."""
    return sizes


def shared_indices(indices: tuple[range, ...]) -> tuple[range, ...]:
    """Return the shared object for equal indices. Ranges with equal members are equal, and may differ in their steps."""
    return _shared_indices(indices, tuple((index.start, index.step) for index in indices))


@functools.lru_cache(maxsize=SHARED)
def _shared_indices(indices: tuple[range, ...], steps: tuple[tuple[int, int], ...]) -> tuple[range, ...]:
    return indices


def intersection(one: range, other: range) -> range:
    """The members that two ascending ranges share, ascending."""
    if one.step == 1 and other.step == 1:
        # Plans of many experts intersect millions of ranges: min and max would take a third of that time.
        start = one.start if one.start > other.start else other.start
        return range(start, one.stop if one.stop < other.stop else other.stop)
    step = math.lcm(one.step, other.step)
    first = max(one.start, other.start)
    begin = next((value for value in _aligned(one, first, step) if value in other), None)
    return range(0) if begin is None else range(begin, min(one[-1], other[-1]) + 1, step)


def _aligned(one: range, first: int, period: int) -> range:
    """The members of `one` in the `period` that starts at `first`."""
    begin = one.start + -(-(first - one.start) // one.step) * one.step
    return range(begin, min(begin + period, one.stop), one.step)


def sliced(view: View, indices: range, axis: int, common: range) -> View:
    """The subview at the tensor's indices `common`, where the view's axis holds the tensor's `indices`."""
    first = (common.start - indices.start) // indices.step
    step = max(1, common.step // indices.step)
    return View(
        view.file,
        view.offset_bytes + first * view.strides_bytes[axis],
        shared(_replaced(view.shape, axis, len(common))),
        shared(_replaced(view.strides_bytes, axis, view.strides_bytes[axis] * step)),
        view.encoding and view.encoding.sliced(axis, first, step),
    )


def _permuted(view: View, order: Sequence[int]) -> View:
    encoding = view.encoding and view.encoding.permuted(order)
    shape, strides_bytes = shared(_ordered(view.shape, order)), shared(_ordered(view.strides_bytes, order))
    return View(view.file, view.offset_bytes, shape, strides_bytes, encoding)


def _expanded(view: View, axes: int) -> View:
    encoding = view.encoding and view.encoding.expanded(axes)
    shape, strides_bytes = shared((1,) * axes + view.shape), shared((0,) * axes + view.strides_bytes)
    return View(view.file, view.offset_bytes, shape, strides_bytes, encoding)


def _squeezed(view: View, axes: int) -> View:
    encoding = view.encoding and view.encoding.squeezed(axes)
    return View(view.file, view.offset_bytes, shared(view.shape[axes:]), shared(view.strides_bytes[axes:]), encoding)


def _replaced(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _ordered(values: tuple[Any, ...], order: Sequence[int]) -> tuple[Any, ...]:
    return tuple(values[axis] for axis in order)


def _overlapping(chunks: Sequence[Chunk]) -> bool:
    """Whether two chunks share an index: each is compared with those that begin before it ends along the first axis."""
    if not chunks or not chunks[0].indices:
        return len(chunks) > 1
    ordered = sorted((chunk for chunk in chunks if all(chunk.indices)), key=lambda chunk: chunk.indices[0].start)
    for index, one in enumerate(ordered):
        for other in ordered[index + 1 :]:
            if other.indices[0].start > one.indices[0][-1]:
                break
            if all(intersection(mine, its) for mine, its in zip(one.indices, other.indices, strict=True)):
                return True
    return False
