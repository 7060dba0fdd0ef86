"""The MLP around the gated GEMMs, which need a Hopper GPU: here torch computes them."""

import pytest
import torch
from gemms_of_torch import gemm, gemm_gradient, swiglu

from lt_train.ops import fused_swiglu_mlp
from lt_train.ops.row_exchange import OneRank


@pytest.mark.parametrize("keeps_activation", [True, False])
def test_output_and_gradients(monkeypatch: pytest.MonkeyPatch, keeps_activation: bool) -> None:
    monkeypatch.setattr(fused_swiglu_mlp, "gated_gemm", gemm)
    monkeypatch.setattr(fused_swiglu_mlp, "gated_gemm_gradient", gemm_gradient)
    torch.manual_seed(0)
    rows, fc1, fc2 = (torch.randn(*shape, requires_grad=True) for shape in ((3, 2, 4), (12, 4), (4, 6)))
    weights = torch.randn(rows.shape)
    expected = swiglu(rows @ fc1.t()) @ fc2.t()
    gradients = torch.autograd.grad((expected * weights).sum(), (rows, fc1, fc2))

    for weight in (fc1, fc2):
        weight.main_grad = torch.ones_like(weight)
    output = fused_swiglu_mlp.gated_mlp(rows, fc1, fc2, OneRank(), keeps_activation=keeps_activation)
    (output * weights).sum().backward()
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(rows.grad, gradients[0])
    torch.testing.assert_close(fc1.main_grad, 1 + gradients[1])
    torch.testing.assert_close(fc2.main_grad, 1 + gradients[2])
    assert fc1.grad_added_to_main_grad
    assert fc2.grad_added_to_main_grad
