"""A package that fails on some rank is left out on all, with a reason; training goes on with the next best.

The packages run on GPUs only: here their calls are replaced.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from layouts import assembled
from reserved_ports import free_port

from lt_shared.console import BadConfig
from lt_train.config import kernels, optional_packages
from lt_train.config.optional_packages import FLASH_ATTENTION, QUACK
from lt_train.config.run_config import RunConfig
from lt_train.kernels import gemm_epilogues
from lt_train.models import flash_attention
from lt_train.runtime import device
from lt_train.train import kernel_trials

HOPPER = (9, 0)
HERE = torch.device("cpu")
WORDS = (
    *("--device", "cuda", "--ranks", "1", "--mock-data", "--model", "llama3-8b", "--layers", "1", "--hidden-size", "128"),
    *("--num-attention-heads", "2", "--num-query-groups", "1", "--kv-channels", "64", "--ffn-hidden-size", "256"),
    *("--vocab-size", "256", "--bf16", "--seq-length", "64", "--micro-batch-size", "2", "--train-iters", "1"),
)
BROKEN = TypeError("epilogue fn depends on <ContextVar>\nand more lines")


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with GPUs, on which every package is installed and works."""
    monkeypatch.setattr("lt_train.runtime.device.gpu_count", lambda: 8)
    monkeypatch.setattr(optional_packages, "is_installed", lambda module: True)
    replace(monkeypatch.setattr)


def replace(set_attribute: Any, **broken: Exception) -> None:
    """What the packages would compute, in shape and type; one of them may raise an error instead."""

    def of(name: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if name in broken:
                raise broken[name]
            return function(*arguments)

        return call

    set_attribute(flash_attention, "attend", of("flash", lambda query, key, value, *_: query + key.sum() + value.sum()))
    set_attribute(gemm_epilogues, "gated_gemm", of("quack", lambda *_: None))
    set_attribute(gemm_epilogues, "gated_gemm_gradient", of("gradient", lambda *_: None))
    set_attribute(gemm_epilogues, "exponential_gemm", of("loss", lambda rows, weight, offsets: rows @ weight.t()))


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def left_after(config: RunConfig) -> tuple[kernels.Failures, kernels.Kernels]:
    chosen = kernels.choose(config, HOPPER)
    assert (chosen.attention, chosen.swiglu, chosen.cross_entropy) == ("flash-attn-4", "gemm-epilogue", "fused-linear")
    failed = kernel_trials.failures(config, chosen, HERE)
    return failed, kernels.choose(config, HOPPER, failed)


def test_what_works_is_kept_without_a_word(group: None, capsys: pytest.CaptureFixture[str]) -> None:
    config = assembled(WORDS)
    failed, left = left_after(config)
    assert (failed, left) == ({}, kernels.choose(config, HOPPER))
    kernel_trials.report(failed, left, HERE)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("call", ["quack", "gradient", "loss"])
def test_one_line_says_what_is_left_out(
    call: str, group: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace(monkeypatch.setattr, **{call: BROKEN})
    failed, left = left_after(assembled(WORDS))
    assert (left.attention, left.swiglu, left.cross_entropy) == ("flash-attn-4", "triton", "triton")
    kernel_trials.report(failed, left, HERE)
    (line,) = capsys.readouterr().err.splitlines()
    assert "quack-kernels" in line and "TypeError: epilogue fn depends on <ContextVar>: SwiGLU by triton" in line
    assert "% slower" in line


def test_attention_falls_back_alone(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch.setattr, flash=ImportError("libcudart.so.12: cannot open shared object file"))
    failed, left = left_after(assembled(WORDS))
    assert failed == {FLASH_ATTENTION: "ImportError: libcudart.so.12: cannot open shared object file"}
    assert (left.attention, left.swiglu, left.cross_entropy) == ("sdpa", "gemm-epilogue", "fused-linear")


def test_too_little_memory_is_no_failure_of_a_package(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch.setattr, loss=torch.OutOfMemoryError("CUDA out of memory"))
    config = assembled(WORDS)
    with pytest.raises(torch.OutOfMemoryError):
        kernel_trials.failures(config, kernels.choose(config, HOPPER), HERE)


@pytest.mark.parametrize(
    ("words", "package"),
    [
        (("--attention-backend", "flash"), FLASH_ATTENTION),
        (("--swiglu-impl", "gemm-epilogue"), QUACK),
        (("--cross-entropy-impl", "fused-linear"), QUACK),
        (("--recompute-granularity", "selective", "--recompute-modules", "swiglu"), QUACK),
    ],
)
def test_what_was_asked_for_is_refused(words: tuple[str, ...], package: optional_packages.Package) -> None:
    config = assembled((*WORDS, *words))
    with pytest.raises(BadConfig, match=f"{words[-2]} {words[-1]}: {package.distribution}.* does not work here: the reason"):
        kernels.choose(config, HOPPER, {package: "the reason"})


def rank(number: int, port: int) -> dict[str, str]:
    """What one of two ranks leaves out; the second's quack is broken."""
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2)
    optional_packages.is_installed = lambda module: True  # type: ignore[assignment]
    device.gpu_count = lambda: 8
    replace(setattr, **({"quack": BROKEN} if number else {}))
    config = assembled(WORDS)
    failed = kernel_trials.failures(config, kernels.choose(config, HOPPER), HERE)
    torch.distributed.destroy_process_group()
    return {package.name: reason for package, reason in failed.items()}


def test_all_ranks_leave_out_what_one_cannot_use() -> None:
    port, environment = str(free_port()), os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ranks = [
        subprocess.Popen([sys.executable, __file__, str(number), port], env=environment, stdout=subprocess.PIPE, text=True)
        for number in range(2)
    ]
    found = [json.loads(each.communicate(timeout=480)[0]) for each in ranks]
    assert found == [{"quack": "on rank 1: TypeError: epilogue fn depends on <ContextVar>"}] * 2


if __name__ == "__main__":
    print(json.dumps(rank(*map(int, sys.argv[1:]))))
