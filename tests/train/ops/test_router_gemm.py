"""A router's logits and gradients against float32. CPUs have no bfloat16 GEMM with a float32 result: it is written out here."""

from typing import Any

import pytest
import torch

from lt_train.ops.router_gemm import router_logits

ROWS, WIDTH, EXPERTS = 64, 96, 12


@pytest.fixture(autouse=True)
def float32_results(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.mm

    def mm(left: torch.Tensor, right: torch.Tensor, **options: Any) -> torch.Tensor:
        if options == {"out_dtype": torch.float32}:
            assert left.dtype == right.dtype == torch.bfloat16
            return original(left.float(), right.float())
        return original(left, right, **options)

    monkeypatch.setattr(torch, "mm", mm)


def test_logits_and_gradients() -> None:
    torch.manual_seed(0)
    rows = torch.randn(ROWS, WIDTH).bfloat16().requires_grad_()
    weight = torch.randn(EXPERTS, WIDTH).bfloat16().requires_grad_()
    slope = torch.randn(ROWS, EXPERTS)
    logits = router_logits(rows, weight)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, rows.float() @ weight.float().t())
    found = torch.autograd.grad(logits, (rows, weight), slope)
    expected = slope @ weight.float(), slope.t() @ rows.float()
    # Rounded once, to bfloat16's 8 bits: a gradient of 8 bits would have twice the error.
    for gradient, wanted in zip(found, expected, strict=True):
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(gradient, wanted.detach().bfloat16(), rtol=2**-7, atol=1e-3)


def test_a_gradient_keeps_more_than_bfloat16_has() -> None:
    """Two gradients that cancel but for a 2^-12 of them, as those of a token's probabilities do."""
    rows = torch.ones(2, 8, dtype=torch.bfloat16)
    weight = torch.ones(1, 8, dtype=torch.bfloat16, requires_grad=True)
    (gradient,) = torch.autograd.grad(router_logits(rows, weight), weight, torch.tensor([[1 + 2**-12], [-1.0]]))
    assert gradient.tolist() == [[2**-12] * 8]
