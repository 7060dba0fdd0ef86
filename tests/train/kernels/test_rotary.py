"""Splitting and rotating the fused projection, and the way back, against megatron-core's layout written out in torch."""

import pytest
import torch
from torch import Tensor

from lt_train.kernels import rotary
from lt_train.kernels.rotary import HeadNorms, split_and_rotate

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


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 6e-2)])
@pytest.mark.parametrize(("groups", "queries"), [(2, 3), (1, 4)])
def test_heads_are_normed_before_they_are_rotated(
    dtype: torch.dtype, tolerance: float, groups: int, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several tokens for a program of the backward pass."""
    monkeypatch.setattr(rotary, "PROGRAMS", 4)
    torch.manual_seed(0)
    mixed = torch.randn(SEQUENCE, BATCH, groups * (queries + 2) * SIZE, dtype=dtype, requires_grad=True)
    norms = [torch.rand(SIZE, dtype=dtype, requires_grad=True) for _ in range(2)]
    angles = torch.arange(SEQUENCE)[:, None] * torch.rand(SIZE // 2)
    epsilon = 0.1
    parts = split_and_rotate(mixed, angles.cos(), angles.sin(), groups, SIZE, HeadNorms(*norms, epsilon))
    query, key, value = mixed.view(SEQUENCE, BATCH, groups, queries + 2, SIZE).split([queries, 1, 1], dim=3)
    query, key = (
        torch.nn.functional.rms_norm(part.float(), (SIZE,), norm.float(), epsilon)
        for part, norm in zip((query, key), norms, strict=True)
    )
    normed = torch.cat((query, key, value.float()), dim=3).flatten(2)
    expected = [part.to(dtype) for part in expected_parts(normed, angles, groups, queries)]
    weights = [torch.randn_like(part.transpose(0, 1)).transpose(0, 1) for part in expected]
    gradients = torch.autograd.grad(parts, (mixed, *norms), weights)
    expected_gradients = torch.autograd.grad(expected, (mixed, *norms), weights)
    for part, expected_part in zip((*parts, *gradients), (*expected, *expected_gradients), strict=True):
        torch.testing.assert_close(part, expected_part, atol=tolerance * 4, rtol=tolerance)
