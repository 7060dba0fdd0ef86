"""Gradients written and added by GEMMs, and left uncleared, beside those of runs without that."""

import weakref
from pathlib import Path
from types import SimpleNamespace

import one_process
import pytest
import torch
from running import train

from lt_train.ops import wgrad_accumulation
from lt_train.parallel import ddp

STEPS = (
    *("--mock-data", "--model", "tiny", "--num-layers", "2", "--hidden-size", "32", "--ffn-hidden-size", "64"),
    *("--num-attention-heads", "2", "--num-query-groups", "1", "--vocab-size", "100", "--seq-length", "8"),
    *("--micro-batch-size", "1", "--global-batch-size", "2", "--train-iters", "3", "--lr", "1e-3", "--log-interval", "1"),
    *("--eval-iters", "0", "--device", "cpu", "--ranks", "1", "--untie-embeddings-and-output-weights"),
)


def norms(save: Path, *arguments: str) -> list[float]:
    """Of the gradients of each step."""
    done = train(*STEPS, *arguments, "--save", str(save))
    assert not done.code, done.err
    return one_process.norms(save)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """In fp32, where GEMMs add to nothing: two micro batches a step, three steps."""
    found = norms(tmp_path_factory.mktemp("expected"), "--kernels", "torch")
    assert len(found) == 3
    return found


@pytest.mark.parametrize(
    "options",
    [("--kernels", "torch", "--accumulate-allreduce-grads-in-fp32"), ("--kernels", "triton", "--grad-reduce-in-bf16")],
    ids=lambda options: options[1],
)
def test_a_step_adds_its_micro_batches_and_nothing_of_the_step_before(
    tmp_path: Path, expected: list[float], options: tuple[str, ...]
) -> None:
    assert norms(tmp_path, "--bf16", *options) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_gemm_overwrites_and_the_second_adds(dtype: torch.dtype) -> None:
    buffer, other = torch.full((3, 2), 5.0, dtype=dtype), torch.full((4,), 5.0)
    wgrad_accumulation._reset([other], {buffer.data_ptr(): buffer})
    assert not other.any()
    assert buffer.all()
    rows, gradient = torch.ones(4, 2, dtype=torch.bfloat16), torch.ones(4, 3, dtype=torch.bfloat16)
    gemm = wgrad_accumulation.accumulate_in_float32 if dtype == torch.float32 else wgrad_accumulation.accumulate_in_half
    gemm(rows, gradient, buffer)
    assert buffer.eq(4).all()
    gemm(rows, gradient, buffer)
    assert buffer.eq(8).all()


def test_what_no_gemm_wrote_is_cleared_before_the_end_of_the_step() -> None:
    buffer = torch.full((3,), 5.0)
    wgrad_accumulation._reset([], {buffer.data_ptr(): buffer})
    seen = SimpleNamespace()
    wgrad_accumulation.clear_and_finalize(
        "model", finalize=lambda model, **settings: seen.__dict__.update(settings, sum=float(buffer.sum())), n=1
    )
    assert vars(seen) == {"n": 1, "sum": 0.0}
    assert not wgrad_accumulation.overwrites(buffer)


@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.float32, "accumulate_in_float32"), (torch.bfloat16, "accumulate_in_half")]
)
def test_the_gemm_is_that_of_the_buffers_type(dtype: torch.dtype, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here both add the same; on a GPU they differ."""
    called = []
    for name in ("accumulate_in_float32", "accumulate_in_half"):
        monkeypatch.setattr(wgrad_accumulation, name, lambda *_, name=name: called.append(name))
    weight = torch.nn.Parameter(torch.ones(3, 2))
    weight.main_grad = torch.zeros(3, 2, dtype=dtype)
    wgrad_accumulation.accumulate_weight_gradient(torch.ones(4, 2), torch.ones(4, 3), weight)
    assert called == [expected]
    assert weight.grad_added_to_main_grad


def test_a_model_that_is_trained_no_more_leaves_no_buffers() -> None:
    buffer = torch.ones(3)
    left = weakref.ref(buffer)
    wgrad_accumulation._reset([], {buffer.data_ptr(): buffer})
    ddp.break_cycles([])
    del buffer
    assert left() is None
