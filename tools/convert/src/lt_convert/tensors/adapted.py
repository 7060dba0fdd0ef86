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

# Every window reads the right factor whole, so windows are large.
ADAPTED_WINDOW = 1 << 20


@dataclasses.dataclass(frozen=True)
class LowRank:
    """`scale` times `left` [rows, rank] times `right` [rank, columns], both cast to float32.

    PEFT keeps the factors of an embedding in the embedding's dtype, and rounds their product to it: `is_embedding`.
    """

    left: Tensor
    right: Tensor
    scale: float
    is_embedding: bool = False


@dataclasses.dataclass(eq=False, kw_only=True)
class AdaptedTensor(MergedTensor):
    """The only source plus `updates`, in their order."""

    updates: tuple[LowRank, ...]

    @property
    def read(self) -> tuple[Tensor, ...]:
        return (*self.sources, *(factor for update in self.updates for factor in (update.left, update.right)))

    @property
    def window(self) -> int:
        return max(super().window, ADAPTED_WINDOW)

    def values(self, start: int, stop: int, reader: TensorReader) -> Bits:
        total = read_values(self.sources[0], start, stop, reader)
        for update in self.updates:
            columns = update.right.shape[1]
            first_row, end_row = start // columns, -(-stop // columns)
            rank = update.right.shape[0]
            left = read_values(update.left, first_row * rank, end_row * rank, reader).reshape(-1, rank)
            right = read_values(update.right, 0, rank * columns, reader).reshape(rank, columns)
            if update.is_embedding:
                left, right = rounded(left, self.dtype), rounded(right, self.dtype)
            product = left @ right
            product *= numpy.float32(update.scale)
            if update.is_embedding:
                product = rounded(product, self.dtype)
            total += product.reshape(-1)[start - first_row * columns :][: stop - start]
            total = rounded(total, self.dtype)
        return cast(total.view(numpy.uint32), "float32", self.result_dtype, self.name)
