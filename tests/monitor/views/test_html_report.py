"""The report as a file: complete in itself, with the figures of the run, and with text from logs only as text."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_runs import run_of, run_of_columns

from lt_monitor.events.steps import Steps
from lt_monitor.runs import run_loader
from lt_monitor.runs.attempts import Attempt, Run
from lt_monitor.runs.speed import RunFacts
from lt_monitor.views import html_report
from lt_monitor.views.plot_options import PlotOptions

LOGS = Path(__file__).parents[1] / "samples"
ELEMENTS = (
    {"html", "head", "meta", "title", "style", "body", "main", "script", "header", "section", "footer"}
    | {"h1", "h2", "h3", "p", "div", "span", "b", "i", "code", "button", "dl", "dt", "dd", "details", "summary"}
    | {"table", "thead", "tbody", "tr", "th", "td", "svg", "rect", "path", "circle"}
)
SCRIPT = "<script>window.hacked=1</script><img src=x onerror=hacked=1>"
HOSTILE = f"</title></script>{SCRIPT}\"'><!--\x1b[31m\u202e\u2028&amp;${{x}}$title"
LOADS = re.compile(r"url\((?!#)|@import|\bfetch\(|XMLHttpRequest|import\(|WebSocket|https?://(?!www\.w3\.org/2000/svg)")


class Page(HTMLParser):
    """The elements of a page with their attributes, and the text outside scripts and styles."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.data = ""
        self._within: tuple[str, dict[str, str | None]] = ("", {})
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._within = self.elements[-1]

    def handle_endtag(self, tag: str) -> None:
        self._within = ("", {})

    def handle_data(self, data: str) -> None:
        if self._within == ("script", {"type": "application/json", "id": "data"}):
            self.data += data
        elif self._within[0] not in ("script", "style"):
            self.text += data + " "


def page_of(runs: list[Run], references: list[tuple[str, float]] | None = None) -> Page:
    return Page(html_report.build(runs, [run.name for run in runs], RunFacts(), PlotOptions(references=tuple(references or ()))))


def hostile_run() -> Run:
    records = [{"step": step, "loss": 3.0 / step, HOSTILE: 1.0, "time": f"2026-01-01T00:0{step}:00"} for step in range(1, 6)]
    fault = {"kind": "fault", "fault": HOSTILE, "cause": "root", "severity": "critical", "message": HOSTILE, "node": HOSTILE}
    events = [
        {"kind": "start", "arguments": {HOSTILE: HOSTILE, "seq_length": HOSTILE}},
        {"kind": "checkpoint", "step": 4, "path": HOSTILE},
        {**fault, "time": HOSTILE},
        {"kind": "end", "reason": HOSTILE},
    ]
    attempts = [Attempt(1, 0, Steps.from_records(records[:3]), events, 1), Attempt(2, 2, Steps.from_records(records[2:]), events)]
    return Run(HOSTILE, attempts, [HOSTILE])


@pytest.mark.parametrize("runs", [1, 2])
def test_hostile_text_stays_text(runs: int) -> None:
    page = page_of([hostile_run()] * runs, [(HOSTILE, 2.0)])
    assert {tag for tag, _ in page.elements} <= ELEMENTS
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert not {name for _, attributes in page.elements for name in attributes if name.startswith("on")}
    assert page.text.count("window.hacked=1") >= 6
    for text in (page.text, page.data):
        assert not {character for character in text if character in "\x1b\u202e\u2028"}
    assert json.loads(page.data)["runs"][0]["name"].startswith("</title></script><script>")


def test_nothing_is_loaded_from_anywhere() -> None:
    text = html_report.build(run_loader.read([str(LOGS / "story.jsonl")]), ["story"], RunFacts(), PlotOptions())
    page = Page(text)
    used = {name for _, attributes in page.elements for name in attributes}
    assert not used & {"src", "href", "srcset", "action", "xlink:href"}
    assert not LOADS.search(text)
    (policy,) = (attributes["content"] for _, attributes in page.elements if "http-equiv" in attributes)
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_the_figures_are_those_of_the_summary() -> None:
    (run,) = run_loader.read([str(LOGS / "story.jsonl")])
    text = " ".join(Page(html_report.build([run], [run.name], RunFacts(), PlotOptions(), run.updated)).text.split())
    for expected in (
        "Step 400 of 500 (80.0%) · 11 min 55 s left · last line 2026-11-18 07:24",
        "Root cause node-failure on ip-10-1-4-12 in attempt 2",
        "Loss 1.8304 mean of the last tenth 1.8756, -0.0258 since the tenth before, 1 NaN",
        "Validation loss 1.9304 best 1.9304 at step 400",
        "Tokens per second 586,330 7.154 s a step",
        "MFU - 471.5 TFLOP/s per GPU",
        "Tokens seen 1.68 B of 2.1 B",
        "Restarts 2 34 steps repeated",
        "Last checkpoint 400 /fsx/story",
        "Faults 3 without consequences of others",
        "1 2026-11-18 06:00:00 25 min 24 s 2 to 172 22 failed: out-of-memory",
        "root cause out-of-memory 1 172 2026-11-18 06:25:24 rank 37 torch.OutOfMemoryError",
        "follows nccl-timeout x2 1 172 2026-11-18 06:25:24 rank 0, rank 1 [Rank 0] Watchdog",
        "warning xid 63 2 260",
    ):
        assert expected in text.replace("\u00d7", "x"), expected


def test_a_dead_run_has_no_time_left() -> None:
    (run,) = run_loader.read([str(LOGS / "story.jsonl")])
    page = Page(html_report.build([run], [run.name], RunFacts(), PlotOptions(), (run.updated or 0) + 5 * 86400))
    assert "Step 400 of 500 (80.0%) · silent since 2026-11-18 07:24" in " ".join(page.text.split())
    assert " left" not in page.text


def test_the_curves_have_the_steps_of_the_run_and_its_marks() -> None:
    (run,) = run_loader.read([str(LOGS / "story.jsonl")])
    data = json.loads(page_of([run], [("unigram", 6.5)]).data)
    assert [panel["key"] for panel in data["panels"]] == ["loss", "grad_norm", "tokens_per_second"]
    assert (data["steps"], data["references"]) == ([2, 400], [["unigram", 6.5]])
    (drawn,) = data["runs"]
    numbers, losses = run.steps.finite("loss")
    assert drawn["curves"]["loss"]["raw"] == {"steps": numbers.tolist(), "values": pytest.approx(losses.tolist(), rel=1e-4)}
    assert len(drawn["curves"]["loss"]["smooth"]["steps"]) == len(numbers)
    assert [annotation["kind"] for annotation in drawn["annotations"]] == ["restart", "fault", "nan", "fault", "restart", "fault"]
    assert drawn["checkpoints"] == [50, 100, 150, 200, 250, 300, 350, 400]
    assert len(drawn["validation"]) == 8


def test_several_runs_are_compared_with_the_arguments_that_differ() -> None:
    runs = []
    for name, rate in (("one", 0.1), ("two", 0.2)):
        event = {"kind": "start", "arguments": {"lr": rate, "seq_length": 10}}
        runs.append(run_of({"step": 1, "loss": 2.0}, name=name, files=[name], events=[event]))
    page = page_of(runs)
    labels = [attributes["data-label"] for tag, attributes in page.elements if tag == "td"]
    assert labels == ["Run", "Step", "Loss", "Mean"] * 2 + ["Argument", "one", "two"]
    assert "Arguments that differ (1) Argument one two lr 0.1 0.2" in " ".join(page.text.split())
    assert "2 training runs" in page.text


def test_a_run_of_a_million_steps_keeps_its_spikes_and_a_small_page() -> None:
    numbers = np.arange(1, 1_000_001)
    losses = 2 + 1 / numbers + 0.01 * np.sin(numbers)
    losses[654_321] = 77.0
    columns = {"loss": losses, "grad_norm": np.abs(np.sin(numbers)), "step_seconds": np.ones(len(numbers))}
    run = run_of_columns(Steps(numbers, columns, 1e9 + numbers), resumed_at=0)
    text = html_report.build([run], ["a"], RunFacts(), PlotOptions())
    assert len(text) < 300_000
    raw = json.loads(Page(text).data)["runs"][0]["curves"]["loss"]["raw"]
    assert raw["steps"][raw["values"].index(77.0)] == 654_322


def test_a_run_with_losses_alone_has_one_panel() -> None:
    run = run_of({"step": 1, "loss": 2.0})
    page = page_of([run])
    assert [panel["key"] for panel in json.loads(page.data)["panels"]] == ["loss"]
    assert "Attempts" not in page.text
    assert "Faults" in page.text


def test_smoothed_points_that_stand_for_stretches_are_held() -> None:
    """A line between two of them would show an event before its step."""
    for points, is_held in ((html_report.SMOOTH_POINTS, False), (50 * html_report.SMOOTH_POINTS, True)):
        numbers = np.arange(1, points + 1)
        event = points // 3 + 7
        losses = np.where(numbers >= event, 9.0, 2.0)
        run = run_of_columns(Steps(numbers, {"loss": losses, "grad_norm": losses}, 1e9 + numbers), resumed_at=0)
        (drawn,) = json.loads(page_of([run]).data)["runs"]
        for curve in (drawn["curves"]["loss"], drawn["curves"]["grad_norm"]):
            assert curve["held"] == is_held
            risen = next(step for step, value in zip(*curve["smooth"].values(), strict=True) if value > 2)
            assert risen >= event


def test_chosen_metrics_are_the_panels_whatever_their_names() -> None:
    records = [{"step": step, "loss": 2.0, "learning_rate": 1e-4, "metrics": {HOSTILE: 1.0, "name": 3.0}} for step in (1, 2)]
    run = run_of(*records)
    page = Page(html_report.build([run], ["a"], RunFacts(), PlotOptions(metrics=("lr", HOSTILE, "name"), smooth_steps=0)))
    data = json.loads(page.data)
    assert [panel["key"] for panel in data["panels"]] == ["learning_rate", "metric-1", "metric-2"]
    assert data["runs"][0]["name"] == "a"
    assert data["runs"][0]["curves"]["metric-2"]["raw"]["values"] == [3.0, 3.0]
    assert {tag for tag, _ in page.elements} <= ELEMENTS
    assert [panel["large"] for panel in data["panels"]] == [True, False, False]
