"""Steps count once: the later attempt wins, and what was lost is known."""

from pathlib import Path
from typing import Any

import pytest

from lt_monitor import runs
from lt_monitor.runs import Run, assemble
from lt_shared.console import BadData

LOGS = Path(__file__).parent / "logs"


def event(kind: str, step: int | None = None, file: str = "a.log", run: str = "a", **fields: Any) -> dict:
    record = {"v": 1, "kind": kind, "run": run, "src": {"file": file, "offset": 0}, **fields}
    return record if step is None else {**record, "step": step}


def steps(first: int, last: int, loss: float = 1.0, **fields: Any) -> list[dict]:
    return [event("step", step, loss=loss, **fields) for step in range(first, last + 1)]


def only(events: list[dict]) -> Run:
    (run,) = assemble(events)
    return run


START = event("start", arguments={"seq_length": 8})
LOAD = event("load", 3, path="/run")


def test_a_resumed_run_drops_what_was_lost() -> None:
    run = only(
        [
            START,
            *steps(1, 5, 1.0),
            event("eval", 2, loss=9.0),
            event("eval", 5, loss=9.0),
            event("checkpoint", 3, path="/run"),
            event("checkpoint", 5, path="/run"),
            START,
            LOAD,
            *steps(4, 4, 2.0),
        ]
    )
    assert {step: record["loss"] for step, record in run.steps.items()} == {1: 1.0, 2: 1.0, 3: 1.0, 4: 2.0}
    assert list(run.evaluations) == [2]
    assert list(run.checkpoints) == [3]
    assert run.resumed_at == [3]
    assert run.lost_steps == 2


@pytest.mark.parametrize(
    ("events", "resumed_at", "lost_steps"),
    [
        ([*steps(1, 5), *steps(4, 6)], [3], 2),
        ([START, *steps(1, 5), START, *steps(1, 2)], [0], 5),
        ([START, *steps(1, 5), START, *steps(6, 7)], [5], 0),
        ([START, LOAD, *steps(4, 5)], [3], 0),
        ([START, LOAD, LOAD, START, LOAD, *steps(4, 5)], [3], 0),
        ([*steps(1, 3), LOAD, *steps(4, 5), LOAD, *steps(4, 6)], [3, 3], 2),
        ([START, event("load", 0, path="/pretrained"), *steps(1, 5)], [], 0),
        ([*steps(1, 5), *steps(5, 6)], [], 0),
    ],
    ids=["back", "from scratch", "exactly", "resumed log", "failed starts", "twice", "finetuning", "same line twice"],
)
def test_restarts(events: list[dict], resumed_at: list[int], lost_steps: int) -> None:
    run = only(events)
    assert run.resumed_at == resumed_at
    assert run.lost_steps == lost_steps
    assert list(run.steps) == list(range(min(run.steps), events[-1]["step"] + 1))


def test_the_test_split_is_no_validation() -> None:
    run = only([*steps(1, 1), event("eval", 1, loss=3.0, split="validation"), event("eval", 1, loss=1.0, split="test")])
    assert run.evaluations[1]["loss"] == 3.0


def test_two_files_of_one_run_complete_each_other() -> None:
    log = [START, *steps(1, 5, total_steps=9), LOAD, *steps(4, 6, total_steps=9)]
    metrics = [event("step", step, file="m.jsonl", loss=1.5, tokens_per_second=80.0) for step in (1, 2, 3, 4, 5, 4, 5, 6, 7)]
    run = only([*log, *metrics])
    assert list(run.steps) == [1, 2, 3, 4, 5, 6, 7]
    assert (run.steps[6]["total_steps"], run.steps[6]["tokens_per_second"], run.steps[6]["loss"]) == (9, 80.0, 1.5)
    assert run.resumed_at == [3]
    assert run.lost_steps == 2
    assert run.files == ["a.log", "m.jsonl"]


def test_runs_keep_apart() -> None:
    assert [run.name for run in assemble([*steps(1, 2), *steps(1, 2, run="b"), *steps(3, 3)])] == ["a", "b"]


def test_logs_without_steps_are_bad_data(capfd: pytest.CaptureFixture[str]) -> None:
    nothing, something = str(LOGS / "no_events.log"), str(LOGS / "lt_train.log")
    with pytest.raises(BadData, match="no training steps"):
        runs.read([nothing])
    assert [run.name for run in runs.read([nothing, something])] == [str(LOGS / "lt_train")]
    assert "no_events.log: no training events" in capfd.readouterr().err
