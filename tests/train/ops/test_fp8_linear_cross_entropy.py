"""Loss and output layer in fp8 beside float64. The interpreter truncates numbers of fp8: gradients are up to a quarter short."""

from pathlib import Path

import pytest
import torch
from fp8_training import BY_KERNELS, train
from torch.nn.functional import cross_entropy

from lt_train.ops import fp8_linear_cross_entropy
from lt_train.ops.fp8_casts import Fp8Output, TritonCasts
from lt_train.ops.row_exchange import OneRank

ROWS, WIDTH, COLUMNS, VOCABULARY = 48, 32, 112, 100


def compute(casts_logits: bool, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Losses, and gradients for weighted losses, one of them with the weight 0."""
    torch.manual_seed(0)
    rows = torch.randn(ROWS, WIDTH).bfloat16().requires_grad_()
    weight = torch.nn.Parameter((torch.randn(COLUMNS, WIDTH) * 0.3).bfloat16())
    weight.main_grad = torch.zeros_like(weight, dtype=dtype)
    labels, weights = torch.randint(0, VOCABULARY, (ROWS,)), torch.rand(ROWS) * 1e-4
    weights[3] = 0
    exact = [tensor.detach().double().requires_grad_() for tensor in (rows, weight)]
    expected = cross_entropy((exact[0] @ exact[1].t())[:, :VOCABULARY], labels, reduction="none")
    (expected * weights).sum().backward()
    settings = Fp8Output(TritonCasts(), casts_logits)
    losses = fp8_linear_cross_entropy.output_losses(rows, weight, labels, OneRank(), VOCABULARY, settings)
    (losses * weights).sum().backward()
    assert weight.grad_added_to_main_grad
    return {
        "losses": losses.detach(),
        "expected": expected.detach(),
        "rows": rows.grad,
        "expected rows": exact[0].grad,
        "weight": weight.main_grad,
        "expected weight": exact[1].grad,
    }


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8_linear_cross_entropy, "CHUNK", 32)


@pytest.mark.parametrize("casts_logits", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_and_gradients(casts_logits: bool, dtype: torch.dtype) -> None:
    values = compute(casts_logits, dtype)
    difference = (values["losses"].double() - values["expected"]).abs().max()
    # Logits in 16 bits are rounded by 2^-9 of at most 6.
    assert difference < (0.8 if casts_logits else 0.03)
    for name in ("rows", "weight"):
        exact = values[f"expected {name}"]
        assert (values[name].double() - exact).norm() < 0.2 * exact.norm()
    assert not values["rows"][3].any()
    assert not values["weight"][VOCABULARY:].any()


def test_without_gradients_no_gradient_is_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8_linear_cross_entropy, "cast_gradient", None)
    rows, weight = torch.randn(16, 16).bfloat16(), torch.randn(32, 16).bfloat16()
    labels = torch.arange(16)
    losses = fp8_linear_cross_entropy.output_losses(rows, weight, labels, OneRank(), 32, Fp8Output(TritonCasts(), False))
    torch.testing.assert_close(
        losses, cross_entropy(rows.float() @ weight.float().t(), labels, reduction="none"), atol=0.1, rtol=0
    )


def test_training(tmp_path: Path) -> None:
    """Beside an output layer in 16 bits: steps of two micro batches, tied and untied, with padding of the vocabulary."""
    untied = ("--untie-embeddings-and-output-weights",)
    ways = {"tied": (), "untied": (*untied, "--grad-reduce-in-bf16"), "padded": (*untied, "--vocab-size", "90")}
    kernels = tuple(option for option in BY_KERNELS if option not in ("--cross-entropy-impl", "torch"))
    runs = {}
    for name, options in ways.items():
        runs[name] = ("", *BY_KERNELS, *options)
        for kind in ("gradients", "all"):
            runs[f"{name}, {kind}"] = ("", *kernels, *options, "--fp8-output-proj", kind)
    results = train(tmp_path, runs)
    for name in ways:
        plain = results[name]
        for kind, tolerance in (("gradients", 1e-2), ("all", 5e-2)):
            fp8 = results[f"{name}, {kind}"]
            assert fp8.losses == pytest.approx(plain.losses, abs=tolerance), (name, kind)
            assert fp8.norms == pytest.approx(plain.norms, rel=0.2), (name, kind)
            assert fp8.losses != plain.losses
