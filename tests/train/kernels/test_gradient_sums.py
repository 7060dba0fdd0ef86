"""Sums of gradients' parts, in float32."""

import pytest
import torch

from lt_train.kernels.gradient_sums import BLOCK, sum_parts
from lt_train.parallel.gradient_sums import sum_by_torch


@pytest.mark.parametrize("add_up", [sum_parts, sum_by_torch])
@pytest.mark.parametrize("ranks", [2, 4])
def test_numbers_of_16_bits_are_summed_in_32(add_up: object, ranks: int) -> None:
    torch.manual_seed(0)
    parts = torch.randn(ranks, BLOCK + 3).bfloat16()
    out = torch.empty(BLOCK + 3)
    add_up(out, parts[0], parts[1:], 1 / ranks)  # type: ignore[operator]
    torch.testing.assert_close(out, parts.double().mean(0).float(), rtol=1e-6, atol=1e-7)


def test_of_nothing() -> None:
    sum_parts(torch.empty(0), torch.empty(0), torch.empty(1, 0), 1.0)
