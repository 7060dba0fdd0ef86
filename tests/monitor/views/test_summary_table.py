"""The table for people: aligned, one column a run."""

import dataclasses
from pathlib import Path

import pytest

from lt_monitor.runs import run_loader, summary
from lt_monitor.views import summary_table

LOGS = Path(__file__).parents[1] / "samples"
NAMES = ("lt_train.log", "megatron_new.log", "megatron_old.log")


def test_plain_table_is_aligned(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(LOGS)
    summary_table.print_table([summary.summarize(run) for run in run_loader.read(NAMES)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "lt_train", "megatron_new", "megatron_old"]
    rows = {line[: lines[0].index("lt_train")].strip(): line for line in lines}
    assert list(rows)[1:] == [title for title in summary_table.ROWS if title not in summary_table.OF_SEVERAL]
    column = lines[0].index("megatron_new")
    assert rows["step"][column:].startswith("90 / 100 (90.0%)")
    assert rows["restarts"][column:].startswith("1, 13 steps repeated")
    assert rows["checkpoint"][column:].startswith("step 80 in /fsx/moe/checkpoints")
    assert rows["MFU"].endswith("  -")
    assert all(line[column - 2 : column] == "  " for line in lines)


def test_many_runs_are_shown_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = run_loader.read([str(LOGS / "lt_train.log")])
    one = summary.summarize(run)
    summary_table.print_table([one] * 5)
    groups = capsys.readouterr().out.rstrip().split("\n\n")
    assert [group.count("120 / 120") for group in groups] == [4, 1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min"), (125, "2 min 5 s"), (7200, "2 h"), (90_061, "1 d 1 h"), (86_400 * 1234, "1,234 d")],
)
def test_durations(seconds: float, text: str) -> None:
    assert summary_table.duration(seconds) == text


def test_names_and_texts_from_logs_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = run_loader.read([str(LOGS / "story.jsonl")])
    one = summary.summarize(run)
    fault = (one.fault or {}) | {"node": "n\x1b]0;title\x07", "fault": "x\x9b31m"}
    hostile = dataclasses.replace(one, run="a\x1b[2J", checkpoint_path="/x\x1b[H", ended="\x1bc", fault=fault)
    summary_table.print_table([hostile])
    output = capsys.readouterr().out
    assert not {character for character in output if ord(character) < 32 or 127 <= ord(character) < 160} - {"\n"}
