"""Grouped GEMMs of experts in fp8, by torch's CUTLASS kernel for Hopper GPUs: the forward pass and the rows' gradients.

Every row has a scale, and in the forward pass every row of the matrices, too. All numbers are e4m3, because the kernel multiplies
no other format. A token is cast once and its fp8 numbers are gathered for its experts. The backward pass contracts over the
matrices' rows, so there a matrix has a single scale, the largest scale of its rows.

The weights' gradients, a third of the experts' work, stay in 16 bits: for that product the kernel needs a positive multiple of 16
rows for every expert. The matrices are cast in each pass, 6 bytes per weight in total, so experts with few rows are slower in
fp8 (`lt_train.config.kernel_obstacles.FP8_EXPERT_ROWS`).
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from lt_train.ops.fp8_gemm import Cast
from lt_train.ops.grouped_gemm import GroupedGemms, TorchGroupedGemms, identity

E4M3 = torch.float8_e4m3fn


class RowCasts(Protocol):
    """`lt_train.kernels.fp8_rows`."""

    def cast_rows(self, rows: Tensor, dtype: torch.dtype) -> Cast: ...

    def cast_swiglu(self, gate_up: Tensor, probabilities: Tensor, dtype: torch.dtype) -> Cast: ...

    def cast_transposes(self, matrices: Tensor, scales: Tensor, dtype: torch.dtype) -> Cast: ...


class Fp8GroupedGemms:
    def __init__(self, in_16_bits: GroupedGemms, casts: RowCasts):
        self.weight_gradient = in_16_bits.weight_gradient
        self._casts = casts

    def operand(self, rows: Tensor, gather: Callable[[Tensor], Tensor] = identity) -> Cast:
        numbers, factors = self._casts.cast_rows(rows, E4M3)
        return gather(numbers.view(torch.uint8)).view(E4M3), gather(factors)

    def matrices(self, weight: Tensor) -> tuple[Cast, Tensor]:
        numbers, factors = self._casts.cast_rows(weight.flatten(0, 1), E4M3)
        factors = factors.view(weight.shape[:2])
        return (numbers.view(weight.shape), factors), factors.amax(1)

    def gated(self, rows: Cast, matrices: Cast, probabilities: Tensor, borders: Tensor) -> tuple[Tensor, Cast]:
        gate_up = self.times_transposed(rows, matrices, borders)
        return gate_up, self._casts.cast_swiglu(gate_up, probabilities, E4M3)

    def times_transposed(self, rows: Cast, matrices: Cast, borders: Tensor) -> Tensor:
        return _multiply(rows, matrices, borders, fast=True)

    def times(self, rows: Tensor, weight: Tensor, scales: Tensor | None, borders: Tensor) -> Tensor:
        assert scales is not None
        transposes = self._casts.cast_transposes(weight, scales, E4M3)
        return _multiply(self._casts.cast_rows(rows, E4M3), transposes, borders, fast=False)


def _multiply(rows: Cast, matrices: Cast, borders: Tensor, fast: bool) -> Tensor:
    """Multiply `rows` [m, k] by the transposes of `matrices` [groups, n, k]. Returns bfloat16.

    On a CPU the operands are dequantized first. `fast` accumulates in too few bits for gradients.
    """
    numbers, factors = rows
    if not len(numbers):
        return factors.new_empty(0, matrices[0].shape[1], dtype=torch.bfloat16)
    if numbers.is_cuda:
        options: dict[str, Any] = {"offs": borders[1:], "out_dtype": torch.bfloat16, "use_fast_accum": fast}
        return torch._scaled_grouped_mm(numbers, matrices[0].transpose(1, 2), factors, matrices[1], **options)
    exact, weight = (cast.float() * scales.unsqueeze(-1) for cast, scales in (rows, matrices))
    return TorchGroupedGemms().times_transposed(exact, weight, borders).bfloat16()
