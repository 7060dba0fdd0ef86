"""Casts of 16-bit tensors to fp8, one scale for a tensor or for each of its rows: by Triton kernels or compiled functions."""

from typing import Protocol

import torch
from torch import Tensor

from lt_train.kernels import SMALLEST_AMAX
from lt_train.ops.row_exchange import Exchange

# Every linear layer has three shapes to cast; torch would fall back to uncompiled code after eight of them.
COMPILED_SHAPES = 64


class Casts(Protocol):
    """Casts 16-bit tensors to fp8; each result comes with its float32 inverse scale."""

    def amax(self, tensor: Tensor) -> Tensor | None:
        """What `cast` and `cast_transpose` both need to know of `tensor`."""
        ...

    def cast(self, tensor: Tensor, amax: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]: ...

    def cast_transpose(self, tensor: Tensor, amax: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Of the transpose."""
        ...

    def cast_and_transpose(self, tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...


class TritonCasts:
    """One scale a tensor, by the kernels of `lt_train.kernels.fp8`."""

    def __init__(self) -> None:
        from lt_train.kernels import amax_reduction, fp8, swiglu

        self._cast, self.transposed, self.find_amax = fp8.cast, fp8.transposed, amax_reduction.of
        self.swiglu, self.swiglu_gradient = swiglu.activation, swiglu.gradient_and_transpose
        amax_reduction.want(True)

    def amax(self, tensor: Tensor) -> Tensor:
        return self.find_amax(tensor)

    def amax_of_ranks(self, tensor: Tensor, exchange: Exchange) -> Tensor:
        """As `amax`, of all ranks' tensors."""
        # A copy: the numbers are kept with the tensor.
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


class TorchCasts:
    """A scale for each tensor or, `rowwise`, for each row, by compiled functions."""

    def __init__(self, rowwise: bool):
        self.rowwise = rowwise
        torch._dynamo.config.recompile_limit = COMPILED_SHAPES

    def amax(self, tensor: Tensor) -> None:
        """None: each compiled cast computes it with the same reading."""

    def cast(self, tensor: Tensor, amax: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return _cast_only(tensor, dtype, self.rowwise)

    def cast_transpose(self, tensor: Tensor, amax: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return _cast_transpose(tensor, dtype, self.rowwise)

    def cast_and_transpose(self, tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return _cast_and_transpose(tensor, dtype, self.rowwise)


def _scaled(tensor: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor]:
    """`tensor` in fp8, its amax scaled to the largest finite number, and the float32 inverse scale."""
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
    """`tensor` [a, b] and its transpose in fp8, one reading for both, each with its inverse scale."""
    cast, scale = _scaled(tensor, dtype, rowwise)
    transpose, transpose_scale = _scaled(tensor.t(), dtype, rowwise)
    return cast, scale, transpose.contiguous(), transpose_scale
