"""Splitting and rotating the fused projection, and the way back, against megatron-core's layout written out in torch."""

import pytest
import torch
from torch import Tensor

from lt_train.kernels.rotary import split_and_rotate

SEQUENCE, BATCH, SIZE = 5, 2, 8


def expected_parts(mixed: Tensor, angles: Tensor, groups: int, queries: int) -> tuple[Tensor, Tensor, Tensor]:
    heads = mixed.view(SEQUENCE, BATCH, groups, queries + 2, SIZE)
    both = torch.cat((angles, angles), -1)[:, None, None]

    def rotated(tensor: Tensor) -> Tensor:
        first, second = tensor.float().chunk(2, -1)
        return (tensor.float() * both.cos() + torch.cat((-second, first), -1) * both.sin()).to(tensor.dtype)

    query = heads[:, :, :, :queries].reshape(SEQUENCE, BATCH, groups * queries, SIZE)
    return rotated(query), rotated(heads[:, :, :, queries]), heads[:, :, :, queries + 1]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-2)])
@pytest.mark.parametrize(("groups", "queries"), [(2, 3), (3, 1), (1, 4)])
def test_parts_and_gradient(dtype: torch.dtype, tolerance: float, groups: int, queries: int) -> None:
    torch.manual_seed(0)
    mixed = torch.randn(SEQUENCE, BATCH, groups * (queries + 2) * SIZE, dtype=dtype, requires_grad=True)
    angles = torch.arange(SEQUENCE)[:, None] * torch.rand(SIZE // 2)
    parts = split_and_rotate(mixed, angles.cos(), angles.sin(), groups, SIZE)
    expected = expected_parts(mixed, angles, groups, queries)
    # As attention gives them back: with the batch first in memory.
    weights = [torch.randn_like(part.transpose(0, 1)).transpose(0, 1) for part in expected]
    (gradient,) = torch.autograd.grad(parts, mixed, weights)
    (expected_gradient,) = torch.autograd.grad(expected, mixed, weights)
    for part, expected_part in zip(parts, expected, strict=True):
        torch.testing.assert_close(part, expected_part, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(gradient, expected_gradient, atol=tolerance, rtol=tolerance)
