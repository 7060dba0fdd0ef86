"""Casts of tensors of 16 bits to fp8, one scale for a tensor or for each of its rows: by kernels, or by compiled functions."""

from typing import Protocol

import torch
from torch import Tensor

from lt_train.kernels import SMALLEST_AMAX

# Every linear layer has three shapes to cast; torch would fall back to uncompiled code after eight of them.
COMPILED_SHAPES = 64


class Casts(Protocol):
    """Turns tensors of 16 bits into fp8 numbers and float32 factors that undo the scaling."""

    def largest(self, tensor: Tensor) -> Tensor | None:
        """What `straight` and `turned` both need to know of `tensor`."""
        ...

    def straight(self, tensor: Tensor, largest: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]: ...

    def turned(self, tensor: Tensor, largest: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Of the transpose."""
        ...

    def both(self, tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...


class TritonCasts:
    """One scale a tensor, by the kernels of `lt_train.kernels.fp8`."""

    def __init__(self) -> None:
        from lt_train.kernels import amax_reduction, fp8, swiglu

        self.cast, self.largest_of = fp8.cast, amax_reduction.of
        self.swiglu, self.swiglu_gradient = swiglu.activation, swiglu.gradient_and_transpose
        amax_reduction.want(True)

    def largest(self, tensor: Tensor) -> Tensor:
        return self.largest_of(tensor)

    def straight(self, tensor: Tensor, largest: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        cast, _, factor = self.cast(tensor, largest, dtype, True, False)
        return cast, factor

    def turned(self, tensor: Tensor, largest: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        _, turned, factor = self.cast(tensor, largest, dtype, False, True)
        return turned, factor

    def both(self, tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        cast, turned, factor = self.cast(tensor, None, dtype, True, True)
        return cast, factor, turned, factor


class TorchCasts:
    """A scale for each tensor or, `rowwise`, for each row, by compiled functions."""

    def __init__(self, rowwise: bool):
        self.rowwise = rowwise
        torch._dynamo.config.recompile_limit = COMPILED_SHAPES

    def largest(self, tensor: Tensor) -> None:
        """Compiled, each finds it with the same reading."""

    def straight(self, tensor: Tensor, largest: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return _straight(tensor, dtype, self.rowwise)

    def turned(self, tensor: Tensor, largest: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return _turned(tensor, dtype, self.rowwise)

    def both(self, tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return _both(tensor, dtype, self.rowwise)


def _scaled(tensor: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor]:
    """`tensor` in fp8, its largest value at the end of the range, and the float32 factor that undoes the scaling."""
    largest = torch.finfo(dtype).max
    size = tensor.abs()
    amax = (size.amax(dim=1, keepdim=True) if rowwise else size.amax()).float().clamp(min=SMALLEST_AMAX)
    return (tensor.float() * (largest / amax)).clamp(-largest, largest).to(dtype), amax / largest


@torch.compile(dynamic=False)
def _straight(tensor: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor]:
    return _scaled(tensor, dtype, rowwise)


@torch.compile(dynamic=False)
def _turned(tensor: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor]:
    cast, scale = _scaled(tensor.t(), dtype, rowwise)
    return cast.contiguous(), scale


@torch.compile(dynamic=False)
def _both(tensor: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`tensor` [a, b] and its transpose in fp8, one pass over the values for both, each with its scale."""
    cast, scale = _scaled(tensor, dtype, rowwise)
    turned, turned_scale = _scaled(tensor.t(), dtype, rowwise)
    return cast, scale, turned.contiguous(), turned_scale
