"""The examples of these commands run as they stand, and their command lines are checked."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lt_monitor.cli import machine_commands

LOGS = Path(__file__).parents[1] / "samples"
GPUS = "index, uuid, clocks.sm [MHz]\n0, GPU-1, 1755 MHz"
ANSWERS = {"ssh": GPUS, "neuron-monitor": '{"neuron_runtime_data": [], "system_data": {}}', "squeue": '{"jobs": []}'}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with the logs that the examples name, and programs that answer in the place of the real ones."""
    log = (LOGS / "lt_train.log").read_text()
    (tmp_path / "run1").mkdir()
    (tmp_path / "run1" / "train.log").write_text(log)
    for number in (76, 77):
        (tmp_path / f"slurm-{number}.out").write_text(log)
    shutil.copytree(LOGS / "flight" / "nccl_late", tmp_path / "run1" / "stacks")
    shutil.copytree(LOGS / "flight" / "nccl_late", tmp_path / "dumps")
    shutil.copy(LOGS / "flight" / "gloo_late" / "pyspy_rank_3.txt", tmp_path)
    (tmp_path / "bin").mkdir()
    programs = {name: f"cat <<'END'\n{answer}\nEND" for name, answer in ANSWERS.items()}
    for name, script in (programs | {"lt-monitor": f'exec {sys.executable} -m lt_monitor "$@"'}).items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def examples() -> list[str]:
    return [line for command in machine_commands.COMMANDS for line in command.examples.strip().splitlines()]


@pytest.mark.parametrize("example", examples())
def test_examples_run(example: str, folder: Path) -> None:
    script = f"set -o pipefail; {example}"
    environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    # Logs of last year that end without a word count as hanging.
    expected = (0, 2) if "alert" in example else (1,) if "stuck" in example else (0,)
    assert done.returncode in expected, done.stderr
    assert "lt-monitor: error" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["goodput"], "Missing argument 'LOG...'"),
        (["goodput", "--price-per-gpu-hour", "inf", "-"], "not a finite number"),
        (["goodput", "--gpus", "0", "-"], "0 is not in the range"),
        (["alert"], "Missing argument 'LOG...'"),
        (["prom"], "Missing argument 'LOG...'"),
        (["slurm", "--job", "x"], "'x' is not a job number"),
        (["gpu", "a", "b"], "unexpected extra argument"),
    ],
)
def test_wrong_command_lines(tool: Any, arguments: list[str], said: str) -> None:
    done = tool(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_options_have_environment_variables(tool: Any, tmp_path: Path) -> None:
    tool("alert", "-", LT_MONITOR_ALERT_STATE="remembered", LT_MONITOR_ALERT_HEARTBEAT="beat")
    assert (tmp_path / "remembered").exists()
    assert (tmp_path / "beat").exists()


def test_a_variable_has_the_name_of_its_option(tool: Any) -> None:
    done = tool(
        "diff",
        str(LOGS / "lt_train.log"),
        str(LOGS / "lt_train.log"),
        LT_MONITOR_DIFF_JSON="1",
        LT_MONITOR_DIFF_FIELD="loss grad_norm",
    )
    assert [one["field"] for one in json.loads(done.stdout)["fields"]] == ["loss", "grad_norm"]


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    fault = {"fault": "xid", "cause": "root", "severity": "critical", "message": "x", "src": {"file": "r", "offset": 0}}
    event = json.dumps({"v": 1, "kind": "fault", "run": "r", **fault}) + "\n"
    tool = f"{sys.executable} -m lt_monitor"
    done = subprocess.run(
        ["sh", "-c", f"{tool} alert --state s - > /dev/full"], input=event, cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (74, "lt-monitor: error: standard output: no space left on device\n")
    assert not (tmp_path / "s").exists()
    full = subprocess.run(
        ["bash", "-c", f"ulimit -f 0; {tool} alert --state s -"], input=event, cwd=tmp_path, capture_output=True, text=True
    )
    assert full.returncode == 74
    assert "s: file too large" in full.stderr
    assert not list(tmp_path.glob("*s*"))
