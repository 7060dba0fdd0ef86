"""Many runs in one table."""

from pathlib import Path

import pytest
from made_runs import run_of

from lt_monitor.runs import run_loader
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.summary import summarize
from lt_monitor.views import runs_table

LOGS = Path(__file__).parents[1] / "samples"


def run_with(name: str, **arguments: object) -> Run:
    event = {"kind": "start", "arguments": arguments}
    return run_of({"step": 5, "loss": 2.0}, name=name, events=[event])


def test_a_row_for_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    runs = run_loader.read([str(LOGS / name) for name in ("story.jsonl", "megatron_old.log")])
    runs_table.print_table(runs, ["story", "old"], [summarize(run) for run in runs])
    head, first, second, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[:9] == ["run", "step", "done", "loss", "mean", "validation", "best", "tokens/s", "left"]
    assert first.split()[:7] == ["story", "400", "80%", "1.8304", "1.8756", "1.9304", "1.9304"]
    assert second.split()[:3] == ["old", "200", "100%"]
    assert first[head.index("fault") :].startswith("node-failure")
    assert first[head.index("restarts")] == "2"


def test_the_arguments_that_differ_are_columns() -> None:
    runs = [run_with("a", lr=0.1, seq_length=10, save="/a"), run_with("b", lr=0.2, seq_length=10, save="/b"), run_with("c")]
    assert runs_table.differences(runs) == {"lr": ["0.1", "0.2", ""]}
    assert runs_table.differences(runs[:1]) == {}
    assert runs_table.differences([runs[0], runs[2]]) == {}


def test_of_very_many_differences_only_some_are_columns(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run_with(name, **{f"argument_{number}": name for number in range(9)}) for name in "ab"]
    runs_table.print_table(runs, ["a", "b"], [summarize(run) for run in runs])
    head, *_, more = capsys.readouterr().out.splitlines()
    assert head.split()[-6:] == [f"argument_{number}" for number in range(6)]
    assert more.endswith(": argument_6, argument_7, argument_8")


def test_columns_that_nobody_has_are_left_out() -> None:
    assert list(runs_table.columns([summarize(run_with("a"))])) == ["step", "loss", "mean"]


def test_names_and_arguments_from_logs_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run_with("a", **{"l\x1br": "x\x1b[2J"}), run_with("b", **{"l\x1br": "y\x07" + "z" * 100})]
    runs_table.print_table(runs, ["a\x1b[31m", "b\n"], [summarize(run) for run in runs])
    output = capsys.readouterr().out
    assert not {character for character in output if ord(character) < 32} - {"\n"}
    assert max(map(len, output.splitlines())) < 80
