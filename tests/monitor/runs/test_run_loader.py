"""Attempts begin and join where a reader of the log would say so, and each step counts once."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lt_monitor.logs import log_files
from lt_monitor.runs import run_loader
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.run_loader import assemble
from lt_shared.console import BadData

LOGS = Path(__file__).parents[1] / "samples"


def event(kind: str, step: int | None = None, file: str = "a.log", run: str = "a", **fields: Any) -> dict:
    record = {"v": 1, "kind": kind, "run": run, "src": {"file": file, "offset": 0}, **fields}
    return record if step is None else {**record, "step": step}


def steps(first: int, last: int, loss: float = 1.0, interval: int = 1, **fields: Any) -> list[dict]:
    return [event("step", step, loss=loss, **fields) for step in range(first, last + 1, interval)]


def only(events: list[dict]) -> Run:
    (run,) = assemble(events)
    return run


def resumes(run: Run) -> list[int | None]:
    return [attempt.resumed_at for attempt in run.attempts]


START = event("start", arguments={"seq_length": 8})
LOAD = event("load", 3, path="/run")


def test_a_resumed_run_counts_each_step_once() -> None:
    run = only(
        [
            START,
            *steps(1, 5, 1.0),
            event("eval", 2, loss=9.0),
            event("eval", 5, loss=9.0),
            event("checkpoint", 3, path="/run"),
            event("checkpoint", 4, path="/run", begun=True),
            event("checkpoint", 5, path="/run"),
            START,
            LOAD,
            *steps(4, 4, 2.0),
        ]
    )
    assert run.steps.numbers.tolist() == [1, 2, 3, 4]
    assert run.steps.column("loss").tolist() == [1.0, 1.0, 1.0, 2.0]
    assert [evaluation["step"] for evaluation in run.evaluations] == [2]
    assert [checkpoint["step"] for checkpoint in run.checkpoints] == [3]
    assert resumes(run) == [0, 3]
    assert [attempt.lost_steps for attempt in run.attempts] == [2, 0]
    assert run.restarts == 1
    assert run.arguments == {"seq_length": 8}


@pytest.mark.parametrize(
    ("events", "resumed_at", "lost_steps"),
    [
        ([*steps(1, 5), *steps(4, 6)], [0, 3], 2),
        ([START, *steps(1, 5), START, *steps(1, 2)], [0, 0], 5),
        ([START, *steps(1, 5), START, *steps(6, 7)], [0, 5], 0),
        ([START, LOAD, *steps(4, 5)], [3], 0),
        ([START, LOAD, LOAD, START, LOAD, *steps(4, 5)], [3, 3], 0),
        ([*steps(1, 3), LOAD, *steps(4, 5), LOAD, *steps(4, 6)], [0, 3, 3], 2),
        ([START, event("load", 0, path="/pretrained"), *steps(1, 5)], [0], 0),
        ([*steps(1, 5), *steps(5, 6)], [0], 0),
        ([*steps(10, 40, interval=10), *steps(30, 50, interval=10)], [0, 20], 20),
        ([*steps(10, 40, interval=10), event("checkpoint", 25), *steps(30, 50, interval=10)], [0, 25], 15),
        ([*steps(1, 9), event("start", arguments={}, first_step=7), *steps(7, 8)], [0, 6], 3),
        ([START, *steps(1, 9), START, event("load", 8), *steps(9, 9), START, LOAD, *steps(4, 5)], [0, 8, 3], 7),
    ],
    ids=[
        "back",
        "from scratch",
        "exactly",
        "resumed log",
        "failed starts",
        "twice",
        "finetuning",
        "same line twice",
        "interval",
        "checkpoint between steps",
        "first step",
        "ever further back",
    ],
)
def test_attempts(events: list[dict], resumed_at: list[int | None], lost_steps: int) -> None:
    run = only(events)
    assert resumes(run) == resumed_at
    assert run.lost_steps == lost_steps
    assert run.steps.numbers[-1] == events[-1]["step"]
    assert (np.diff(run.steps.numbers) > 0).all()


def test_several_processes_in_one_log_are_one_attempt_each_time() -> None:
    def both(numbers: list[int], loss: float) -> list[dict]:
        return [event("step", step, loss=loss, task=task) for step in numbers for task in (0, 1)]

    one, two = both([1, 2, 3, 4, 5], 1.0), both([4, 5, 6], 2.0)
    one[5], one[6] = one[6], one[5]
    run = only([START, *one, event("load", 3, task=0), event("load", 3, task=1), *two])
    assert resumes(run) == [0, 3]
    assert [len(attempt.steps) for attempt in run.attempts] == [5, 3]
    assert len(run.attempts[1].of_kind("load")) == 1


def test_two_logs_of_one_run_complete_each_other() -> None:
    log = [START, *steps(1, 5, total_steps=9), LOAD, *steps(4, 6, total_steps=9)]
    metrics = [event("step", step, file="m.jsonl", loss=1.0, tokens_per_second=80.0) for step in (1, 2, 3, 4, 5, 4, 5, 6, 7)]
    run = only([*log, *metrics])
    assert run.steps.numbers.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert run.steps.column("total_steps").tolist()[:6] == [9.0] * 6
    assert run.steps.column("tokens_per_second").tolist() == [80.0] * 7
    assert resumes(run) == [0, 3]
    assert run.lost_steps == 2
    assert run.files == ["a.log", "m.jsonl"]


def test_logs_with_times_are_ordered_by_them() -> None:
    def day(number: int, first: int, last: int, file: str) -> list[dict]:
        return [event("step", n, file=file, loss=1.0, time=f"2026-01-{number:02d}T00:00:{n:02d}") for n in range(first, last + 1)]

    run = only([*day(3, 7, 9, "c"), *day(1, 1, 5, "a"), *day(2, 4, 8, "b"), *day(2, 4, 8, "rank1")])
    assert [attempt.files for attempt in run.attempts] == [["a"], ["b", "rank1"], ["c"]]
    assert resumes(run) == [0, 3, 6]
    assert run.attempts[0].end_time - run.attempts[0].begin_time == 4.0
    assert run.updated == run.attempts[2].end_time


def test_figures_that_a_trainer_prints_before_the_step_belong_to_it() -> None:
    note = event("note", note="throughput", message="Step Time", fields={"tflops_per_gpu": 412.7, "step_seconds": 2.31})
    run = only([note, event("step", 1, step_seconds=2.3), note, event("step", 2)])
    assert run.steps.column("tflops_per_gpu").tolist() == [412.7, 412.7]
    assert run.steps.column("step_seconds").tolist() == [2.3, 2.31]


def test_jobs_that_save_into_one_directory_are_attempts_of_one_run() -> None:
    first = [*steps(1, 5, run="slurm-1", file="1"), event("checkpoint", 3, path="/fsx/run", run="slurm-1", file="1")]
    start = event("start", arguments={"save": "/fsx/run"}, run="slurm-2", file="2")
    second = [start, event("load", 3, path="/fsx/run", run="slurm-2", file="2"), *steps(4, 6, run="slurm-2", file="2")]
    other = [event("checkpoint", 3, path="run", run="b", file="b"), event("checkpoint", 3, path="run", run="c", file="c")]
    runs = run_loader.join_by_checkpoints(assemble([*first, *second, *other]))
    assert [run.name for run in runs] == ["slurm-1", "b", "c"]
    assert resumes(runs[0]) == [0, 3]
    assert runs[0].lost_steps == 2


def test_jobs_that_began_from_scratch_in_the_same_directory_are_runs_of_their_own() -> None:
    def job(run: str, begin: int, loads: bool) -> list[dict]:
        loaded = [event("load", begin - 1, run=run, path="/fsx/a")] if loads else []
        return [*loaded, *steps(begin, begin + 3, run=run), event("checkpoint", begin + 3, run=run, path="/fsx/a")]

    events = [*job("one", 1, False), *job("two", 1, False), *job("three", 5, True)]
    runs = run_loader.join_by_checkpoints(assemble(events))
    assert [(run.name, len(run.attempts)) for run in runs] == [("one", 1), ("two", 2)]


def test_the_test_split_is_no_validation() -> None:
    run = only([*steps(1, 1), event("eval", 1, loss=3.0, split="validation"), event("eval", 1, loss=1.0, split="test")])
    assert [evaluation["loss"] for evaluation in run.evaluations] == [3.0]


def test_runs_keep_apart() -> None:
    assert [run.name for run in assemble([*steps(1, 2), *steps(1, 2, run="b"), *steps(3, 3)])] == ["a", "b"]


def test_logs_without_steps_are_bad_data(capfd: pytest.CaptureFixture[str]) -> None:
    nothing, something = str(LOGS / "no_events.log"), str(LOGS / "lt_train.log")
    with pytest.raises(BadData, match="no training steps"):
        run_loader.read([nothing])
    assert [run.name for run in run_loader.read([nothing, something])] == [str(LOGS / "lt_train")]
    assert "no_events.log: no training events" in capfd.readouterr().err


@pytest.mark.parametrize("labels", [[""], ["0: ", "1: "]], ids=["one process", "two processes"])
def test_steps_by_columns_make_the_same_attempts_as_records(tmp_path: Path, labels: list[str]) -> None:
    steps = [*range(1, 400), *range(350, 700), *range(600, 900)]
    lines = [f"{label} iteration {step}/ 900 | lm loss: {step / 7:.6E} |\n" for step in steps for label in labels]
    log = tmp_path / "a.log"
    log.write_text("".join(lines))
    (by_columns,) = run_loader.read([str(log)])
    (by_records,) = assemble(record for block in log_files.event_blocks(str(log)) for record in block)
    for run in (by_columns, by_records):
        assert [(attempt.first_step, attempt.last_step, attempt.lost_steps) for attempt in run.attempts] == [
            (1, 399, 50),
            (350, 699, 100),
            (600, 899, 0),
        ]
    np.testing.assert_array_equal(by_columns.steps.numbers, by_records.steps.numbers)
    np.testing.assert_array_equal(by_columns.steps.column("loss"), by_records.steps.column("loss"))


def test_jobs_are_joined_in_the_order_in_which_they_began() -> None:
    job = run_loader.Job
    jobs = [job("/a", False, 50.0), job("/b", False, None), job("/a", True, 10.0), job("/a", True, 30.0), job(None, False, 1.0)]
    assert run_loader.jobs_of_one_run(jobs) == [[3, 0], [1], [2], [4]]
    assert run_loader.jobs_of_one_run([job("/a", False, 50.0), job("/a", False, None)]) == [[0, 1]]


def test_a_thousand_attempts_cost_as_much_each_as_one() -> None:
    """Looking at all earlier attempts for each would cost 16 times as much for 4 times as many."""

    def cpu_seconds(count: int) -> float:
        events = []
        for number in range(count):
            events += [
                event("start", arguments={"seq_length": 8}),
                event("checkpoint", 2 * number + 1),
                *steps(2 * number + 2, 2 * number + 3),
            ]
        begin = time.process_time()
        assert len(only(events).attempts) == count
        return time.process_time() - begin

    small, large = cpu_seconds(1_500), cpu_seconds(6_000)
    assert large < 8 * small + 0.3
