"""Attempts and the steps done again: the same in every view, and what a hand calculation gives, whatever the log interval is."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from monitor_command import monitor

from lt_monitor.runs import run_loader, time_accounting
from lt_monitor.runs.attempt_boundary import begins_attempt, guessed_resume, interval_begin, log_interval, start_key
from lt_monitor.runs.run_state import RunState


class Story:
    """The records of a run that is killed and goes on from its newest checkpoint, and what they must come to."""

    def __init__(self, log_interval: int, save_interval: int, lengths: list[int], has_arguments: bool):
        self.records: list[dict[str, Any]] = []
        self.resumed_at: list[int] = []
        self.last_steps: list[int] = []
        saved = 0
        for length in lengths:
            if has_arguments:
                self._add("start", arguments={"log_interval": log_interval, "train_iters": 10**6})
            self.resumed_at.append(saved)
            step = begin = saved
            while step < begin + length * log_interval:
                step += 1
                if step % log_interval == 0:
                    self._add("step", step=step, loss=2.0, step_seconds=1.0)
                if step % save_interval == 0:
                    saved = step
                    self._add("checkpoint", step=step)
            self.last_steps.append(step // log_interval * log_interval)

    def _add(self, kind: str, **fields: Any) -> None:
        src = {"file": "run.log", "offset": 100 * len(self.records)}
        self.records.append({"v": 1, "kind": kind, "run": "run", **fields, "src": src})

    @property
    def lost_steps(self) -> int:
        return sum(
            max(0, last - max(min(self.resumed_at[index + 1 :]), self.resumed_at[index]))
            for index, last in enumerate(self.last_steps[:-1])
        )


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Attempts that lose two lines or more: the log shows then that steps go back, and where each attempt begins."""
    log_interval = draw(st.sampled_from([1, 2, 5, 10, 100]))
    save_interval = log_interval * draw(st.integers(3, 4))
    lengths = [draw(st.integers(1, 3)) * (save_interval // log_interval) + 2 for _ in range(draw(st.integers(1, 4)))]
    return Story(log_interval, save_interval, lengths, draw(st.booleans()))


def views(records: list[dict[str, Any]]) -> Iterator[tuple[int, int, list[int | None]]]:
    """Restarts, lost steps and where each attempt went on: of whole runs (summarize, plot), and as states grow (alert, prom)."""
    (run,) = run_loader.assemble(records)
    yield run.restarts, run.lost_steps, [attempt.resumed_at for attempt in run.attempts]
    state = RunState("run")
    for record in records:
        state.take(record, now=1e9)
    account = time_accounting.account(state.attempts)
    yield account.restarts, account.lost_steps, [attempt.resumed_at for attempt in state.attempts]


@given(stories())
def test_every_view_gives_what_happened(story: Story) -> None:
    expected = len(story.resumed_at) - 1, story.lost_steps, story.resumed_at
    assert list(views(story.records)) == [expected, expected]


@given(stories(), st.data())
def test_a_state_that_was_kept_between_passes_gives_the_same(story: Story, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(story.records)))
    state = RunState("run")
    for record in story.records[:cut]:
        state.take(record, now=1e9)
    state = RunState.from_record(json.loads(json.dumps(state.to_record())))
    for record in story.records[cut:]:
        state.take(record, now=1e9)
    assert time_accounting.account(state.attempts).lost_steps == story.lost_steps


@given(stories())
def test_all_seconds_of_training_are_counted(story: Story) -> None:
    """A step takes a second here: the first line of an attempt stands for as many steps as the others."""
    state = RunState("run")
    for record in story.records:
        state.take(record, now=1e9)
    trained = sum(last - begin for last, begin in zip(story.last_steps, story.resumed_at, strict=True))
    assert sum(attempt.step_seconds for attempt in state.attempts) == pytest.approx(trained)


def test_the_commands_agree(tmp_path: Path) -> None:
    """Steps 10 to 50, a checkpoint at 30, then 40 to 60: 40 and 50 were done again, which are 20 steps."""
    lines = []
    for step in (10, 20, 30, 40, 50, 40, 50, 60):
        lines.append(
            f" iteration {step:8d}/    1000 | consumed samples: {step * 8:12d} | elapsed time per iteration (ms): 1000.0 |"
            " learning rate: 1.0E-04 | global batch size:     8 | lm loss: 2.5E+00 | loss scale: 1.0 | grad norm: 1.000 |"
            " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        )
        if step == 30 and len(lines) < 5:
            lines.append("  successfully saved checkpoint from iteration      30 to /save\n")
    (tmp_path / "run.log").write_text("".join(lines))

    def said(*words: str) -> str:
        return subprocess.run(monitor(*words, "run.log"), cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    summary, goodput = json.loads(said("summarize", "--json")), json.loads(said("goodput", "--json"))
    assert (summary["runs"][0]["lost_steps"], goodput["lost_steps"]) == (20, 20)
    assert re.search(r'^lt_train_lost_steps_total\{run="run",monitor="[^"]+"\} 20$', said("prom"), re.MULTILINE)


@pytest.mark.parametrize(
    ("record", "last_steps", "begins"),
    [
        ({"kind": "note", "note": "initialized"}, {"0": 5}, True),
        ({"kind": "note", "note": "initialized"}, {}, False),
        ({"kind": "note", "note": "replaced"}, {"0": 5}, False),
        ({"kind": "note"}, {"0": 5}, False),
        ({"kind": "checkpoint"}, {"0": 5}, False),
        ({"kind": "load"}, {"0": 5}, True),
        ({"kind": "load"}, {}, False),
        ({"kind": "start", "arguments": {}}, {"0": 5}, True),
        ({"kind": "start", "arguments": {}}, {}, False),
        ({"kind": "step", "step": 0}, {}, False),
        ({"kind": "step", "step": 5}, {"0": 5}, False),
        ({"kind": "step", "step": 4}, {"0": 5}, True),
        ({"kind": "step", "step": 4}, {"1": 5}, False),
    ],
)
def test_what_begins_an_attempt(record: dict[str, Any], last_steps: dict[str, int], begins: bool) -> None:
    assert begins_attempt(record, "0", last_steps, ()) is begins


@pytest.mark.parametrize(
    ("argument", "own", "earlier", "interval"),
    [
        (None, None, [], 1), (None, None, [None, 0, -5], 1), (1, 10, [100], 1), (None, 1, [100], 1), (None, -5, [100], 100),
        (0, 10, [], 10), (None, None, [100, 10, None], 10), (-7, None, [], 1),
    ],
)  # fmt: skip
def test_the_interval_of_step_lines(argument: int | None, own: int | None, earlier: list[int | None], interval: int) -> None:
    assert log_interval(argument, own, earlier) == interval


@pytest.mark.parametrize(
    ("first_step", "interval", "resumed_at", "begin"),
    [
        # Where the resume is known and earlier, it is the begin; a step that resumed at itself or later is taken alone.
        (110, 10, 105, 105), (110, 10, 0, 0), (111, 10, 111, 110), (111, 10, 120, 110), (110, 10, 110, 100),
        # A multiple of the interval ends a whole one; any other step was printed alone.
        (110, 10, None, 100), (10, 10, None, 0), (111, 10, None, 110), (7, 10, None, 6), (20, 7, None, 19), (0, 10, None, -1),
    ],
)  # fmt: skip
def test_where_the_interval_of_the_first_line_began(first_step: int, interval: int, resumed_at: int | None, begin: int) -> None:
    assert interval_begin(first_step, interval, resumed_at) == begin


@pytest.mark.parametrize(
    ("first_step", "interval", "saved", "is_first", "resume"),
    [
        (10, 10, [], True, 0), (11, 10, [], True, None), (110, 10, [100], False, 100), (110, 10, [99], False, 100),
        (110, 10, [103, 107, 50], False, 107), (110, 10, [110, 120], False, 100), (115, 10, [], False, 114),
        (115, 10, [105], False, 105),
    ],
)  # fmt: skip
def test_the_step_that_a_resume_is_guessed_from(
    first_step: int, interval: int, saved: list[int], is_first: bool, resume: int
) -> None:
    assert guessed_resume(first_step, interval, saved, is_first) == resume


def test_a_start_that_was_there_already_begins_an_attempt() -> None:
    """A trainer may print several starts for one, each with other arguments; the first of them again is another start."""
    first, second = {"kind": "start", "arguments": {"b": 1, "a": 2}}, {"kind": "start", "arguments": {"c": 1}, "first_step": 7}
    assert (start_key(first, "0"), start_key(second, "0")) == ("0 a b False", "0 c True")
    started = {start_key(first, "0")}
    assert begins_attempt(first, "0", {}, started)
    assert not begins_attempt(first, "1", {}, started)
    assert not begins_attempt(second, "0", {}, started)
