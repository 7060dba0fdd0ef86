"""The sum and its norm, and their gradients, against torch's operations."""

import pytest
import torch
from torch.nn.functional import rms_norm as torch_rms_norm

from lt_train.kernels import rms_norm as module
from lt_train.kernels.rms_norm import rms_norm


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 4e-2)])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("programs", [3, 1024])
def test_outputs_and_gradients(
    dtype: torch.dtype, tolerance: float, adds: bool, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROGRAMS", programs)
    torch.manual_seed(0)
    stream, addend = (torch.randn(5, 2, 100, dtype=dtype, requires_grad=True) for _ in range(2))
    weight = torch.randn(100, dtype=dtype, requires_grad=True)
    of_norm, of_total = torch.randn(5, 2, 100, dtype=dtype), torch.randn(5, 2, 100, dtype=dtype)
    inputs = [stream, weight, *([addend] if adds else [])]

    normed, total = rms_norm(stream, addend if adds else None, weight, 1e-5)
    gradients = torch.autograd.grad((normed * of_norm + total * of_total).sum(), inputs)
    expected_total = stream + addend if adds else stream
    expected = torch_rms_norm(expected_total, (100,), weight, 1e-5)
    expected_gradients = torch.autograd.grad((expected * of_norm + expected_total * of_total).sum(), inputs)

    torch.testing.assert_close(total, expected_total)
    torch.testing.assert_close(normed, expected, atol=tolerance, rtol=tolerance)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=tolerance, rtol=tolerance)


def test_one_output_alone() -> None:
    torch.manual_seed(0)
    stream, weight = torch.randn(5, 100, requires_grad=True), torch.randn(100, requires_grad=True)
    slope = torch.randn(5, 100)
    normed, total = rms_norm(stream, None, weight, 1e-5)
    expected = torch_rms_norm(stream, (100,), weight, 1e-5)
    for found, wanted in zip(
        torch.autograd.grad(normed, (stream, weight), slope, retain_graph=True),
        torch.autograd.grad(expected, (stream, weight), slope),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted, atol=3e-6, rtol=3e-6)
    of_stream, of_weight = torch.autograd.grad(total, (stream, weight), slope)
    assert torch.equal(of_stream, slope) and not of_weight.any()
