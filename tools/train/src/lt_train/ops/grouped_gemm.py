"""Grouped GEMMs: rows are sorted by group, and the rows of a group are multiplied by the group's matrix. Experts use them.

`borders`, int32 [groups + 1], begin with 0: group g has the rows from `borders[g]` to `borders[g + 1]`, perhaps none. torch's
grouped kernel (`torch._grouped_mm`; bfloat16, compute capability 9.0 or higher, rows of whole 16 bytes) and quack's
(`lt_train.kernels.grouped_gemm_epilogues`) read the borders on the device: the host neither knows how many rows a group has nor
waits. Without such a kernel, every group is a GEMM, and on a GPU the host waits for the borders.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from lt_train.ops.deferred_gradients import compute_or_defer
from lt_train.ops.wgrad_accumulation import accumulates_in_gemm, add_or_overwrite, mark_gradient_added, overwrites

# A function that gathers the rows, called when the product is computed.
Rows = Callable[[], Tensor]

HOPPER = (9, 0)
# Numbers of 16 bits in 16 bytes.
ALIGNMENT = 8


def identity(rows: Tensor) -> Tensor:
    return rows


class GroupedGemms(Protocol):
    """The products of rows [m, ...] with matrices [groups, n, k], and the matrices' gradients."""

    def operand(self, rows: Tensor, gather: Callable[[Tensor], Tensor] = identity) -> Any:
        """Prepare `rows` [t, k] for `gated` and `times_transposed`. `gather` selects the m rows [m, k]."""
        ...

    def matrices(self, weight: Tensor) -> tuple[Any, Tensor | None]:
        """Prepare `weight` [groups, n, k] for `gated` and `times_transposed`. Also returns the scales for `times`."""
        ...

    def gated(self, rows: Any, matrices: Any, probabilities: Tensor, borders: Tensor) -> tuple[Tensor, Any] | None:
        """Multiply rows [m, k] by the transposes of `matrices`, and compute SwiGLU, gates first, times `probabilities` [m].

        Returns the product [m, n], and SwiGLU's output as an operand; or None if SwiGLU is a separate operation.
        """
        ...

    def times_transposed(self, rows: Any, matrices: Any, borders: Tensor) -> Tensor:
        """Multiply rows [m, k] by the transposes of `matrices`. Returns [m, n]."""
        ...

    def times(self, rows: Tensor, weight: Tensor, scales: Tensor | None, borders: Tensor) -> Tensor:
        """Multiply rows [m, n] by `weight`. Returns [m, k]. `scales` is the second result of `matrices`."""
        ...

    def weight_gradient(self, weight: Any, gradient: Tensor, rows: Rows, borders: Tensor) -> Tensor:
        """Compute the gradient that a backward pass returns for `weight`, from `gradient` [m, n] and a function for the rows.

        With gradient accumulation fusion (`accumulates_in_gemm`) the gradient is added to the weight's `main_grad`, now or
        later (`deferred_gradients`).
        """
        ...


class TorchGroupedGemms:
    def operand(self, rows: Tensor, gather: Callable[[Tensor], Tensor] = identity) -> Tensor:
        return gather(rows)

    def matrices(self, weight: Tensor) -> tuple[Tensor, None]:
        return weight, None

    def gated(self, rows: Tensor, matrices: Tensor, probabilities: Tensor, borders: Tensor) -> None:
        return None

    def times_transposed(self, rows: Tensor, matrices: Tensor, borders: Tensor) -> Tensor:
        return self.times(rows, matrices.transpose(1, 2), None, borders)

    def times(self, rows: Tensor, weight: Tensor, scales: Tensor | None, borders: Tensor) -> Tensor:
        if _in_one_kernel(rows, weight):
            return torch._grouped_mm(rows, weight, offs=borders[1:])
        result = rows.new_empty(len(rows), weight.shape[2])
        for group, (first, end) in enumerate(_groups(borders)):
            torch.mm(rows[first:end], weight[group], out=result[first:end])
        return result

    def weight_gradient(self, weight: Any, gradient: Tensor, rows: Rows, borders: Tensor) -> Tensor:
        if not accumulates_in_gemm(weight):
            return transposed_product(gradient, rows(), borders)
        compute_or_defer(weight.main_grad, partial(self._add, weight.main_grad, gradient, rows, borders))
        return mark_gradient_added(weight)

    @staticmethod
    def _add(buffer: Tensor, gradient: Tensor, rows: Rows, borders: Tensor) -> None:
        add_or_overwrite(transposed_product(gradient, rows(), borders), buffer)


class QuackGroupedGemms:
    """Grouped GEMMs by quack's kernels, for bfloat16 on a Hopper GPU."""

    def __init__(self) -> None:
        from lt_train.kernels import grouped_gemm_epilogues

        self._kernels = grouped_gemm_epilogues
        self.gated = grouped_gemm_epilogues.gated
        self.times_transposed = grouped_gemm_epilogues.times_transposed

    def operand(self, rows: Tensor, gather: Callable[[Tensor], Tensor] = identity) -> Tensor:
        return gather(rows)

    def matrices(self, weight: Tensor) -> tuple[Tensor, None]:
        return weight, None

    def times(self, rows: Tensor, weight: Tensor, scales: Tensor | None, borders: Tensor) -> Tensor:
        return self._kernels.times(rows, weight, borders)

    def weight_gradient(self, weight: Any, gradient: Tensor, rows: Rows, borders: Tensor) -> Tensor:
        if not accumulates_in_gemm(weight):
            result = torch.empty_like(weight)
            self._kernels.weight_gradient(gradient, rows(), borders, result, adds=False)
            return result
        compute_or_defer(weight.main_grad, partial(self._add, weight.main_grad, gradient, rows, borders))
        return mark_gradient_added(weight)

    def _add(self, buffer: Tensor, gradient: Tensor, rows: Rows, borders: Tensor) -> None:
        self._kernels.weight_gradient(gradient, rows(), borders, buffer, adds=not overwrites(buffer))


def transposed_product(gradient: Tensor, rows: Tensor, borders: Tensor) -> Tensor:
    """For every group, multiply the transpose of its rows of `gradient` [m, n] by its rows of `rows` [m, k]: [groups, n, k]."""
    if _in_one_kernel(gradient, rows):
        return torch._grouped_mm(gradient.t(), rows, offs=borders[1:])
    result = gradient.new_empty(len(borders) - 1, gradient.shape[1], rows.shape[1])
    for group, (first, end) in enumerate(_groups(borders)):
        torch.mm(gradient[first:end].t(), rows[first:end], out=result[group])
    return result


def _in_one_kernel(rows: Tensor, other: Tensor) -> bool:
    if not rows.is_cuda or rows.dtype != torch.bfloat16 or (rows.shape[1] | other.shape[-1]) % ALIGNMENT:
        return False
    return torch.cuda.get_device_capability(rows.device) >= HOPPER


def _groups(borders: Tensor) -> Iterator[tuple[int, int]]:
    first, *ends = borders.tolist()
    for end in ends:
        yield first, end
        first = end
