"""Logs of trainers that nobody here knows, read by patterns of the user's."""

import time
from pathlib import Path
from typing import Any

import pytest

from lt_monitor.events import records
from lt_monitor.events.records import Record
from lt_monitor.logs import user_patterns
from lt_monitor.logs.log_parser import LogParser
from lt_shared.console import BadConfig, NoInput

PATTERN = (
    r"update (?P<step>\d+) of (?P<total_steps>\d+), loss (?P<loss>\S+), (?P<step_milliseconds>[\d.]+) ms, heads (?P<heads>[\d.]+)"
)
LINE = "2026-01-16 07:32:{second:02} [I] update {step} of 1000, loss {loss}, 120.{tenth} ms, heads {step}.5 | host 3\n"
TOML = r"""
[[eval]]
pattern = 'valid n=(?P<step>\d+) l=(?P<loss>\S+)'
split = "test"
[[step]]
pattern = 'n=(?P<step>\d+) l=(?P<loss>\S+)'
[[checkpoint]]
pattern = 'wrote (?P<path>/\S+)'
[[fault]]
pattern = 'loader ran out of shards'
severity = "warning"
[[end]]
pattern = '^all done'
"""


def text_of(steps: range, loss: str = "2.5") -> str:
    return "".join(LINE.format(second=step % 60, step=step, loss=loss, tenth=step % 10) for step in steps)


def parse(text: str, patterns: list[user_patterns.UserPattern]) -> list[Record]:
    with user_patterns.using(patterns):
        found = LogParser().parse(text.encode(), 0).records("log", "run")
    assert all(records.problem(dict(record)) is None for record in found)
    return found


def toml(tmp_path: Path, text: str) -> list[user_patterns.UserPattern]:
    (tmp_path / "p.toml").write_text(text)
    return user_patterns.read(str(tmp_path / "p.toml"))


def test_the_groups_of_a_pattern_are_the_fields_of_a_step() -> None:
    (record,) = parse(text_of(range(7, 8)), [user_patterns.step_pattern(PATTERN)])
    assert record == {
        "v": 1,
        "kind": "step",
        "run": "run",
        "step": 7,
        "total_steps": 1000,
        "loss": 2.5,
        "step_seconds": 0.1207,
        "metrics": {"heads": 7.5},
        "time": "2026-01-16T07:32:07",
        "src": {"file": "log", "offset": 0},
    }


def test_many_lines_are_read_by_columns_as_each_alone() -> None:
    patterns = [user_patterns.step_pattern(PATTERN)]
    lines = text_of(range(100, 1100)).splitlines(keepends=True)
    whole = parse("".join(lines), patterns)
    alone = [parse(line, patterns)[0] for line in lines]
    assert [{**record, "src": None} for record in whole] == [{**record, "src": None} for record in alone]
    with user_patterns.using(patterns):
        assert len(LogParser().parse("".join(lines).encode(), 0).items) < 100


def test_what_the_tool_knows_is_still_read_and_patterns_come_first() -> None:
    other = "CUDA error: an illegal memory access was encountered\n"
    assert [record["kind"] for record in parse(text_of(range(2)) + other, [user_patterns.step_pattern(PATTERN)])] == [
        "step",
        "step",
        "fault",
    ]
    line = "torch.OutOfMemoryError: CUDA out of memory, step=3 loss=1.5\n"
    found = parse(line, [user_patterns.step_pattern(r"step=(?P<step>\d+) loss=(?P<loss>\S+)")])
    assert [(record["kind"], record.get("step")) for record in found] == [("fault", None), ("step", 3)]


def test_no_pattern_outlives_its_command() -> None:
    parse(text_of(range(2)), [user_patterns.step_pattern(PATTERN)])
    assert LogParser().parse(text_of(range(2)).encode(), 0).items == []


def test_a_file_of_patterns(tmp_path: Path) -> None:
    log = "n=1 l=nan\nn=2 l=2.5\nvalid n=2 l=2.75\nwrote /ckpt/2\nloader ran out of shards\nall done\n"
    step, second, evaluation, checkpoint, fault, end = parse(log, toml(tmp_path, TOML))
    assert (step["step"], step["loss"], second["loss"]) == (1, None, 2.5)
    assert (evaluation["kind"], evaluation["step"], evaluation["loss"], evaluation["split"]) == ("eval", 2, 2.75, "test")
    assert (checkpoint["path"], checkpoint["step"]) == ("/ckpt/2", 2)
    assert (fault["fault"], fault["severity"], fault["message"]) == ("traceback", "warning", "loader ran out of shards")
    assert (end["kind"], end["reason"]) == ("end", "completed")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no patterns"),
        ("[[step]\n", "not TOML"),
        ("[[steps]]\npattern = 'x'", "'steps' is not a kind of event"),
        ("[step]\npattern = 'x'", "'step' is not a kind of event"),
        ("[[step]]\n", "no pattern"),
        ("[[step]]\npattern = '('", "not a regular expression"),
        ("[[step]]\npattern = 'x(?P<loss>.)'", "no group named step"),
        ("[[end]]\npattern = 'x*'", "matches an empty line"),
        ("[[end]]\npattern = 'x'\nreason = 'bored'", "reason = 'bored'"),
        ("[[end]]\npattern = 'x'\nwhy = 1", "why is no setting"),
    ],
)
def test_files_that_hold_no_patterns(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadConfig, match=said) as raised:
        toml(tmp_path, text)
    assert "p.toml" in str(raised.value)
    assert raised.value.hint


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(NoInput):
        user_patterns.read("no/such.toml")


def test_numbers_that_are_none_do_no_harm() -> None:
    pattern = user_patterns.step_pattern(r"step=(?P<step>\S+) loss=(?P<loss>\S+)")
    found = parse("step=x loss=1\nstep=-1 loss=2\nstep=1e99 loss=3\nstep=4 loss=y\nstep=5 loss=6\n", [pattern])
    assert [(record["step"], record["loss"]) for record in found] == [(5, 6.0)]


def test_a_log_without_matches_is_read_at_the_speed_of_re() -> None:
    pattern = user_patterns.step_pattern(PATTERN)
    begin = time.process_time()
    assert parse("nothing of interest in this line, 123 of 456\n" * 500_000, [pattern]) == []
    assert time.process_time() - begin < 20


@pytest.mark.parametrize("command", ["summarize", "runs", "goodput", "scrape", "alert", "prom", "plot", "diff", "export"])
def test_every_command_that_reads_logs_takes_patterns(tool: Any, tmp_path: Path, command: str) -> None:
    (tmp_path / "a.log").write_text(text_of(range(1, 40)))
    outputs = {"prom": ["-o", str(tmp_path / "lt.prom")], "export": ["-o", str(tmp_path / "events")]}
    logs = [str(tmp_path / "a.log")] * (2 if command == "diff" else 1)
    done = tool(command, "--generic", PATTERN, *outputs.get(command, []), *logs)
    assert (done.returncode, "no training steps" in done.stderr) == (0, False), done.stderr
    assert tool(command, "--generic", "(", *outputs.get(command, []), *logs).returncode == 78
    (tmp_path / "p.toml").write_text(f"[[step]]\npattern = '''{PATTERN}'''\n")
    assert tool(command, "--patterns", str(tmp_path / "p.toml"), *outputs.get(command, []), *logs).returncode == 0


def test_the_file_in_the_guide(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/logs.md").read_text()
    patterns = toml(tmp_path, guide.partition("```toml\n")[2].partition("```")[0])
    log = "update 7 of 9, loss 2.5\nheldout after 7: 2.75\nwrote /ckpt at 7\nloader ran out of shards\n"
    log += "update 8 of 9, loss 2\nall updates done\n"
    assert [(record["kind"], record.get("step")) for record in parse(log, patterns)] == [
        ("step", 7),
        ("eval", 7),
        ("checkpoint", 7),
        ("fault", None),
        ("step", 8),
        ("end", 8),
    ]
