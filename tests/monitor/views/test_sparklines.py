"""The curves as text: aligned, with the marks at their places, and safe on a terminal."""

from pathlib import Path

import pytest
from made_runs import run_of

from lt_monitor.runs import metrics, run_loader
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.curves import SPARKS
from lt_monitor.runs.speed import RunFacts
from lt_monitor.views import sparklines

STORY = str(Path(__file__).parents[1] / "samples" / "story.jsonl")


def shown(run: Run, name: str, width: int) -> str:
    return sparklines.of_run(run, name, [(metric, curve) for metric, (curve,) in metrics.curves_of([run], RunFacts())], width)


def test_the_story_on_a_terminal_of_80_columns() -> None:
    (run,) = run_loader.read([STORY])
    lines = shown(run, "story", 80).splitlines()
    assert lines[0] == "story  step 400 of 500"
    assert [line[:12].strip() for line in lines[1:4]] == ["loss", "grad norm", "tokens/s"]
    assert max(map(len, lines)) <= 80
    curves = [line[20:70] for line in lines[1:4]]
    assert all(set(curve) <= set(SPARKS) for curve in curves)
    assert (curves[0][0], curves[0][-1]) == ("█", "▁")
    places = {place - 20: sign for place, sign in enumerate(lines[4]) if sign != " "}
    assert places == {18: "R", 21: "X", 27: "N", 32: "X", 37: "R", 38: "X"}
    assert lines[5].split("  ")[-3:] == ["R restart", "N loss not a number", "X fault"]


@pytest.mark.parametrize("width", [1, 20, 40, 500])
def test_any_width_will_do(width: int) -> None:
    (run,) = run_loader.read([STORY])
    assert max(len(line) for line in shown(run, "story", width).splitlines()) <= max(width, 60)


def test_a_run_with_nothing_but_a_loss() -> None:
    run = run_of({"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0})
    assert shown(run, "a", 40) == "a  step 2\nloss              3 █▁ 2.0000"


def test_a_hostile_name_stays_text() -> None:
    text = shown(run_of({"step": 1, "loss": 3.0}), "a\x1b[2J\x07\n", 60)
    assert text.startswith("a\\x1b[2J\\x07\\n  step 1\n")
