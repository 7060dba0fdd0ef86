"""Of many ranks that fail, one reports."""

import dataclasses
import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch

from lt_shared.console import BadData
from lt_train.process import failure_report, signals
from lt_train.process.failure_report import RankError
from lt_train.process.interruption import Echo
from lt_train.process.rank_environment import RankEnvironment

RANKS = 4
ECHOES = (
    torch.distributed.DistBackendError("NCCL communicator was aborted"),
    RuntimeError("[/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:2011"),
    Echo("the writer of another rank failed"),
)


def rank_env(rank: int, launcher: str = "srun") -> RankEnvironment:
    return RankEnvironment(rank, rank, RANKS, RANKS, "127.0.0.1", 0, launcher)


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.distributed.Store]:
    shared = torch.distributed.HashStore()
    monkeypatch.setattr(failure_report, "_get_default_store", lambda: shared)
    monkeypatch.setattr(failure_report, "ECHO_SECONDS", 0.4)
    monkeypatch.setattr(signals, "die_by_signals", lambda: None)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(failure_report.atexit, "register", lambda *arguments: None)
    return shared


def advice() -> str:
    return "--micro-batch-size 1"


def raised_by(errors: list[Exception]) -> list[BaseException]:
    """What each rank raises when all fail at the same time, rank i with `errors[i]`."""
    found: list[BaseException] = [Exception()] * RANKS

    def fail(rank: int) -> None:
        found[rank] = failure_report.replacement_error(errors[rank], rank_env(rank), advice)

    threads = [threading.Thread(target=fail, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("echo", ECHOES, ids=["nccl", "gloo", "echo"])
def test_the_rank_with_the_cause_reports(echo: Exception) -> None:
    found = raised_by([echo, echo, BadData("the index is damaged", "make it again"), echo])
    report = found.pop(2)
    assert isinstance(report, RankError)
    assert str(report).startswith("rank 2 on ")
    assert str(report).endswith(": the index is damaged")
    assert (report.hint, report.exit_code) == ("make it again", 65)
    assert [(type(error), error.code) for error in found] == [(SystemExit, 65)] * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [ValueError("bad value"), *ECHOES])
def test_exactly_one_reports_when_all_have_the_same_error(error: Exception) -> None:
    assert sorted(type(found).__name__ for found in raised_by([error] * RANKS)) == ["RankError", *["SystemExit"] * 3]


def test_rank_1_reports_the_loss_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under srun; torchrun and lt-train see it themselves."""

    def gone() -> torch.distributed.Store:
        raise torch.distributed.DistNetworkError("Broken pipe")

    monkeypatch.setattr(failure_report, "_get_default_store", gone)
    assert "connection to rank 0 was lost" in str(failure_report.replacement_error(ECHOES[1], rank_env(1), advice))
    assert isinstance(failure_report.replacement_error(ECHOES[1], rank_env(2), advice), SystemExit)
    assert isinstance(failure_report.replacement_error(ECHOES[1], rank_env(1, "torchrun"), advice), SystemExit)


def test_reports_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    long = failure_report.replacement_error(RuntimeError("shapes differ\nframe #0: libtorch"), rank_env(0), advice)
    assert str(long).endswith("internal error: RuntimeError: shapes differ")
    lost = failure_report._report(ECHOES[1], rank_env(0), advice)
    assert lost.exit_code == 74
    assert "communication with the other ranks failed" in str(lost)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB\nframe #0"), "CUDA out of memory. Tried 2 GiB"),
        (torch.distributed.DistBackendError("NCCL error\nCuda failure 2 'out of memory'"), "Cuda failure 2 'out of memory'"),
        (RuntimeError("CUDA error: out of memory\nframe #0"), "CUDA error: out of memory"),
    ],
    ids=["torch", "nccl", "cuda"],
)
def test_memory_that_is_used_up_is_the_configurations_fault(error: Exception, shown: str) -> None:
    memory = failure_report._report(error, rank_env(3), advice)
    assert memory.exit_code == 78
    assert str(memory).endswith(f": {shown}")
    assert memory.hint == advice()


@pytest.mark.parametrize(
    ("package", "distribution", "option"),
    [
        ("flash_attn", "flash-attn-4", "--attention-backend fused"),
        ("quack", "quack-kernels", "--swiglu-impl triton"),
        ("cutlass", "nvidia-cutlass-dsl", "--cross-entropy-impl triton"),
    ],
)
@pytest.mark.parametrize("fails", ["when imported", "when called", "when a name is missing", "when a part is missing"])
@mock.patch.dict(sys.modules)
def test_a_broken_optional_package_is_named_with_the_way_around_it(
    package: str, distribution: str, option: str, fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    body = "raise ImportError('libcudart.so.12: cannot open shared object file')\n" if fails == "when imported" else ""
    body += "def kernel():\n    raise TypeError('epilogue fn depends on <ContextVar>')\n"
    (tmp_path / package / "gemm.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
    try:
        if fails == "when a part is missing":
            importlib.import_module(f"{package}.interface")
        elif fails == "when a name is missing":
            exec(f"from {package}.gemm import other", {})
        else:
            importlib.import_module(f"{package}.gemm").kernel()
    except Exception as error:
        report = failure_report.replacement_error(error, dataclasses.replace(rank_env(0), world_size=1), advice)
    assert isinstance(report, RankError)
    assert f": {distribution}, an optional package, does not work here: " in str(report)
    assert report.exit_code == 78
    assert report.hint is not None and option in report.hint


def test_an_error_of_our_own_is_internal() -> None:
    report = failure_report.replacement_error(TypeError("quack"), dataclasses.replace(rank_env(0), world_size=1), advice)
    assert isinstance(report, RankError) and report.exit_code == 70
