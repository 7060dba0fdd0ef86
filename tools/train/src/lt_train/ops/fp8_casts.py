"""Cast 16-bit tensors to fp8 with one scale per tensor, row or block, by Triton kernels or compiled functions."""

import dataclasses
from typing import Protocol

import torch
from torch import Tensor

from lt_train.kernels import FP8_BLOCK, SMALLEST_AMAX
from lt_train.ops import fp8_gemm
from lt_train.ops.fp8_gemm import Cast
from lt_train.ops.row_exchange import Exchange

# A linear layer casts tensors of three shapes. After eight shapes, torch would fall back to uncompiled code.
COMPILED_SHAPES = 64


class Casts(Protocol):
    """Casts 16-bit tensors to fp8. Every cast has float32 inverse scales; `amax` is the result of the method `amax`.

    A weight's scales may have another shape than the scales of its other operand. `multiply` is the matching product of
    `lt_train.ops.fp8_gemm`; `writes_float32`: its output may be float32.
    """

    writes_float32: bool
    multiply: fp8_gemm.Product

    def amax(self, tensor: Tensor) -> Tensor | None:
        """Compute the amax that `cast` and `cast_transpose` of `tensor` share; None if they do not need it."""
        ...

    def cast(self, tensor: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast: ...

    def cast_transpose(self, tensor: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast:
        """Cast the transpose of `tensor`."""
        ...

    def cast_and_transpose(self, tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

    def cast_weight(self, weight: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast: ...

    def cast_weight_transpose(self, weight: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast: ...


class SwigluCasts(Casts, Protocol):
    """Casts that can compute SwiGLU of rows [m, 2 n], gates first, together with the cast of SwiGLU's output."""

    def cast_swiglu(self, gate_up: Tensor, dtype: torch.dtype) -> tuple[Cast, Tensor | None]:
        """Return the output in fp8 and the values that `swiglu_gradient` needs."""
        ...

    def swiglu_gradient(
        self, gradient: Tensor, gate_up: Tensor, amax: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradient of `gate_up`, the transpose of SwiGLU's output in fp8, and the scales of the transpose."""
        ...


def choose(recipe: str, by_triton: bool) -> Casts:
    if recipe == "blockwise":
        return TritonBlockCasts() if by_triton else TorchBlockCasts()
    return TritonCasts() if by_triton else TorchCasts(recipe == "rowwise")


class TritonCasts:
    """One scale per tensor, by the kernels of `lt_train.kernels.fp8`."""

    writes_float32 = True
    multiply = staticmethod(fp8_gemm.multiply)

    def __init__(self, kernels_write_amax: bool = True) -> None:
        """`kernels_write_amax`: the kernels that write a tensor compute its amax (`lt_train.kernels.amax_reduction`)."""
        from lt_train.kernels import amax_reduction, fp8, swiglu

        self._cast, self.transposed, self.find_amax = fp8.cast, fp8.transpose_fp8, amax_reduction.amax_parts
        self._swiglu, self._swiglu_gradient = swiglu.activation, swiglu.gradient_and_transpose
        amax_reduction.enable(kernels_write_amax)

    def amax(self, tensor: Tensor) -> Tensor:
        return self.find_amax(tensor)

    def amax_of_ranks(self, tensor: Tensor, exchange: Exchange) -> Tensor:
        """Return the largest `amax` over the ranks."""
        # A copy, because the partial maxima are an attribute of the tensor's storage.
        parts = self.find_amax(tensor).clone()
        if exchange.group is not None:
            torch.distributed.all_reduce(parts, torch.distributed.ReduceOp.MAX, group=exchange.group)
        return parts

    def cast(self, tensor: Tensor, amax: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        cast, _, factor = self._cast(tensor, amax, dtype, True, False)
        return cast, factor

    def cast_transpose(self, tensor: Tensor, amax: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        _, transpose, factor = self._cast(tensor, amax, dtype, False, True)
        return transpose, factor

    def cast_and_transpose(self, tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        cast, transpose, factor = self._cast(tensor, None, dtype, True, True)
        return cast, factor, transpose, factor

    def cast_weight(self, weight: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast:
        return self.cast(weight, amax, dtype)

    def cast_weight_transpose(self, weight: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast:
        return self.cast_transpose(weight, amax, dtype)

    def cast_swiglu(self, gate_up: Tensor, dtype: torch.dtype) -> tuple[Cast, Tensor]:
        activation = self._swiglu(gate_up)
        amax = self.amax(activation)
        return self.cast(activation, amax, dtype), amax

    def swiglu_gradient(
        self, gradient: Tensor, gate_up: Tensor, amax: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert amax is not None
        return self._swiglu_gradient(gradient, gate_up, amax, dtype)


@dataclasses.dataclass(frozen=True)
class Fp8Output:
    """The settings of an output layer in fp8 (`lt_train.ops.fp8_linear_cross_entropy`).

    `casts_logits`: the logits are a product in fp8, not only the two GEMMs of the backward pass. `fast` accumulates logits in
    fewer bits than float32, as the other layers' forward pass does.
    """

    casts: TritonCasts
    casts_logits: bool
    fast: bool = True


class TritonBlockCasts:
    """One scale per block, by the kernels of `lt_train.kernels.fp8_blocks`."""

    writes_float32 = True
    multiply = staticmethod(fp8_gemm.multiply_blocks)

    def __init__(self) -> None:
        from lt_train.kernels import amax_reduction, fp8_blocks

        self._kernels = fp8_blocks
        amax_reduction.enable(False)

    def amax(self, tensor: Tensor) -> None:
        """Return None, because the scales of a tile depend on the tile alone."""

    def cast(self, tensor: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast:
        return self._kernels.cast(tensor, dtype, True, False)[:2]

    def cast_transpose(self, tensor: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast:
        return self._kernels.cast(tensor, dtype, False, True)[2:]

    def cast_and_transpose(self, tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self._kernels.cast(tensor, dtype, True, True)

    def cast_weight(self, weight: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast:
        return self._kernels.cast_weight(weight, dtype, False, fp8_gemm.repeats_scales(weight.shape[1]))

    def cast_weight_transpose(self, weight: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast:
        return self._kernels.cast_weight(weight, dtype, True, fp8_gemm.repeats_scales(weight.shape[0]))

    def cast_swiglu(self, gate_up: Tensor, dtype: torch.dtype) -> tuple[Cast, None]:
        return self._kernels.swiglu(gate_up, dtype), None

    def swiglu_gradient(
        self, gradient: Tensor, gate_up: Tensor, amax: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self._kernels.swiglu_gradient(gradient, gate_up, dtype)


class TorchCasts:
    """One scale per tensor or, `rowwise`, per row, by compiled functions."""

    multiply = staticmethod(fp8_gemm.multiply)

    def __init__(self, rowwise: bool):
        self.rowwise = rowwise
        # torch's GEMMs with row scales write 16-bit outputs only.
        self.writes_float32 = not rowwise
        torch._dynamo.config.recompile_limit = COMPILED_SHAPES

    def amax(self, tensor: Tensor) -> None:
        """None: each compiled cast computes it with the same reading."""

    def cast(self, tensor: Tensor, amax: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return _cast_only(tensor, dtype, self.rowwise)

    def cast_transpose(self, tensor: Tensor, amax: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return _cast_transpose(tensor, dtype, self.rowwise)

    def cast_and_transpose(self, tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return _cast_and_transpose(tensor, dtype, self.rowwise)

    def cast_weight(self, weight: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast:
        return self.cast(weight, amax, dtype)

    def cast_weight_transpose(self, weight: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast:
        return self.cast_transpose(weight, amax, dtype)


class TorchBlockCasts:
    """One scale per block, by compiled functions."""

    writes_float32 = True
    multiply = staticmethod(fp8_gemm.multiply_blocks)

    def __init__(self) -> None:
        torch._dynamo.config.recompile_limit = COMPILED_SHAPES

    def amax(self, tensor: Tensor) -> None:
        """None: each compiled cast computes it with the same reading."""

    def cast(self, tensor: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast:
        return _cast_rows(tensor, dtype, False)

    def cast_transpose(self, tensor: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast:
        return _cast_rows(tensor, dtype, True)

    def cast_and_transpose(self, tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return _cast_rows_and_columns(tensor, dtype)

    def cast_weight(self, weight: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast:
        return _cast_blocks(weight, dtype, False, fp8_gemm.repeats_scales(weight.shape[1]))

    def cast_weight_transpose(self, weight: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Cast:
        return _cast_blocks(weight, dtype, True, fp8_gemm.repeats_scales(weight.shape[0]))


def _scaled(tensor: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor]:
    """Cast `tensor` to fp8, its amax scaled to the largest finite number. Returns the float32 inverse scale, too."""
    finite_max = torch.finfo(dtype).max
    size = tensor.abs()
    amax = (size.amax(dim=1, keepdim=True) if rowwise else size.amax()).float().clamp(min=SMALLEST_AMAX)
    return (tensor.float() * (finite_max / amax)).clamp(-finite_max, finite_max).to(dtype), amax / finite_max


@torch.compile(dynamic=False)
def _cast_only(tensor: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor]:
    return _scaled(tensor, dtype, rowwise)


@torch.compile(dynamic=False)
def _cast_transpose(tensor: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor]:
    cast, scale = _scaled(tensor.t(), dtype, rowwise)
    return cast.contiguous(), scale


@torch.compile(dynamic=False)
def _cast_and_transpose(tensor: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cast `tensor` [a, b] and its transpose in a single reading. Returns cast, inverse scale, transpose, inverse scale."""
    cast, scale = _scaled(tensor, dtype, rowwise)
    transpose, transpose_scale = _scaled(tensor.t(), dtype, rowwise)
    return cast, scale, transpose.contiguous(), transpose_scale


def _by_amax(values: Tensor, amax: Tensor, dtype: torch.dtype) -> Cast:
    finite_max = torch.finfo(dtype).max
    amax = amax.clamp(min=SMALLEST_AMAX)
    return (values * (finite_max / amax)).clamp(-finite_max, finite_max).to(dtype), amax / finite_max


def _row_blocks(tensor: Tensor, dtype: torch.dtype) -> Cast:
    """Cast `tensor` [m, n]. Returns the inverse scales, too, [m, n / 128], the first dimension innermost."""
    blocks = tensor.float().view(len(tensor), -1, FP8_BLOCK)
    cast, factors = _by_amax(blocks, blocks.abs().amax(2, keepdim=True), dtype)
    return cast.flatten(1), factors.squeeze(2).t().contiguous().t()


@torch.compile(dynamic=False)
def _cast_rows(tensor: Tensor, dtype: torch.dtype, transposed: bool) -> Cast:
    return _row_blocks(tensor.t().contiguous() if transposed else tensor, dtype)


@torch.compile(dynamic=False)
def _cast_rows_and_columns(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return *_row_blocks(tensor, dtype), *_row_blocks(tensor.t().contiguous(), dtype)


@torch.compile(dynamic=False)
def _cast_blocks(weight: Tensor, dtype: torch.dtype, transposed: bool, repeats: bool) -> Cast:
    rows, columns = weight.shape[::-1] if transposed else weight.shape
    numbers = (weight.t() if transposed else weight).float()
    blocks = numbers.reshape(rows // FP8_BLOCK, FP8_BLOCK, columns // FP8_BLOCK, FP8_BLOCK)
    cast, factors = _by_amax(blocks, blocks.abs().amax((1, 3), keepdim=True), dtype)
    factors = factors.squeeze(3).squeeze(1)
    if repeats:
        factors = factors.t().repeat_interleave(FP8_BLOCK, 1).contiguous().t()
    return cast.reshape(rows, columns), factors if repeats else factors.contiguous()
