"""Sums over tensors of all sizes against float64."""

import pytest
import torch

from lt_train.kernels.l2_norm import BLOCK, BLOCKS, sum_of_squares

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sum(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    sizes = [0, 1, BLOCK - 1, BLOCK * BLOCKS, BLOCK * BLOCKS + 1, 3 * BLOCK]
    tensors = [torch.randn(size).to(dtype) for size in sizes]
    expected = sum(tensor.double().square().sum() for tensor in tensors)
    assert sum_of_squares(tensors, CPU).double().item() == pytest.approx(float(expected), rel=1e-6)


def test_nothing() -> None:
    assert sum_of_squares([], CPU).tolist() == [0]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_not_finite(wrong: float) -> None:
    assert not sum_of_squares([torch.ones(3), torch.tensor([1, wrong])], CPU).isfinite()
