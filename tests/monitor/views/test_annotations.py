"""What is marked in a run, and at which step."""

from pathlib import Path

import pytest

from lt_monitor.runs import run_loader
from lt_monitor.runs.attempts import Attempt, Run
from lt_monitor.views import annotations

STORY = str(Path(__file__).parents[1] / "samples" / "story.jsonl")


@pytest.fixture(scope="module")
def story() -> Run:
    (run,) = run_loader.read([STORY])
    return run


def run_of(*events: dict) -> Run:
    records = [{"v": 1, "run": "a", "src": {"file": "a.log", "offset": offset}, **event} for offset, event in enumerate(events)]
    (run,) = run_loader.assemble(records)
    return run


def fault(**fields: object) -> dict:
    return {"kind": "fault", "fault": "xid", "cause": "root", "severity": "critical", "message": "m", **fields}


def step(number: int, **fields: object) -> dict:
    return {"kind": "step", "step": number, "loss": 2.0, **fields}


def test_the_story_has_its_restarts_faults_and_missing_losses(story: Run) -> None:
    assert [(mark.kind, mark.step, mark.until) for mark in annotations.annotations_of(story)] == [
        ("restart", 150, 172),
        ("fault", 172, 172),
        ("nan", 220, 220),
        ("fault", 260, 260),
        ("restart", 300, 312),
        ("fault", 312, 312),
    ]


def test_the_root_cause_names_a_mark_that_cascades_share(story: Run) -> None:
    texts = [mark.text for mark in annotations.annotations_of(story)]
    assert texts[0] == "attempt 2 resumed from step 150, 22 steps repeated"
    assert texts[1].startswith("out-of-memory (and 2 more): torch.OutOfMemoryError")
    assert texts[2] == "loss is not a number at step 220"


def test_a_fault_is_at_the_step_logged_last_before_it() -> None:
    minutes = [f"2026-01-01T00:0{minute}:00" for minute in range(6)]
    steps = [step(number, time=minutes[number]) for number in (1, 2, 4)]
    (mark,) = annotations.annotations_of(run_of(*steps, fault(time=minutes[3])))
    assert mark.step == 2
    (mark,) = annotations.annotations_of(run_of(*steps, fault(time=minutes[0])))
    assert mark.step == 0
    (mark,) = annotations.annotations_of(run_of(*steps, fault()))
    assert mark.step == 4
    (mark,) = annotations.annotations_of(run_of(*steps, fault(step=1)))
    assert mark.step == 1


def test_a_first_attempt_that_began_at_a_later_step_is_no_restart_unless_it_says_so() -> None:
    assert annotations.annotations_of(run_of(step(10), step(20))) == []
    (mark,) = annotations.annotations_of(run_of({"kind": "load", "step": 100}, step(110)))
    assert (mark.kind, mark.step, mark.text) == ("restart", 100, "attempt 1 resumed from step 100")


def test_faults_that_only_inform_are_not_marked() -> None:
    assert annotations.annotations_of(run_of(step(1), fault(severity="info"))) == []


def test_very_many_losses_without_a_number_share_marks() -> None:
    found = annotations.annotations_of(run_of(*[step(number, loss=None) for number in range(1, 1001)]))
    assert len(found) == annotations.NAN_GROUPS
    assert found[0].text == "losses are not numbers, 1 to 5"


def test_very_many_faults_share_marks() -> None:
    times = [f"2026-01-01T{number // 60:02}:{number % 60:02}:00" for number in range(601)]
    events = [event for number in range(1, 601) for event in (step(number, time=times[number]), fault(time=times[number]))]
    found = annotations.annotations_of(run_of(*events))
    assert len(found) == annotations.FAULT_GROUPS
    assert (found[1].step, found[1].text) == (4, "xid (and 2 more): m")


def test_an_attempt_without_any_step_marks_its_fault_where_it_would_have_gone_on() -> None:
    attempt = Attempt(2, resumed_at=40)
    assert annotations.fault_step(fault(), attempt) == 40
