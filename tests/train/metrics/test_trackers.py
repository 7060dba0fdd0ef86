"""Curves as their own programs read them back; a restarted run goes on as the same one."""

import dataclasses
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lt_shared.contracts.run_log import Evaluation, Step
from lt_train.config.settings.reporting import Wandb
from lt_train.metrics import trackers
from lt_train.metrics.trackers import TensorBoardTracker, WandbTracker

STEP = Step(4, 10, 32, 0.5, 123.4, 3e-4, 8, 2.5, 1.0, 0.75, 0, 0, None, 1000.0, 0.41, 2**30, 2**31)


def test_curves_have_the_names_of_megatron() -> None:
    values = trackers.step_values(STEP)
    assert values["lm loss"] == 2.5
    assert values["learning-rate"] == 3e-4
    assert values["iteration-time"] == 0.5
    assert values["throughput"] == 123.4
    assert "mem-reserved-bytes" not in trackers.step_values(dataclasses.replace(STEP, reserved_memory_bytes=None))
    assert trackers.evaluation_values(Evaluation(4, 0.0, "test")) == {"lm loss test": 0.0, "lm loss test ppl": 1.0}


def test_tensorboard_hides_the_steps_that_a_restart_trains_again(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first, last in ((1, 4), (3, 5)):
        tracker = TensorBoardTracker(str(tmp_path), first)
        for step in range(first, last + 1):
            tracker.write(step, {"lm loss": step + first / 10})
        tracker.close()
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("lm loss")
    assert [event.step for event in events] == [1, 2, 3, 4, 5]
    assert [event.value for event in events] == pytest.approx([1.1, 2.1, 3.3, 4.3, 5.3])


def wandb_history(file: Path) -> list[dict[str, Any]]:
    """The logged values in wandb's file: seven bytes, then records of a checksum, a length, a type and a protobuf."""
    from wandb.proto import wandb_internal_pb2

    content, found = file.read_bytes()[7:], []
    assert len(content) < 32_000, "longer files are cut into blocks"
    while content:
        size, kind = struct.unpack("<4xHB", content[:7])
        assert kind == 1
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content[7 : 7 + size])
        if record.HasField("history"):
            values = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
            found.append({name: value for name, value in values.items() if not name.startswith("_")})
        content = content[7 + size :]
    return found


def test_wandb_offline_is_one_run_across_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    settings = Wandb("project", "name", str(tmp_path))
    for step in (4, 3):
        tracker = WandbTracker(settings, str(tmp_path), {"seq_length": 64})
        tracker.write(step, {"lm loss": step / 2})
        tracker.close()
    run_id = (tmp_path / trackers.WANDB_ID).read_text().strip()
    files = list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert {file.name for file in files} == {f"run-{run_id}.wandb"}
    logged = sorted((values for file in files for values in wandb_history(file)), key=lambda values: values["iteration"])
    assert logged == [{"iteration": 3, "lm loss": 1.5}, {"iteration": 4, "lm loss": 2.0}]


def alone(code: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: wandb remembers the settings of the first run."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    variables = {**inherited, "HOME": str(directory), "NETRC": str(directory / "netrc"), **variables}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=variables,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


OPENED = """
import os, signal, time
from pathlib import Path
from lt_train.metrics.trackers import Wandb, WandbTracker

def services():
    return [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]

tracker = WandbTracker(Wandb("project", None, "."), None, {})
tracker.write(1, {"lm loss": 1.0})
"""


def test_wandb_has_written_everything_when_it_is_closed(tmp_path: Path) -> None:
    code = OPENED + "assert services(); tracker.close(); assert not services()"
    assert alone(code, tmp_path, WANDB_MODE="offline").returncode == 0


def test_wandb_without_a_key_says_what_to_do(tmp_path: Path) -> None:
    code = "from lt_train.metrics.trackers import Wandb, WandbTracker; WandbTracker(Wandb('project', None, '.'), None, {})"
    assert "lt_shared.console.errors.Unavailable: wandb: No API key configured" in alone(code, tmp_path).stderr


@pytest.mark.parametrize(("steps_after", "warning"), [(60, "training continues"), (0, "the last values may be missing")])
def test_a_run_outlives_the_service_of_wandb(tmp_path: Path, steps_after: int, warning: str) -> None:
    code = f"""
(service,) = services()
os.kill(service, signal.SIGKILL)
os.waitid(os.P_PID, service, os.WEXITED | os.WNOWAIT)
for step in range({steps_after}):
    time.sleep(0.05)
    tracker.write(step + 2, {{"lm loss": 1.0}})
tracker.close()
"""
    done = alone(OPENED + code, tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("lt: warning: wandb has failed (") and line.endswith(warning)
