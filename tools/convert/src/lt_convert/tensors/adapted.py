"""A weight with low-rank updates added: the product of two small matrices for each, computed row by row.

The arithmetic is PEFT's on a CPU: products are float32, are scaled, and are added to the weight, which is rounded to its dtype
after each update. The order of the sums in a product is BLAS's, so a value may differ from PEFT's in its last bit.
"""

import dataclasses

import numpy

from lt_convert.tensors.blocks import Bits, TensorReader
from lt_convert.tensors.casts import cast
from lt_convert.tensors.merge_rules import rounded
from lt_convert.tensors.merged import MergedTensor, read_values
from lt_convert.tensors.tensor import Tensor

# Every window reads the inner factor whole, so windows are large.
ADAPTED_WINDOW = 1 << 20


@dataclasses.dataclass(frozen=True)
class LowRank:
    """`scale` times `outer` [rows, rank] times `inner` [rank, columns], both cast to float32.

    PEFT rounds the product to the weight's dtype before it adds it to an embedding: `is_embedding`.
    """

    outer: Tensor
    inner: Tensor
    scale: float
    is_embedding: bool = False


@dataclasses.dataclass(eq=False, kw_only=True)
class AdaptedTensor(MergedTensor):
    """The only source plus `updates`, in their order."""

    updates: tuple[LowRank, ...]

    @property
    def read(self) -> tuple[Tensor, ...]:
        return (*self.sources, *(factor for update in self.updates for factor in (update.outer, update.inner)))

    @property
    def window(self) -> int:
        return max(super().window, ADAPTED_WINDOW)

    def values(self, start: int, stop: int, reader: TensorReader) -> Bits:
        total = read_values(self.sources[0], start, stop, reader)
        for update in self.updates:
            columns = update.inner.shape[1]
            first_row, end_row = start // columns, -(-stop // columns)
            rank = update.inner.shape[0]
            outer = read_values(update.outer, first_row * rank, end_row * rank, reader).reshape(-1, rank)
            inner = read_values(update.inner, 0, rank * columns, reader).reshape(rank, columns)
            product = outer @ inner
            product *= numpy.float32(update.scale)
            if update.is_embedding:
                product = rounded(product, self.dtype)
            total += product.reshape(-1)[start - first_row * columns :][: stop - start]
            total = rounded(total, self.dtype)
        return cast(total.view(numpy.uint32), "float32", self.result_dtype, self.name)
