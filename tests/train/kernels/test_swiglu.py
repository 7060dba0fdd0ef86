"""SwiGLU and its gradient against torch's operations."""

import pytest
import torch
from torch.nn.functional import silu

from lt_train.kernels.swiglu import BLOCK, swiglu


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 4e-2)])
@pytest.mark.parametrize("width", [8, BLOCK + 3])
def test_output_and_gradient(dtype: torch.dtype, tolerance: float, width: int) -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(3, 2, 2 * width, dtype=dtype, requires_grad=True)
    weights = torch.randn(3, 2, width, dtype=dtype)
    output = swiglu(gate_up)
    (gradient,) = torch.autograd.grad((output * weights).sum(), gate_up)
    gate, up = gate_up.chunk(2, -1)
    expected = silu(gate) * up
    (expected_gradient,) = torch.autograd.grad((expected * weights).sum(), gate_up)
    torch.testing.assert_close(output, expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(gradient, expected_gradient, atol=tolerance, rtol=tolerance)
