"""The commands for people as they are typed: what they print, and that it is the same for a file and for scraped events."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

LOGS = Path(__file__).parent / "logs"


def run(*arguments: str, cwd: Path = LOGS, stdin: bytes | None = None) -> bytes:
    command = [sys.executable, "-m", "lt_monitor", *arguments]
    done = subprocess.run(command, capture_output=True, cwd=cwd, input=stdin)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def test_runs_prints_a_json_line_for_each_run_with_its_arguments() -> None:
    lines = [json.loads(line) for line in run("runs", "--json", "story.jsonl", "megatron_old.log").splitlines()]
    assert [(line["v"], line["kind"], line["run"], line["step"]) for line in lines] == [
        (1, "run", "story", 400),
        (1, "run", "megatron_old", 200),
    ]
    assert lines[0]["arguments"]["hidden_size"] == 4096


def test_what_the_user_knows_reaches_every_command(tmp_path: Path) -> None:
    shutil.copy(LOGS / "story.jsonl", tmp_path / "a.jsonl")
    assert b"MFU              47.7%" in run("summarize", "a.jsonl", "--gpu", "H100", cwd=tmp_path)
    assert b"47.7%" in run("runs", "a.jsonl", "--gpu", "H100", cwd=tmp_path)
    run("plot", "a.jsonl", "--gpu", "H100", "-o", "a.html", cwd=tmp_path)
    assert "47.7%" in (tmp_path / "a.html").read_text()


def test_plot_without_an_output_prints_sparklines_of_standard_input() -> None:
    assert run("plot", "-", stdin=(LOGS / "story.jsonl").read_bytes()) == run("plot", "story.jsonl")
