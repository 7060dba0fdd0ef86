"""What quack can do, asked for where it cannot: refused before anything starts."""

import pytest
from click.testing import CliRunner

from lt_shared.console import ToolError
from lt_train.cli import command as train
from lt_train.commands.plan_layout import command as plan
from lt_train.config.settings import layers

OPTIONS = ("--swiglu-in", "--loss-in")
MODEL = ("--model", "llama3-8b", "--bf16", "--transformer-impl", "torch")
HOPPER = ("--gpu", "h200-141gb", "--seq-length", "8192")


@pytest.mark.parametrize("option", OPTIONS)
def test_it_goes_with_tritons_kernels(option: str) -> None:
    result = CliRunner().invoke(plan, [*MODEL, *HOPPER, option, "products", "--kernels", "torch"])
    assert f"{option} products is for --kernels triton" in str(result.exception)


@pytest.mark.parametrize("option", OPTIONS)
def test_it_runs_on_gpus(option: str) -> None:
    words = [*MODEL, "--mock-data", "--device", "cpu", "--ranks", "1", "--train-iters", "1", option, "products"]
    result = CliRunner().invoke(train, words, standalone_mode=False)
    assert f"{option} products does not run on cpu" in str(result.exception)


@pytest.mark.parametrize(("chosen", "hint"), [((0,), "use --swiglu-in kernel"), ((1,), "use --loss-in kernel")], ids=OPTIONS)
def test_it_has_to_be_installed(chosen: tuple[int, ...], hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolved(monkeypatch, *("products" if number in chosen else "kernel" for number in range(2)))
    monkeypatch.setattr(layers, "_is_installed", lambda module: module != "quack")
    (problem,) = layers.missing_packages(asked)
    assert isinstance(problem, ToolError)
    assert str(problem) == "quack is not installed"
    assert str(problem.hint).endswith(hint)


def test_both_have_to_be_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolved(monkeypatch, "products", "products")
    monkeypatch.setattr(layers, "_is_installed", lambda module: module != "quack")
    (problem,) = layers.missing_packages(asked)
    assert str(problem.hint).endswith("use --swiglu-in kernel --loss-in kernel")


@pytest.mark.parametrize(("where", "expected"), [("cuda", "products"), ("cpu", "kernel")])
def test_auto_on_a_cpu_is_the_kernel(where: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = resolved(monkeypatch, "auto", "auto", where)
    assert (found.swiglu_in, found.loss_in) == (expected, expected)
    assert found.options_for_quack == (list(OPTIONS) if expected == "products" else [])


def resolved(monkeypatch: pytest.MonkeyPatch, swiglu_in: str, loss_in: str, where: str = "cuda") -> layers.Layers:
    """With everything installed, and cuDNN's attention."""
    monkeypatch.setattr(layers, "_is_installed", lambda module: True)
    words = ["--kernels", "triton", "--attention-backend", "fused", "--swiglu-in", swiglu_in, "--loss-in", loss_in]
    options = train.make_context("lt-train", ["--transformer-impl", "torch", *words]).params
    return layers.resolve(options, where)
