"""Steps against torch's AdamW, and a factor that is not finite."""

from typing import Any

import pytest
import torch

from lt_train.kernels.adamw import BLOCK, adamw

SETTINGS: dict[str, Any] = {"rate": 1e-2, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "decay": 0.1}
ELEMENTS = 2 * BLOCK + 7


def state() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(ELEMENTS), torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps(dtype: torch.dtype) -> None:
    master, moment, square = state()
    weight = torch.empty(ELEMENTS, dtype=torch.bfloat16)
    parameter = torch.nn.Parameter(master.clone())
    optimizer = torch.optim.AdamW([parameter], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for count in range(1, 5):
        gradient = torch.randn(ELEMENTS).to(dtype)
        parameter.grad = gradient.float() * 0.5
        optimizer.step()
        adamw(master, moment, square, gradient, weight, torch.tensor([0.5]), **SETTINGS, count=count)
    torch.testing.assert_close(master, parameter.detach(), atol=1e-6, rtol=1e-6)
    # A GPU rounds to the nearest; the interpreter cuts off.
    torch.testing.assert_close(weight.float(), master, atol=0, rtol=2**-7)


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_a_factor_that_is_not_finite_changes_nothing(factor: float) -> None:
    tensors = [*state(), torch.ones(ELEMENTS)]
    before = [tensor.clone() for tensor in tensors]
    gradient = torch.randn(ELEMENTS)
    master, moment, square, weight = tensors
    adamw(master, moment, square, gradient, weight, torch.tensor([factor]), **SETTINGS, count=1)
    assert all(map(torch.equal, tensors, before))
