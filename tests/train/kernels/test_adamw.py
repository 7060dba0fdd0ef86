"""Steps against torch's AdamW, and a factor that is not finite."""

from typing import Any

import pytest
import torch

from lt_train.kernels import split_master_weights
from lt_train.kernels.adamw import BLOCK, adamw

SETTINGS: dict[str, Any] = {"rate": 1e-2, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "decay": 0.1}
ELEMENTS = 2 * BLOCK + 7


def state() -> list[torch.Tensor]:
    """A weight and its moments."""
    torch.manual_seed(0)
    return [torch.randn(ELEMENTS), torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)]


def split_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    upper, low_bits = torch.empty(ELEMENTS, dtype=torch.bfloat16), torch.empty(ELEMENTS, dtype=torch.int16)
    split_master_weights.split(weight, upper, low_bits)
    return upper, low_bits


@pytest.mark.parametrize("of_gradient", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("of_weight", [torch.float32, torch.bfloat16])
def test_steps(of_gradient: torch.dtype, of_weight: torch.dtype) -> None:
    whole, moment, square = state()
    weight, low_bits = split_weight(whole) if of_weight == torch.bfloat16 else (whole.clone(), None)
    parameter = torch.nn.Parameter(whole)
    optimizer = torch.optim.AdamW([parameter], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for count in range(1, 5):
        gradient = torch.randn(ELEMENTS).to(of_gradient)
        parameter.grad = gradient.float() * 0.5
        optimizer.step()
        adamw(weight, low_bits, moment, square, gradient, torch.tensor([0.5]), **SETTINGS, count=count)
    updated = weight if low_bits is None else split_master_weights.joined(weight, low_bits)
    torch.testing.assert_close(updated, parameter.detach(), atol=1e-6, rtol=1e-6)
    if low_bits is not None:
        # All but ties.
        assert (weight != updated.bfloat16()).sum() <= 2


def test_a_copy_in_16_bits_is_rounded_as_torch_does() -> None:
    """Also of numbers between two of these, of either sign, and of what is not finite."""
    weight, moment, square = state()
    weight[:6] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, -1 - 3 * 2**-8, float("inf"), float("nan")])
    before, rounded = weight.clone(), torch.zeros(ELEMENTS, dtype=torch.bfloat16)
    unchanged = {**SETTINGS, "rate": 0.0}
    adamw(weight, None, moment, square, torch.zeros(ELEMENTS), torch.ones(1), **unchanged, count=1, rounded=rounded)
    torch.testing.assert_close(weight, before, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(rounded, before.bfloat16(), equal_nan=True, rtol=0, atol=0)
    adamw(weight, None, moment, square, torch.randn(ELEMENTS), torch.ones(1), **SETTINGS, count=2, rounded=rounded)
    torch.testing.assert_close(rounded, weight.bfloat16(), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_a_factor_that_is_not_finite_changes_nothing(factor: float) -> None:
    whole, moment, square = state()
    tensors = [*split_weight(whole), moment, square]
    before = [tensor.clone() for tensor in tensors]
    adamw(*tensors, torch.randn(ELEMENTS), torch.tensor([factor]), **SETTINGS, count=1)
    assert all(map(torch.equal, tensors, before))


def test_a_weight_that_is_not_a_number_stays_so() -> None:
    whole, moment, square = state()
    whole[0] = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    weight, low_bits = split_weight(whole)
    adamw(weight, low_bits, moment, square, torch.randn(ELEMENTS), torch.ones(1), **SETTINGS, count=1)
    assert weight.isnan().nonzero().tolist() == [[0]]
