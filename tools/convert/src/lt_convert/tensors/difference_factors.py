"""The two factors of a difference between weights: its best approximation of a rank, by singular values.

The singular vectors of the smaller side are the eigenvectors of the difference times its transpose, summed in float64 over blocks
of rows; a second pass projects the difference on them. So memory is needed for one square matrix of the smaller side.
"""

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import numpy
from numpy.typing import NDArray

from lt_convert.tensors.blocks import TensorReader
from lt_convert.tensors.casts import cast
from lt_convert.tensors.merge_rules import rounded
from lt_convert.tensors.merged import read_values
from lt_convert.tensors.output_files import Payload
from lt_convert.tensors.tensor import Tensor

# Values in a block of rows.
BLOCK = 1 << 21

Matrix = NDArray[numpy.float64]


@dataclasses.dataclass(eq=False)
class Difference:
    """`tuned` minus `base`, two weights [out, in] with equal dtypes, as `B` [out, rank] times `A` [rank, in].

    The singular values are shared between both: each factor has their square roots.
    """

    tuned: Tensor
    base: Tensor
    rank: int
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    _factors: dict[str, Matrix] = dataclasses.field(default_factory=dict)

    def factor(self, letter: str, reader: TensorReader) -> Matrix:
        """The factor A or B. Both are computed for the first, and the other one is kept until it is asked for."""
        with self._lock:
            if letter not in self._factors:
                self._factors = self._computed(reader)
            return self._factors.pop(letter)

    def _computed(self, reader: TensorReader) -> dict[str, Matrix]:
        is_wide = self.tuned.shape[0] < self.tuned.shape[1]
        tuned, base = (self.tuned.transposed(), self.base.transposed()) if is_wide else (self.tuned, self.base)
        side = tuned.shape[1]
        gram: Matrix = numpy.zeros((side, side))
        for block in self._blocks(tuned, base, reader):
            gram += block.T @ block
        squares, vectors = numpy.linalg.eigh(gram)
        del gram
        # A rank above the side's is filled with zeros.
        missing = max(0, self.rank - side)
        roots = numpy.pad(numpy.sqrt(numpy.sqrt(numpy.maximum(squares[::-1][: self.rank], 0))), (0, missing))
        vectors = numpy.pad(vectors[:, ::-1][:, : self.rank], ((0, 0), (0, missing)))
        projected = numpy.concatenate([block @ vectors for block in self._blocks(tuned, base, reader)])
        projected = numpy.divide(projected, roots, out=numpy.zeros_like(projected), where=roots > 0)
        scaled = (vectors * roots).T
        return {"A": projected.T, "B": scaled.T} if is_wide else {"A": scaled, "B": projected}

    def _blocks(self, tuned: Tensor, base: Tensor, reader: TensorReader) -> Iterator[Matrix]:
        rows, columns = tuned.shape
        step = max(1, BLOCK // columns)
        for first in range(0, rows, step):
            start, stop = first * columns, min(first + step, rows) * columns
            difference = read_values(tuned, start, stop, reader) - read_values(base, start, stop, reader)
            yield rounded(difference, tuned.dtype).reshape(-1, columns).astype(numpy.float64)


@dataclasses.dataclass(frozen=True, slots=True)
class FactorPayload(Payload):
    """The factor `letter` of a difference; `tensor` has its dtype and shape."""

    difference: Difference
    letter: str

    @property
    def read(self) -> tuple[Tensor, ...]:
        return (self.difference.tuned, self.difference.base)

    def contents(self, reader: TensorReader) -> Iterator[memoryview]:
        values: Any = numpy.ascontiguousarray(self.difference.factor(self.letter, reader), numpy.float32)
        assert isinstance(self.tensor, Tensor)
        yield cast(values.view(numpy.uint32), "float32", self.tensor.dtype, self.name).reshape(-1).data.cast("B")
