"""The live view: what it shows, that it follows the log, and how it ends."""

import io
import os
import threading
from pathlib import Path

import pytest
from made_runs import run_of
from rich.console import Console

from lt_monitor.runs import run_loader
from lt_monitor.runs.speed import RunFacts
from lt_monitor.views.live import reader, watch
from lt_monitor.views.live import screen as drawing
from lt_monitor.views.live.view import View
from lt_shared.console import BadData, UsageError

LOGS = Path(__file__).parents[2] / "samples"
STEP = {"step": 2, "loss": 2.0, "step_seconds": 60.0}


def view_of(*steps: dict, name: str = "a", begin: float = 0.0, events: list[dict] | None = None) -> View:
    return View.of(run_of(*steps, name=name, events=events or [], end_time=begin), name, RunFacts())


def screen(views: list[View], now: float = 0.0, width: int = 100, height: int = 40, trouble: str | None = None) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(drawing.render(views, now, width, height, trouble))
    return capture.get()


def test_a_panel_tells_what_a_person_asks() -> None:
    (run,) = run_loader.read([str(LOGS / "story.jsonl")])
    shown = screen([View.of(run, "story", RunFacts(gpu="NVIDIA H100 80GB HBM3"))], (run.updated or 0) + 65)
    for text in ("400 / 500 (80.0%)", "11 min 55 s left", "1.8756 (-0.0258)", "586,330 tokens/s", "MFU 47.7%", "best 1.9304"):
        assert text in shown
    for text in ("checkpoint step 400", "2, 34 steps repeated", "last line 1 min 5 s ago", "node-failure on ip-10-1-4-12", "█"):
        assert text in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_many_runs_become_a_table() -> None:
    shown = screen([view_of(STEP, name=f"run{number}") for number in range(8)], width=80, height=24)
    lines = shown.splitlines()
    assert lines[1].split()[:5] == ["run", "step", "loss", "tokens/s", "left"]
    assert [line.split()[0] for line in lines[3:11]] == [f"run{number}" for number in range(8)]
    assert max(map(len, lines)) <= 80


def test_a_run_that_falls_silent_has_no_time_left() -> None:
    view = view_of(STEP | {"total_steps": 3})
    assert "1 min left" in screen([view], now=599)
    assert " left" not in screen([view], now=601)
    assert "1 min" in screen([view] * 5, now=599)
    assert "1 min" not in screen([view] * 5, now=601).replace("10 min 1 s", "")
    ended = view_of(STEP, events=[{"kind": "end", "reason": "completed"}])
    assert ended.at(10_000) == ended


def test_texts_from_logs_are_shown_as_text() -> None:
    fault = {
        "kind": "fault",
        "fault": "xid",
        "cause": "root",
        "severity": "critical",
        "message": "[red]x[/red]\x1b[2J\x07",
        "node": "[b]n",
    }
    shown = screen([view_of(STEP, name="[blink]a\x1b]0;t\x07", events=[fault])], trouble=None)
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[blink]a" in shown
    assert "[red]x[/red]" in shown


def test_what_cannot_be_watched() -> None:
    with pytest.raises(UsageError, match="standard input can be read only once"):
        watch.watch(["-"], RunFacts(), 1)
    with pytest.raises(UsageError, match="needs a terminal"):
        watch.watch([str(LOGS / "lt_train.log")], RunFacts(), 1)


def test_a_run_is_watched_before_it_has_a_directory(tmp_path: Path) -> None:
    """As when lt-train was started in another terminal a moment ago, or its job is queued."""
    directory = tmp_path / "run1"
    (tmp_path / "run2").mkdir()
    logs = reader.Logs([str(directory)], RunFacts())
    logs.look_or_wait()
    shown = screen(logs.views, trouble=logs.trouble)
    # A line may break at any space.
    assert "".join(f"waiting for a log: {directory}: no such file (did you mean".split()) in "".join(shown.split())
    directory.mkdir()
    logs.look_again()
    assert logs.is_waiting and "no log in this directory" in str(logs.trouble)
    (directory / "train.log").write_text("lt-train: starting\n")
    logs.look_again()
    assert (logs.is_waiting, logs.trouble, len(logs.views)) == (False, None, 1)
    assert "starting" in screen(logs.views)


def test_a_log_that_goes_away_leaves_what_was_seen(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes((LOGS / "lt_train.log").read_bytes())
    logs = reader.Logs([str(log)], RunFacts())
    logs.look()
    log.unlink()
    logs.look_again()
    assert (len(logs.views), logs.trouble) == (1, f"{log}: no such file")
    log.write_bytes((LOGS / "megatron_old.log").read_bytes())
    logs.look_again()
    assert (logs.views[0].summary.step, logs.trouble) == (200, None)


def test_gpu_samples_among_the_logs_are_shown_with_the_runs(tmp_path: Path) -> None:
    samples = tmp_path / "gpus.jsonl"
    record = '{"v":1,"kind":"gpu","run":"n1","node":"n1","gpu":%d,"utilization":0.5,"src":{"file":"g","offset":0}}\n'
    samples.write_text(record % 0 + record % 1)
    logs = reader.Logs(
        [str(LOGS / "lt_train.log"), str(samples)], RunFacts(), lambda: [{"kind": "gpu", "node": "here", "gpu": 0}]
    )
    logs.look()
    assert ([view.summary.step for view in logs.views], [node.name for node in logs.nodes]) == ([120], ["here", "n1"])
    alone = reader.Logs([str(samples)], RunFacts())
    alone.look()
    assert (alone.views, len(alone.nodes[0].gpus)) == ([], 2)
    empty = tmp_path / "empty.log"
    empty.touch()
    starting = reader.Logs([str(empty)], RunFacts())
    starting.look()
    assert starting.views[0].summary.starting == {"since": None, "seconds": None, "activity": None}
    os.utime(empty, (0, 0))
    with pytest.raises(BadData, match="no training steps"):
        reader.Logs([str(empty)], RunFacts()).look()


def test_the_reader_says_when_it_looked_and_why_it_ended(tmp_path: Path) -> None:
    logs = reader.Logs([str(LOGS / "lt_train.log")], RunFacts())
    looked = threading.Event()
    thread = reader.Reader(logs, 0.01, looked.set)
    thread.start()
    assert looked.wait(10)
    thread.stop()
    thread.join(10)
    assert (thread.is_alive(), thread.failure) == (False, None)
    logs.patterns = [None]
    broken = reader.Reader(logs, 0.01, lambda: None)
    broken.start()
    broken.join(10)
    assert broken.failure is not None


def test_a_log_that_did_not_change_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "a.log"
    log.write_bytes((LOGS / "lt_train.log").read_bytes())
    logs = reader.Logs([str(log)], RunFacts())
    logs.look()
    monkeypatch.setattr(run_loader, "read", lambda patterns, need_steps: pytest.fail("read again"))
    logs.look_again()
