"""A process that waits for its turn."""

import os
import sys
import time
from pathlib import Path

from training.process import Process

WAITS = "import json, pathlib, sys; print('ready', flush=True); sys.stdin.read(); "
WRITES = "pathlib.Path(sys.argv[2]).write_text(json.dumps({'found': 1}))"


def ready(code: str, tmp_path: Path) -> Process:
    process = Process([sys.executable, "-c", code], os.environ, tmp_path / "log")
    for _ in range(200):
        if "ready" in process.log.read_text():
            return process
        time.sleep(0.05)
    raise AssertionError("did not start")


def test_it_does_its_work_when_it_is_told_to(tmp_path: Path) -> None:
    marks = f"pathlib.Path({str(tmp_path / 'begun')!r}).touch(); "
    process = ready(WAITS + marks + WRITES, tmp_path)
    time.sleep(0.2)
    assert not (tmp_path / "begun").exists()
    assert process.finish(20) == ({"found": 1}, "exit code 0")
    assert (tmp_path / "begun").exists()


def test_a_failure_finds_nothing(tmp_path: Path) -> None:
    assert ready(WAITS + WRITES + "; sys.exit(3)", tmp_path).finish(20) == (None, "exit code 3")


def test_what_takes_too_long_is_ended(tmp_path: Path) -> None:
    process = ready(WAITS + "import time; time.sleep(600)", tmp_path)
    assert process.finish(0.2) == (None, "no end within 0 s")
    assert not Path(f"/proc/{process._process.pid}").exists()


def test_one_that_is_not_needed_does_not_begin(tmp_path: Path) -> None:
    process = ready(WAITS + f"pathlib.Path({str(tmp_path / 'begun')!r}).touch()", tmp_path)
    process.end()
    assert not (tmp_path / "begun").exists()
