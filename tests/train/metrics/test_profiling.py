"""Traces and snapshots of the chosen steps, whole, on the chosen ranks; also when the run fails in the middle."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from lt_train.config.settings.reporting import Profile
from lt_train.metrics import profiling
from lt_train.metrics.profiling import Profiler
from lt_train.process import device

CPU = torch.device("cpu")


def train(directory: Path, steps: int, done: int = 0, rank: int = 0, memory: bool = False, fail_in: int | None = None) -> None:
    """Steps whose matrix products are as large as the step's number, so that a trace shows which steps it holds."""
    settings = Profile(not memory, memory, 3, 5, (0, 2), str(directory))
    with Profiler(settings, rank, CPU, done) as profiler:
        for step in range(done, steps):
            torch.ones(step + 1, 7) @ torch.ones(7, 3)
            if step == fail_in:
                raise MemoryError
            profiler.step()


def traced_steps(trace: Path) -> set[int]:
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    products = [event for event in events if event.get("name") == "aten::mm"]
    assert products
    names = {event["name"] for event in events if event.get("name", "").startswith("ProfilerStep")}
    return {int(name.partition("#")[2]) for name in names}


def test_a_trace_has_the_chosen_steps(tmp_path: Path) -> None:
    train(tmp_path, steps=8)
    assert [path.name for path in tmp_path.iterdir()] == ["trace-step5-rank0.json.gz"]
    assert traced_steps(tmp_path / "trace-step5-rank0.json.gz") == {3, 4}


def test_only_chosen_ranks_and_steps_that_are_still_to_come(tmp_path: Path) -> None:
    train(tmp_path, steps=8, rank=1)
    train(tmp_path, steps=8, done=5)
    assert list(tmp_path.iterdir()) == []
    train(tmp_path, steps=8, done=4, rank=2)
    assert [path.name for path in tmp_path.iterdir()] == ["trace-step5-rank2.json.gz"]


def test_a_failure_in_a_profiled_step_leaves_its_trace(tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        train(tmp_path, steps=8, fail_in=4)
    assert [path.name for path in tmp_path.iterdir()] == ["trace-step5-rank0.json.gz"]


@pytest.mark.parametrize("fail_in", [None, 4])
def test_memory_is_recorded_in_the_chosen_steps(fail_in: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's recorder is replaced: it needs a GPU. What is tested is when it is switched on and off."""
    calls: list[str] = []
    monkeypatch.setattr(device, "record_memory_history", lambda: calls.append("record"))
    monkeypatch.setattr(device, "dump_memory_history", lambda path: (calls.append("dump"), Path(path).write_bytes(b"snapshot")))
    real = Profiler.step
    monkeypatch.setattr(profiling.Profiler, "step", lambda self: (real(self), calls.append(f"{self.steps_done} done"))[0])
    if fail_in is None:
        train(tmp_path, steps=7, memory=True)
        assert calls == ["1 done", "2 done", "record", "3 done", "4 done", "dump", "5 done", "6 done", "7 done"]
    else:
        with pytest.raises(MemoryError):
            train(tmp_path, steps=7, memory=True, fail_in=fail_in)
        assert calls == ["1 done", "2 done", "record", "3 done", "4 done", "dump"]
    assert [path.name for path in tmp_path.iterdir()] == ["memory-step5-rank0.pickle"]
