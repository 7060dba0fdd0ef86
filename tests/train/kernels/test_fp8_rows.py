"""Casts by rows of numbers that fp8 holds exactly, for which rounding has no say: the interpreter's is not a GPU's."""

import pytest
import torch

from lt_train.kernels.fp8_rows import cast_rows, cast_transposes

E4M3 = torch.float8_e4m3fn


@pytest.mark.parametrize("shape", [(3, 48), (5, 272)])
def test_rows_have_a_scale_each(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    numbers, scales = torch.randn(shape).to(E4M3).float(), 2.0 ** torch.arange(-8, shape[0] - 8).float()
    numbers[:, -1] = -448
    cast, factors = cast_rows((numbers * scales[:, None]).bfloat16(), E4M3)
    assert torch.equal(cast.float(), numbers)
    assert torch.equal(factors, scales)


def test_transposes_have_a_scale_for_each_column_of_their_matrix() -> None:
    torch.manual_seed(0)
    numbers, scales = torch.randn(2, 272, 80).to(E4M3).float(), 2.0 ** torch.randint(-8, 8, (2, 80)).float()
    numbers[:, 130] = 448
    cast, factors = cast_transposes((numbers * scales[:, None]).bfloat16(), E4M3)
    assert torch.equal(cast.float(), numbers.transpose(1, 2))
    assert torch.equal(factors, scales)


def test_no_rows_zeros_and_nan() -> None:
    assert [tensor.shape for tensor in cast_rows(torch.empty(0, 16, dtype=torch.bfloat16), E4M3)] == [(0, 16), (0,)]
    rows = torch.zeros(2, 16, dtype=torch.bfloat16)
    rows[1, 3] = torch.nan
    cast, factors = cast_rows(rows, E4M3)
    assert not cast[0].float().any() and factors.isnan().tolist() == [False, True]
