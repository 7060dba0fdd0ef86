"""Casts of numbers that fp8 holds exactly, for which rounding has no say: the interpreter's is not a GPU's."""

import pytest
import torch

from lt_train.kernels import amax_reduction
from lt_train.kernels.fp8 import cast, transpose_fp8


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("shape", [(3, 5), (130, 257)])
@pytest.mark.parametrize("size", [2.0**-20, 1.0, 2.0**20])
def test_cast_and_its_transpose(dtype: torch.dtype, shape: tuple[int, int], size: float) -> None:
    torch.manual_seed(0)
    exact = torch.randn(shape).to(dtype)
    exact[-1, -1] = torch.finfo(dtype).min
    tensor = (exact.float() * size).bfloat16()
    same, transpose, factor = cast(tensor, amax_reduction.compute_parts(tensor), dtype, True, True)
    assert factor == size
    assert torch.equal(same.float(), exact.float())
    assert torch.equal(transpose.float(), exact.float().t())


def test_zeros() -> None:
    tensor = torch.zeros(4, 4, dtype=torch.bfloat16)
    same, _, factor = cast(tensor, amax_reduction.compute_parts(tensor), torch.float8_e4m3fn, True, True)
    assert not same.float().any()
    assert factor.isfinite().all()


def test_what_is_not_asked_for_is_empty() -> None:
    tensor = torch.ones(4, 4, dtype=torch.bfloat16)
    same, transpose, _ = cast(tensor, amax_reduction.compute_parts(tensor), torch.float8_e4m3fn, False, True)
    assert (same.numel(), transpose.shape) == (0, (4, 4))


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_what_is_not_finite_shows_in_the_factor(number: float) -> None:
    tensor = torch.ones(4, 4, dtype=torch.bfloat16)
    tensor[2, 1] = number
    _, _, factor = cast(tensor, amax_reduction.compute_parts(tensor), torch.float8_e4m3fn, True, True)
    assert not factor.isfinite().any()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_transpose_has_the_same_numbers(dtype: torch.dtype) -> None:
    tensor = (torch.randn(130, 70) * 100).clamp(-448, 448).to(dtype)
    tensor[3, 5] = torch.finfo(dtype).max
    assert torch.equal(transpose_fp8(tensor).float(), tensor.float().t())
