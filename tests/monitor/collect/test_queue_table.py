"""squeue's table for people, saved to a file."""

import json
from pathlib import Path
from typing import Any

SHORT = """\
             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)
                77     debug gpt run1     anna  R      12:30      2 n[1-2]
        88_[4-9%2]       gpu      gpt     anna PD       0:00      1 (Resources)
"""
LONG = """\
Mon Nov 30 10:00:00 2026
             JOBID PARTITION     NAME     USER    STATE       TIME TIME_LIMI  NODES NODELIST(REASON)
                79     debug      gpt     anna COMPLETI       1:02   1:00:00      1 n1
"""


def jobs(tool: Any, path: Path, text: str) -> list[dict[str, Any]]:
    path.write_text(text)
    done = tool("slurm", str(path))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_short_table(tool: Any, tmp_path: Path) -> None:
    running, waiting = jobs(tool, tmp_path / "queue.txt", SHORT)
    assert (running["job"], running["state"], running["name"], running["nodes"]) == ("77", "RUNNING", "gpt run1", "n[1-2]")
    assert (running["user"], running["partition"], running["node_count"]) == ("anna", "debug", 2)
    assert (waiting["job"], waiting["state"], waiting["reason"]) == ("88", "PENDING", "Resources")
    assert "nodes" not in waiting


def test_the_long_table(tool: Any, tmp_path: Path) -> None:
    (ending,) = jobs(tool, tmp_path / "queue.txt", LONG)
    assert (ending["job"], ending["state"], ending["nodes"]) == ("79", "COMPLETING", "n1")


def test_an_empty_table(tool: Any, tmp_path: Path) -> None:
    (note,) = jobs(tool, tmp_path / "queue.txt", SHORT.splitlines(keepends=True)[0])
    assert note["kind"] == "note"
