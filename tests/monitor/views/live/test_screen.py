"""What is drawn of runs and GPUs at every size. The panels and the table are in test_watch.py."""

import io
from pathlib import Path

import pytest
from made_runs import run_of
from rich.console import Console

from lt_monitor.collect import gpu
from lt_monitor.runs import run_loader
from lt_monitor.runs.speed import RunFacts
from lt_monitor.views.live import screen
from lt_monitor.views.live.screen import Choice, Extent
from lt_monitor.views.live.view import Node, View, nodes_of
from lt_monitor.views.live.watch import after_key

LOGS = Path(__file__).parents[2] / "samples"
SAMPLED = 1767261600.0


def drawn(
    views: list[View],
    width: int = 100,
    height: int = 40,
    nodes: list[Node] | None = None,
    choice: Choice | None = None,
    now: float = SAMPLED,
) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(screen.render(views, now, width, height, None, nodes or [], choice))
    return capture.get()


def story(name: str = "story") -> View:
    (run,) = run_loader.read([str(LOGS / "story.jsonl")])
    return View.of(run, name, RunFacts())


def sample(node: str, number: int, **fields: object) -> dict:
    return {"kind": "gpu", "node": node, "gpu": number, "time": "2026-01-01T10:00:00Z", **fields}


def test_a_page_has_curves_attempts_and_faults() -> None:
    page = drawn([story(), story("other")], choice=Choice("story", is_open=True))
    assert "other" not in page
    for text in ("grad norm", "TFLOP/s", "R restart", "2  2026-11-18 06:34:24  24 min 5 s  152 to 312  node-failure", "xid"):
        assert text in page
    assert len(drawn([story()], height=15, choice=Choice("story", is_open=True)).splitlines()) <= 15


def test_the_chosen_run_is_marked_wherever_it_is() -> None:
    views = [story(f"run{number:02}") for number in range(3)]
    assert [line[0] for line in drawn(views, choice=Choice("run01")).splitlines() if "run0" in line] == ["╭", "┏", "╭"]
    many = [story(f"run{number:02}") for number in range(30)]
    table = drawn(many, height=15, choice=Choice("run25"))
    assert "run25" in table
    assert "run00" not in table
    assert " of 30" in table
    assert len(table.splitlines()) <= 15


def test_gpus_are_a_line_for_each_node() -> None:
    gib = 2**30
    samples = [
        sample("n1", 0, utilization=0.1, temperature_celsius=99),
        *(
            sample(node, number, utilization=number / 2, memory_bytes=70 * gib, memory_total_bytes=80 * gib, power_watts=600.5)
            for node in ("n2", "n1")
            for number in range(3)
        ),
        sample("n1", 1, utilization=1.0, clock_limits=["hw_slowdown"], ecc_uncorrected_errors=2),
        sample("n2", 1, utilization=1.0, clock_limits=["gpu_idle"]),
    ]
    nodes = nodes_of(samples)
    lines = [line.strip() for line in drawn([story()], nodes=nodes).splitlines() if " GPUs, " in line]
    assert lines[0] == "n1   ██  3 GPUs, 67% busy, 70 of 80 GiB, 1201 W, 1 slowed down, 2 memory errors"
    assert lines[1] == "n2   ██  3 GPUs, 67% busy, 70 of 80 GiB, 1201 W"
    assert "1 d ago" in drawn([story()], nodes=nodes, now=SAMPLED + 86_400)
    assert "ago" not in drawn([], nodes=nodes, now=SAMPLED + 60)


def test_many_nodes_leave_room_for_the_runs() -> None:
    nodes = nodes_of(sample(f"node{number:03}", 0, utilization=0.5) for number in range(100))
    shown = drawn([story()], height=24, nodes=nodes)
    assert shown.count("1 GPU, 50% busy") == 7
    assert "93 more nodes" in shown
    assert "story" in shown
    assert len(shown.splitlines()) <= 24


@pytest.mark.parametrize("width", [1, 5, 20, 40, 300])
@pytest.mark.parametrize("height", [1, 5, 24])
@pytest.mark.parametrize("is_open", [False, True])
def test_any_size_will_do(width: int, height: int, is_open: bool) -> None:
    views = [story(), View.of(run_of({"step": 1, "loss": None}, name="b"), "b", RunFacts())]
    nodes = nodes_of([sample("node", 0, utilization=2.0, temperature_celsius=-5.0)])
    for name in ("story", "b", None):
        shown = drawn(views, width, height, nodes, Choice(name, is_open, True))
        assert max(map(len, shown.splitlines())) <= width


def test_texts_from_logs_are_shown_as_text_on_every_screen() -> None:
    fault = {
        "kind": "fault",
        "fault": "x\x1b[2J",
        "cause": "root",
        "severity": "critical",
        "message": "[red]m\x07",
        "time": "\x1b]0;",
    }
    end = {"kind": "end", "reason": "\x9b31m"}
    run = run_of({"step": 1, "loss": 1.0}, events=[fault, end])
    view = View.of(run, "[blink]a\x1b]0;t\x07", RunFacts())
    nodes = nodes_of([sample("[b]n\x1b[2J", 0, utilization=0.5)])
    for shown in (drawn([view], nodes=nodes), drawn([view] * 9, nodes=nodes), drawn([view], choice=Choice(view.name, True))):
        assert not {character for character in shown if ord(character) < 32 or 127 <= ord(character) < 160} - {"\n"}
        assert "[blink]a" in shown
    assert "[red]m" in drawn([view], choice=Choice(view.name, True))


@pytest.mark.parametrize(
    ("keys", "name", "is_open"),
    [
        (["down"], "a", False),
        (["up"], "c", False),
        (["down", "down", "down", "down"], "c", False),
        (["enter"], "a", True),
        (["down", "down", "enter", "left"], "a", True),
        (["enter", "escape", "backspace", "x", ""], "a", False),
    ],
)
def test_keys(keys: list[str], name: str, is_open: bool) -> None:
    choice = Choice(has_keys=True)
    for key in keys:
        choice = after_key(choice, key, ["a", "b", "c"])
    assert choice == Choice(name, is_open, True)


@pytest.mark.parametrize(
    ("keys", "first_line"),
    [
        (["down", "down", "up"], 1),
        (["up"], 0),
        (["page down"], 9),
        (["page down", "page up"], 0),
        (["end"], 15),
        (["end", "down", "page down", "up"], 14),
        (["end", "home"], 0),
        (["down", "right"], 0),
        (["down", "escape"], 0),
    ],
)
def test_keys_scroll_an_open_page(keys: list[str], first_line: int) -> None:
    """Of 25 lines, 10 fit."""
    choice = Choice("a", is_open=True)
    for key in keys:
        choice = after_key(choice, key, ["a", "b"], Extent(25, 10))
    assert choice.first_line == first_line


@pytest.mark.parametrize(
    ("keys", "name"), [(["page down"], 9), (["page down"] * 5, 39), (["end"], 39), (["end", "page up"], 30), (["end", "home"], 0)]
)
def test_keys_scroll_many_runs_by_a_screen(keys: list[str], name: int) -> None:
    choice = Choice("0")
    for key in keys:
        choice = after_key(choice, key, [str(number) for number in range(40)], Extent(40, 10))
    assert choice.name == str(name)


@pytest.mark.parametrize("height", [12, 14, 20, 30])
def test_scrolling_shows_every_line_of_a_page(height: int) -> None:
    view = story()
    whole = drawn([view], height=200, choice=Choice("story", is_open=True)).splitlines()[1:-1]
    extent = screen.screen_of([view], Choice("story", is_open=True), 100, height)
    seen: set[str] = set()
    for first_line in range(extent.lines - extent.visible_lines + 1):
        page = drawn([view], height=height, choice=Choice("story", is_open=True, first_line=first_line))
        assert len(page.splitlines()) <= height
        seen |= set(page.splitlines())
    assert set(whole) <= seen


def test_keys_without_runs_or_for_one_that_went_away() -> None:
    assert after_key(Choice(), "enter", []) == Choice()
    assert after_key(Choice("gone", is_open=True), "down", ["a"]) == Choice("a", is_open=True)
    assert "story" in drawn([story()], choice=Choice("gone", is_open=True))


def test_this_machines_gpus_are_shown_where_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu.local() == []
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'index, uuid, utilization.gpu [%]'\necho '0, GPU-1, 40'\necho '1, GPU-2, 60'\n")
    program.chmod(0o755)
    (node,) = nodes_of(gpu.local())
    assert node.values("utilization") == [0.4, 0.6]
    program.write_text("#!/bin/sh\nexit 9\n")
    assert gpu.local() == []
