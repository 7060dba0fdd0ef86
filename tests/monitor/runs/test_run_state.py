"""What is kept of a run between two passes."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.logs import log_files
from lt_monitor.runs import run_loader, state_lookup
from lt_monitor.runs.run_state import RunState, seconds_of
from lt_monitor.runs.time_accounting import account

LOGS = Path(__file__).parents[1] / "samples"
NOW = 2_000_000_000.0


def step(number: int, **more: Any) -> dict[str, Any]:
    return {"v": 1, "kind": "step", "run": "r", "step": number, "loss": 2.0, "step_seconds": 1.0, **more}


def placed(records: list[dict[str, Any]], file: str = "r.log") -> list[dict[str, Any]]:
    return [record | {"src": {"file": file, "offset": 100 * index}} for index, record in enumerate(records)]


def taken(records: list[dict[str, Any]], state: RunState | None = None) -> RunState:
    state = state or RunState("r")
    for record in records:
        state.take(record, NOW)
    return state


def reopened(state: RunState) -> RunState:
    return RunState.from_record(json.loads(json.dumps(state.to_record())))


def story(seed: int) -> list[dict[str, Any]]:
    """A run with restarts: starts, loads, checkpoints, steps that are done again."""
    chance = random.Random(seed)
    records: list[dict[str, Any]] = []
    saved = 0
    for _ in range(chance.randint(1, 5)):
        if chance.random() < 0.7:
            records.append({"v": 1, "kind": "start", "run": "r", "arguments": {"seq_length": 128, "save_interval": 5}})
        if saved:
            records.append({"v": 1, "kind": "load", "run": "r", "step": saved, "path": "/save"})
        for number in range(saved + 1, saved + chance.randint(2, 30)):
            records.append(step(number))
            if number % 5 == 0:
                saved = number
                records.append({"v": 1, "kind": "checkpoint", "run": "r", "step": number, "path": "/save"})
    return placed(records)


@pytest.mark.parametrize("seed", range(30))
def test_restarts_and_lost_steps_are_those_of_the_summary(seed: int) -> None:
    records = story(seed)
    (run,) = run_loader.assemble(records)
    result = account(taken(records).attempts)
    assert (result.restarts, result.lost_steps) == (run.restarts, run.lost_steps)


# Collections of single lines are no runs.
@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.glob("*.*") if "lines" not in path.name))
def test_whole_logs_agree_with_the_summary(name: str) -> None:
    records = [record for block in log_files.event_blocks(str(LOGS / name)) for record in block]
    for run in run_loader.assemble(records):
        state = RunState(run.name)
        for record in records:
            if record["run"] == run.name:
                state.take(record, NOW)
        result = account(state.attempts)
        assert (result.restarts, result.lost_steps) == (run.restarts, run.lost_steps)
        assert state.last.get("step") == run.attempts[-1].last_step
        assert state.step_lines == sum(len(attempt.steps) for attempt in run.attempts)


@given(st.integers(0, 50), st.lists(st.integers(0, 200), max_size=6))
def test_passes_may_end_anywhere(seed: int, cuts: list[int]) -> None:
    records = story(seed)
    places = sorted({0, len(records), *(cut for cut in cuts if cut < len(records))})
    state = RunState("r")
    for begin, end in itertools.pairwise(places):
        state = reopened(taken(records[begin:end], state))
    whole = taken(records)
    # Where a pass began is all that may differ.
    state.logs["r.log"].batch = whole.logs["r.log"].batch
    assert state.to_record() == whole.to_record()


@given(st.integers(0, 50), st.data())
def test_a_pass_that_is_repeated_changes_nothing(seed: int, data: st.DataObject) -> None:
    records = story(seed)
    begin = data.draw(st.integers(0, len(records) - 1))
    cut = data.draw(st.integers(begin + 1, len(records)))
    state = reopened(taken(records[:begin]))
    state = reopened(taken(records[begin:cut], state))
    # The reader of the second pass was killed, so its records come again, and more with them.
    state = taken(records[begin:], state)
    assert state.attempts == taken(records).attempts


def test_reading_everything_again_changes_nothing() -> None:
    records = story(3)
    state = reopened(taken(records[:40]))
    assert taken(records, state).attempts == taken(records).attempts


def test_a_log_that_was_replaced_is_new() -> None:
    state = reopened(taken(placed([step(number) for number in range(1, 50)])))
    taken(placed([step(number) for number in range(50, 60)]), state)
    assert state.last["step"] == 59
    assert len(state.attempts) == 1


def test_ranks_that_print_the_same_steps_count_once() -> None:
    records = [step(number, rank=rank, skipped_steps=1) for number in range(1, 20) for rank in range(4)]
    state = taken(placed(records))
    assert (state.step_lines, state.skipped_steps, len(state.attempts)) == (19, 19, 1)


def test_ranks_in_files_of_their_own_count_once() -> None:
    lines = [step(number, time=f"2026-01-01 10:00:{number:02}") for number in [*range(1, 30), *range(20, 50)]]
    state = taken(placed(lines, "rank0.log"))
    taken(placed(lines, "rank1.log"), state)
    assert (state.step_lines, len(state.attempts)) == (59, 2)


def test_ranks_that_come_late_do_not_restart_the_run() -> None:
    ordered = [step(1, rank=0), step(2, rank=0), step(1, rank=1), step(3, rank=0), step(2, rank=1), step(3, rank=1)]
    assert len(taken(placed(ordered)).attempts) == 1


def test_faults_are_those_since_the_last_step() -> None:
    fault = {"v": 1, "kind": "fault", "run": "r", "fault": "xid", "cause": "root", "severity": "critical", "message": "Xid 79"}
    state = taken(placed([step(1), fault]))
    assert [each["fault"] for each in state.faults] == ["xid"]
    assert state.attempt.failed
    state = taken([step(2) | {"src": {"file": "r.log", "offset": 900}}], reopened(state))
    assert state.faults == []
    assert state.fault_counts == {"xid": 1}


def test_the_state_of_a_long_run_stays_small() -> None:
    records = placed([step(number, loss=2 + 1 / number, grad_norm=1.0) for number in range(1, 20_001)])
    for record in records[::100]:
        record["step_seconds"] = 1.5
    assert len(json.dumps(taken(records).to_record())) < 20_000


def test_save_interval_comes_from_times_or_arguments() -> None:
    saves = [{"v": 1, "kind": "checkpoint", "run": "r", "step": 10 * n, "time": f"2026-01-01 10:{n:02}:00"} for n in range(1, 5)]
    assert taken(placed([step(1), *saves])).save_interval_seconds() == 60
    start = {"v": 1, "kind": "start", "run": "r", "arguments": {"save_interval": 50}}
    assert taken(placed([start, step(1), step(2, step_seconds=3.0), step(3, step_seconds=3.0)])).save_interval_seconds() == 150


def test_times() -> None:
    assert seconds_of("2026-01-16T07:32:24Z") == 1768548744
    assert seconds_of("2026-01-16 07:32:24.5") == pytest.approx(seconds_of("2026-01-16T07:32:24") + 0.5)
    assert [seconds_of(text) for text in (None, "yesterday", "9999-99-99 99:99:99", 7)] == [None] * 4


def test_only_a_job_without_a_log_is_looked_for_among_all_runs() -> None:
    """Cron reads thousands of runs, and a record of each: looking through all of them for each took minutes."""

    class Runs(dict[str, RunState]):
        searches = 0

        def values(self) -> Any:
            self.searches += 1
            return super().values()

    runs = Runs()
    for record in (
        {"kind": "step", "run": "a", "step": 1},
        {"kind": "start", "run": "b"},
        {"kind": "job", "run": "c", "job": "7", "log": "c.log"},
    ):
        assert state_lookup.state_for(runs, record) is runs[record["run"]]
    assert runs.searches == 0
    runs["c"].job = {"job": "7"}
    assert state_lookup.state_for(runs, {"kind": "job", "run": "slurm-7", "job": "7"}) is runs["c"]
    assert runs.searches == 1
