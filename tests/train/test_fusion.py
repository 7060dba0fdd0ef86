"""Training with the kernels beside training without them, in Triton's interpreter."""

from pathlib import Path

import pytest
from running import losses, run

STEPS = (
    *("--mock-data", "--model", "tiny", "--num-layers", "1", "--hidden-size", "32", "--ffn-hidden-size", "64"),
    *("--num-attention-heads", "2", "--num-query-groups", "1", "--vocab-size", "100", "--seq-length", "8"),
    *("--micro-batch-size", "1", "--global-batch-size", "2", "--train-iters", "4", "--lr", "1e-2", "--log-interval", "1"),
    *("--eval-iters", "0", "--device", "cpu", "--ranks", "1"),
)
TRITON, TORCH = ("--kernels", "triton"), ("--kernels", "torch")
BF16 = ("--bf16", "--use-distributed-optimizer")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def trained(save: Path, *arguments: str, code: int = 0) -> list[float]:
    """The losses of all steps."""
    result = run(*STEPS, *arguments, "--save", str(save))
    assert result.code == code, result.err
    return list(losses(save).values())


def test_losses_are_those_without_kernels(tmp_path: Path) -> None:
    expected = trained(tmp_path / "torch", *TORCH)
    assert trained(tmp_path / "triton", *TRITON) == pytest.approx(expected, abs=2e-6)
    assert expected[-1] < expected[0] - 0.01


def test_one_pass_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    expected = trained(tmp_path / "torch", *TORCH, *BF16)
    trained(tmp_path / "triton", *TRITON, *BF16, "--exit-interval", "2", code=75)
    # Rounding to 16 bits in other places; a step counted twice or never would show ten times that.
    assert trained(tmp_path / "triton", *TRITON, *BF16) == pytest.approx(expected, abs=1e-2)
