"""The loss fused with the output layer's GEMM, which needs a Hopper GPU: here torch computes the GEMM."""

from pathlib import Path

import pytest
import torch
from loss_training import FUSED, exponential_gemm, train
from torch.nn.functional import cross_entropy

from lt_train.ops import fused_linear_cross_entropy
from lt_train.ops.row_exchange import OneRank

ROWS, WIDTH, COLUMNS = 12, 64, 256


@pytest.fixture(autouse=True)
def gemm_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_linear_cross_entropy, "exponential_gemm", exponential_gemm)


def output_losses(rows: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return fused_linear_cross_entropy.output_losses(rows, weight, labels, OneRank(), COLUMNS)


def case(scale: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, a weight with its buffer, labels, and weights of the losses, of which one is 0."""
    torch.manual_seed(0)
    rows = (torch.randn(ROWS, WIDTH) * scale).to(dtype).requires_grad_()
    weight = torch.nn.Parameter((torch.randn(COLUMNS, WIDTH) * 0.3).to(dtype))
    weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)
    weights = torch.rand(ROWS)
    weights[3] = 0
    return rows, weight, torch.randint(0, COLUMNS, (ROWS,)), weights


@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_losses_and_gradients(scale: float, dtype: torch.dtype, tolerance: float) -> None:
    """Up to a loss of 115 for a token."""
    rows, weight, labels, weights = case(scale, dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in (rows, weight)]
    expected = cross_entropy(exact[0] @ exact[1].t(), labels, reduction="none")
    (expected * weights).sum().backward()
    losses = output_losses(rows, weight, labels)
    (losses * weights).sum().backward()
    assert losses.max() > (100 if scale == 10 else 0)
    torch.testing.assert_close(losses, expected.float(), atol=1e-5, rtol=1e-6)
    for found, wanted in ((rows.grad, exact[0].grad), (weight.main_grad, exact[1].grad)):
        torch.testing.assert_close(found.double(), wanted, atol=tolerance * float(wanted.abs().max()), rtol=0)
    assert not rows.grad[3].any()
    assert weight.grad_added_to_main_grad


def test_a_label_that_is_nearly_certain() -> None:
    """Its logit is computed twice, in two orders: no loss is negative for that."""
    rows, weight, labels, _ = case(1.0, torch.float32)
    with torch.no_grad():
        rows.copy_(weight[labels] * 4)
    expected = cross_entropy((rows.double() @ weight.double().t()), labels, reduction="none")
    found = output_losses(rows, weight, labels)
    assert expected.max() < 1e-4
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=0)
    assert found.min() >= 0


def test_small_losses_are_precise(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = torch.tensor([1e-6, 1e-5, 1e-4], dtype=torch.float64)
    sums = (expected.exp() * 2.0**-fused_linear_cross_entropy.ROOM).float()
    monkeypatch.setattr(fused_linear_cross_entropy, "exponential_gemm", lambda *_: (torch.ones(3, COLUMNS), sums))
    rows, weight, labels, _ = case(1.0, torch.float32)
    found = output_losses(rows[:3], weight, labels[:3])
    torch.testing.assert_close(found.double(), expected, atol=1.2e-7, rtol=0)


@pytest.mark.parametrize("lead", [23.0, -119.0], ids=["others at 2^-33 of the label", "a loss of 124.5"])
def test_the_ends_of_the_range(lead: float) -> None:
    """`lead` is that of the label's logit before all others."""
    rows = torch.full((2, 8), lead / 8).bfloat16().requires_grad_()
    weight = torch.nn.Parameter(torch.zeros(COLUMNS, 8).bfloat16())
    weight.data[7] = 1
    weight.main_grad = torch.zeros(COLUMNS, 8)
    labels = torch.full((2,), 7)
    exact = [tensor.detach().double().requires_grad_() for tensor in (rows, weight)]
    expected = cross_entropy(exact[0] @ exact[1].t(), labels, reduction="none")
    (expected.sum() * 2**-20).backward()
    losses = output_losses(rows, weight, labels)
    (losses.sum() * 2**-20).backward()
    torch.testing.assert_close(losses.double(), expected, atol=1.2e-7, rtol=1e-6)
    others = torch.arange(COLUMNS) != 7
    torch.testing.assert_close(weight.main_grad[others].double(), exact[1].grad[others], rtol=2e-2, atol=0)
    torch.testing.assert_close(rows.grad.double(), exact[0].grad, rtol=2e-2, atol=1e-12)


def test_weights_keep_their_attributes_under_hooks() -> None:
    rows, weight, labels, _ = case(1.0, torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        losses = output_losses(rows, weight, labels)
    losses.sum().backward()
    assert weight.main_grad.any()


@pytest.mark.parametrize("scale", [11.0, 60.0])
def test_what_exponentials_cannot_hold_is_not_finite(scale: float) -> None:
    """Also from 126 nats on, where only the gradients of small losses would be lost."""
    rows, weight, labels, weights = case(scale, torch.bfloat16)
    losses = output_losses(rows, weight, labels)
    (losses * weights).sum().backward()
    assert losses.isinf().any()
    assert not weight.main_grad.isfinite().all()


@pytest.mark.parametrize("is_read", [True, False])
def test_a_gradient_that_is_read_is_zero(is_read: bool) -> None:
    """megatron-core adds that of a tied embedding to it."""
    rows, weight, labels, _ = case(1.0, torch.float32)
    weight.zero_out_wgrad = is_read
    output_losses(rows, weight, labels).sum().backward()
    assert weight.main_grad.any()
    assert not is_read or not weight.grad.any()


def test_training(tmp_path: Path) -> None:
    """Beside torch's loss: steps of two micro batches, evaluations, the gradients' norms."""
    untied = ("--untie-embeddings-and-output-weights",)
    ways = {
        "tied": (),
        "tied, deterministic": ("--bf16", "--grad-reduce-in-bf16", "--deterministic-mode"),
        "untied, in 16 bits": (*untied, "--bf16", "--grad-reduce-in-bf16"),
        "untied, with padding": (*untied, "--vocab-size", "100"),
        "untied, masked": (*untied, "--bf16", "--accumulate-allreduce-grads-in-fp32", "--eod-mask-loss"),
    }
    runs = {f"{name}{way}": (way, *options) for name, options in ways.items() for way in ("", FUSED)}
    found = train(tmp_path, runs)
    for name in ways:
        tolerance = 2e-2 if "--bf16" in ways[name] else 5e-6
        (losses, norms, gemms), (expected_losses, expected_norms, none) = found[name + FUSED], found[name]
        assert losses == pytest.approx(expected_losses, abs=tolerance), name
        assert norms == pytest.approx(expected_norms, rel=tolerance), name
        # Two steps and two evaluations of two micro batches each.
        assert (gemms, none) == (8, 0)


def test_many_steps(tmp_path: Path) -> None:
    """Beside torch's own operations, in float32."""
    steps = ("--train-iters", "16", "--eval-iters", "0", "--global-batch-size", "1", "--lr", "3e-3")
    runs = {"plain": ("", *steps, "--kernels", "torch"), "fused": (FUSED, *steps)}
    found = train(tmp_path, runs)
    (losses, _, gemms), (expected, _, _) = found["fused"], found["plain"]
    # Roundings of float32 near 4 are 2.4e-7.
    assert losses == pytest.approx(expected, abs=5e-6)
    assert (len(losses), gemms) == (16, 16)
    assert expected[-1] < expected[0] - 0.02
