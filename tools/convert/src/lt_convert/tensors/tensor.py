"""Tensors as strided views of files: what a conversion does to them is arithmetic on positions, and no value is read.

A tensor is a shape and the parts it is made of; a part says which of the tensor's places it fills (a `range` per axis, with steps
where rows are interleaved) and where the values lie (a view: file, position and a stride per axis, as NumPy has them). Slicing,
transposing, stacking and interleaving give another such tensor, so any chain of operations costs nothing until a writer reads the
result block by block (`blocks`). Planning Llama 3 70B, 723 tensors in 50,000 parts, takes about a second.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, Self

from lt_shared.console import BadData

# Values travel as raw bits; the size is in bytes.
ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int64": 8, "int32": 4, "uint8": 1}
CASTABLE = ("float64", "float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """Values in `file`: the first at byte `position`, the neighbours along each axis `strides` bytes on."""

    file: str
    position: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """The values at the places `place` (one range per axis) of a tensor. Without a view they are zeros."""

    place: tuple[range, ...]
    view: View | None


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """`dtype` is what a reader of the tensor gets, `stored` what its parts hold; they differ only after `cast`.

    `name` is that of the stored tensors it comes from, for messages and plans.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    stored: str

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(part.view.file for part in self.parts if part.view))

    def cast(self, dtype: str) -> Self:
        """Its values as another dtype. Raises BadData where there is no such cast."""
        if dtype != self.stored and self.stored not in CASTABLE:
            raise BadData(
                f"{self.name}: is stored as {self.stored}, which is not cast to {dtype}", f"casts are of {', '.join(CASTABLE)}"
            )
        return dataclasses.replace(self, dtype=dtype)

    def named(self, name: str) -> Self:
        return dataclasses.replace(self, name=name)

    def take(self, axis: int, indices: range) -> Self:
        """The slices at `indices` (rising) along an axis: all of them exist, their number is the new size."""
        parts = []
        for part in self.parts:
            common = meet(part.place[axis], indices)
            if not common:
                continue
            place = range((common.start - indices.start) // indices.step, len(indices), max(1, common.step // indices.step))
            place = place[: len(common)]
            parts.append(
                Part(_replaced(part.place, axis, place), part.view and sliced(part.view, part.place[axis], axis, common))
            )
        return dataclasses.replace(self, shape=_replaced(self.shape, axis, len(indices)), parts=tuple(parts))

    def permuted(self, order: Sequence[int]) -> Self:
        """The axes in another order, as `numpy.transpose`."""
        parts = tuple(Part(_ordered(part.place, order), part.view and _permuted(part.view, order)) for part in self.parts)
        return dataclasses.replace(self, shape=_ordered(self.shape, order), parts=parts)

    def transposed(self) -> Self:
        return self.permuted(range(len(self.shape))[::-1])

    def expanded(self, axes: int) -> Self:
        """With `axes` axes of size 1 before the others."""
        parts = tuple(Part((range(1),) * axes + part.place, part.view and _expanded(part.view, axes)) for part in self.parts)
        return dataclasses.replace(self, shape=(1,) * axes + self.shape, parts=parts)

    def squeezed(self, axes: int) -> Self:
        """Without the first `axes` axes, which have size 1."""
        parts = tuple(Part(part.place[axes:], part.view and _squeezed(part.view, axes)) for part in self.parts)
        return dataclasses.replace(self, shape=self.shape[axes:], parts=parts)

    def at(self, *indices: int) -> Self:
        """The tensor at these indices of the first axes: one layer of a stack."""
        result = self
        for axis, index in enumerate(indices):
            result = result.take(axis, range(index, index + 1))
        return result.squeezed(len(indices))

    def check_cover(self) -> None:
        """Raises BadData unless the parts cover the tensor exactly once."""
        for part in self.parts:
            if any(places and places[-1] >= size for places, size in zip(part.place, self.shape, strict=True)):
                raise BadData(f"{self.name}: a chunk lies outside its shape {list(self.shape)}")
        covered = sum(math.prod(map(len, part.place)) for part in self.parts)
        if covered != math.prod(self.shape) or _overlapping(self.parts):
            raise BadData(f"{self.name}: its chunks do not cover its shape {list(self.shape)} exactly once")


def stored(
    name: str, dtype: str, shape: Sequence[int], chunks: Iterable[tuple[Sequence[int], Sequence[int], str, int]]
) -> Tensor:
    """A tensor in files: chunks of (offsets, sizes, file, position), each row-major. Raises BadData unless they cover it once."""
    parts = []
    for offsets, sizes, file, position in chunks:
        place = tuple(range(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))
        parts.append(Part(place, View(file, position, tuple(sizes), row_major(sizes, ITEM_BYTES[dtype]))))
    tensor = Tensor(name, dtype, tuple(shape), tuple(parts), dtype)
    tensor.check_cover()
    return tensor


def zeros(dtype: str, shape: Sequence[int]) -> Tensor:
    return Tensor("zeros", dtype, tuple(shape), (Part(tuple(map(range, shape)), None),), dtype)


def assemble(name: str, shape: Sequence[int], pieces: Iterable[tuple[Sequence[range], Tensor]]) -> Tensor:
    """A tensor of others, each at a place (a range per axis, as long as the piece's size there).

    Raises BadData when the pieces differ in dtype: joining them would need a cast. Zeros take the dtype that the others are
    stored in.
    """
    pieces = list(pieces)
    dtypes = sorted({tensor.dtype for _, tensor in pieces})
    held = sorted({tensor.stored for _, tensor in pieces if any(part.view for part in tensor.parts)}) or dtypes
    if len(dtypes) > 1 or len(held) > 1:
        raise BadData(
            f"{name}: its parts are stored as {' and '.join(held if len(held) > 1 else dtypes)}",
            "give all tensors one dtype first: lt-convert SRC --to hf --dtype bfloat16 -o DST",
        )
    parts = tuple(
        Part(
            tuple(outer[inner.start : inner.stop : inner.step] for outer, inner in zip(place, part.place, strict=True)), part.view
        )
        for place, tensor in pieces
        for part in tensor.parts
    )
    names = ", ".join(dict.fromkeys(tensor.name for _, tensor in pieces))
    return Tensor(names, dtypes[0], tuple(shape), parts, held[0])


def concatenate(name: str, axis: int, tensors: Sequence[Tensor]) -> Tensor:
    """The tensors one after the other along an axis."""
    pieces, end = [], 0
    for tensor in tensors:
        start, end = end, end + tensor.shape[axis]
        pieces.append((_replaced(tuple(map(range, tensor.shape)), axis, range(start, end)), tensor))
    return assemble(name, _replaced(tensors[0].shape, axis, end), pieces)


def row_major(shape: Sequence[int], item_bytes: int) -> tuple[int, ...]:
    """The strides in bytes of values that lie one after the other."""
    return tuple(item_bytes * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def meet(one: range, other: range) -> range:
    """What two rising ranges have in common, rising."""
    if one.step == 1 and other.step == 1:
        return range(max(one.start, other.start), min(one.stop, other.stop))
    step = math.lcm(one.step, other.step)
    first = max(one.start, other.start)
    begin = next((value for value in _aligned(one, first, step) if value in other), None)
    return range(0) if begin is None else range(begin, min(one[-1], other[-1]) + 1, step)


def _aligned(one: range, first: int, period: int) -> range:
    """The members of `one` from `first` on, one period long."""
    begin = one.start + -(-(first - one.start) // one.step) * one.step
    return range(begin, min(begin + period, one.stop), one.step)


def sliced(view: View, places: range, axis: int, common: range) -> View:
    """The part of a view at the places `common` of an axis that stands for `places`, which have all of them."""
    first = (common.start - places.start) // places.step
    step = max(1, common.step // places.step)
    return View(
        view.file,
        view.position + first * view.strides[axis],
        _replaced(view.shape, axis, len(common)),
        _replaced(view.strides, axis, view.strides[axis] * step),
    )


def _permuted(view: View, order: Sequence[int]) -> View:
    return View(view.file, view.position, _ordered(view.shape, order), _ordered(view.strides, order))


def _expanded(view: View, axes: int) -> View:
    return View(view.file, view.position, (1,) * axes + view.shape, (0,) * axes + view.strides)


def _squeezed(view: View, axes: int) -> View:
    return View(view.file, view.position, view.shape[axes:], view.strides[axes:])


def _replaced(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _ordered(values: tuple[Any, ...], order: Sequence[int]) -> tuple[Any, ...]:
    return tuple(values[axis] for axis in order)


def _overlapping(parts: Sequence[Part]) -> bool:
    """Whether two parts share a place: each is compared with those that begin before it ends along the first axis."""
    if not parts or not parts[0].place:
        return len(parts) > 1
    ordered = sorted((part for part in parts if all(part.place)), key=lambda part: part.place[0].start)
    for index, one in enumerate(ordered):
        for other in ordered[index + 1 :]:
            if other.place[0].start > one.place[0][-1]:
                break
            if all(meet(mine, its) for mine, its in zip(one.place, other.place, strict=True)):
                return True
    return False
