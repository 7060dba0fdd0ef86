"""A package that fails on some rank is left out on all, with a reason; training goes on with the next best.

The packages run on GPUs only: here their calls are replaced.
"""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nursery
import pytest
import torch
from layouts import assembled
from reserved_ports import free_port

from lt_shared.console import BadConfig
from lt_train.config import kernels, optional_packages
from lt_train.config.optional_packages import FLASH_ATTENTION, QUACK
from lt_train.config.run_config import RunConfig
from lt_train.kernels import compile_caches, gemm_epilogues
from lt_train.models.mixers import flash_attention
from lt_train.process import device
from lt_train.train import kernel_trials, trial_memory
from lt_train.train.kernel_trials import Trials
from lt_train.train.trial_shapes import Shapes

HOPPER = (9, 0)
HERE = torch.device("cpu")
WORDS = (
    *("--device", "cuda", "--ranks", "1", "--mock-data", "--model", "llama3-8b", "--layers", "1", "--hidden-size", "128"),
    *("--num-attention-heads", "2", "--num-query-groups", "1", "--kv-channels", "64", "--ffn-hidden-size", "256"),
    *("--vocab-size", "256", "--bf16", "--seq-length", "16", "--micro-batch-size", "1", "--train-iters", "1"),
)
BROKEN = TypeError("epilogue fn depends on <ContextVar>\nand more lines")


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with GPUs, on which every package is installed and works."""
    monkeypatch.setattr("lt_train.process.device.gpu_count", lambda: 8)
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
    failed = kernel_trials.failures(Shapes.from_config(config), config.memory, chosen, HERE)
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
        kernel_trials.failures(Shapes.from_config(config), config.memory, kernels.choose(config, HOPPER), HERE)


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where trials are remembered."""
    monkeypatch.setenv(compile_caches.TRIALS, str(tmp_path))
    monkeypatch.setattr(device, "capability_of", lambda where: HOPPER)
    for module in (flash_attention, gemm_epilogues):
        monkeypatch.setattr(module, "load", lambda: None)
    return tmp_path


def started(monkeypatch: pytest.MonkeyPatch, *words: str, **broken: Exception) -> tuple[Trials, str, list[str]]:
    """The trials of a start, the attention that it chooses, and which kernels it has tried."""
    tried: list[str] = []

    def set_attribute(module: Any, name: str, call: Any) -> None:
        monkeypatch.setattr(module, name, lambda *arguments: (tried.append(name), call(*arguments))[1])

    replace(set_attribute, **broken)
    trials = Trials(assembled((*WORDS, *words)), HERE)
    return trials, trials.choose_kernels(is_first=True).attention, tried


def test_what_has_passed_is_not_waited_for_again(group: None, remembered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials, attention, tried = started(monkeypatch)
    assert attention == "flash-attn-4" and {"attend", "gated_gemm", "exponential_gemm"} <= set(tried)
    # Not before the first step is made.
    assert started(monkeypatch)[2]
    trials.confirm()
    trials, attention, tried = started(monkeypatch)
    assert (attention, tried) == ("flash-attn-4", [])
    # That start has died before its first step.
    trials, _, tried = started(monkeypatch)
    assert tried
    trials.confirm()
    trials, _, tried = started(monkeypatch)
    trials.confirm()
    assert not tried and not started(monkeypatch)[2]


def test_what_has_failed_is_tried_again(group: None, remembered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials, attention, _ = started(monkeypatch, flash=BROKEN)
    assert attention == "sdpa"
    trials.confirm()
    assert not list(remembered.iterdir())
    assert started(monkeypatch)[1] == "flash-attn-4"


@pytest.mark.parametrize("change", ["driver", "version", "source", "variable", "sequence", "content", "host"])
def test_what_has_changed_is_tried_again(
    change: str, group: None, remembered: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    started(monkeypatch)[0].confirm()
    words = []
    if change == "driver":
        monkeypatch.setattr(device, "identity", lambda where: {"driver": "libcuda.so.581"})
    elif change == "version":
        versions = optional_packages.versions()
        monkeypatch.setattr(optional_packages, "versions", lambda: versions | {"quack-kernels": "9.9.9"})
    elif change == "source":
        copy = tmp_path_factory.mktemp("copy") / "lt_train"
        shutil.copytree(trial_memory.ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / "kernels/swiglu.py").write_text("# another\n")
        monkeypatch.setattr(trial_memory, "ROOT", copy)
    elif change == "variable":
        monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    elif change == "sequence":
        words = ["--seq-length", "32"]
    elif change == "content":
        (path,) = remembered.iterdir()
        path.write_text(path.read_text()[:-1])
    else:
        monkeypatch.setattr("socket.gethostname", lambda: "another")
    assert started(monkeypatch, *words)[2]


def test_ranks_may_write_at_once(group: None, remembered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = started(monkeypatch)[0]
    threads = [threading.Thread(target=trials.confirm) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not started(monkeypatch)[2]
    # A directory that nothing can be written to ends no run.
    trials._memory._path = Path("/proc/nowhere/trial.json")
    trials.confirm()


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
    failed = kernel_trials.failures(Shapes.from_config(config), config.memory, kernels.choose(config, HOPPER), HERE)
    torch.distributed.destroy_process_group()
    return {package.name: reason for package, reason in failed.items()}


def test_all_ranks_leave_out_what_one_cannot_use() -> None:
    port = str(free_port())
    ranks = [
        subprocess.Popen([nursery.python(), __file__, str(number), port], stdout=subprocess.PIPE, text=True)
        for number in range(2)
    ]
    found = [json.loads(each.communicate(timeout=480)[0]) for each in ranks]
    assert found == [{"quack": "on rank 1: TypeError: epilogue fn depends on <ContextVar>"}] * 2


if __name__ == "__main__":
    print(json.dumps(rank(*map(int, sys.argv[1:]))))
