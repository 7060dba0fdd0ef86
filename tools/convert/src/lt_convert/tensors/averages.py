"""Weighted averages of tensors, computed block by block while they are written.

An average is elementwise, so it commutes with all that a conversion does to a tensor: slices, permutations, transposes. Each
source is therefore planned as if it alone were converted, and the average is taken of what would be written.

The products are summed in fp64. So the average in fp32 is the one nearest to the exact one, and an average of equal checkpoints
is that checkpoint. It is rounded once more if the result has another dtype. When the sums were in fp32, two bf16 values in a
thousand were rounded to the wrong side of a tie, and the result depended on the order of the checkpoints.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy

from lt_convert.tensors.blocks import Bits, TensorReader, parts, row_blocks
from lt_convert.tensors.casts import cast
from lt_convert.tensors.output_files import Payload
from lt_convert.tensors.tensor import Tensor


@dataclasses.dataclass(frozen=True)
class Average(Payload):
    """The average of the `terms`, tensors with weights that sum to 1; `tensor` is a term in the dtype of the result."""

    terms: tuple[tuple[float, Tensor], ...]

    @property
    def read(self) -> tuple[Tensor, ...]:
        return tuple(tensor for _, tensor in self.terms)

    def contents(self, reader: TensorReader) -> Iterator[memoryview]:
        weights = [weight for weight, _ in self.terms]
        for tensors in parts(*(tensor.cast("float32") for tensor in self.read)):
            for start, stop in row_blocks(*tensors):
                bits = _summed(weights, tensors, start, stop, reader)
                result = bits if self.tensor.dtype == "float32" else cast(bits, "float32", self.tensor.dtype, self.name)
                yield result.reshape(-1).data.cast("B")


def _summed(weights: Sequence[float], tensors: Sequence[Tensor], start: int, stop: int, reader: TensorReader) -> Bits:
    """The float32 bits of rows of a weighted sum."""
    total: Bits = numpy.zeros((stop - start, *tensors[0].shape[1:]))
    # A value that is not finite in a checkpoint is not finite in the average. That is no reason for a warning.
    with numpy.errstate(over="ignore", invalid="ignore"):
        for weight, tensor in zip(weights, tensors, strict=True):
            # Not in one call: NumPy would cast it in small pieces, which takes longer.
            product = reader.rows(tensor, start, stop).view(numpy.float32).astype(numpy.float64)
            product *= weight
            total += product
        result: Bits = total.astype(numpy.float32).view(numpy.uint32)
    return result
