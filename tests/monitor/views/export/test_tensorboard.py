"""Exported curves, read back with TensorBoard's own reader: steps, times, tags, restarts, and what is on the disk afterwards."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import run_of, run_of_columns

from lt_monitor.events.steps import Steps
from lt_monitor.runs import run_loader
from lt_monitor.runs.speed import RunFacts
from lt_monitor.views.export import tensorboard
from lt_shared.console import BadConfig, CannotCreate

LOGS = Path(__file__).parents[2] / "samples"
# What lt-train's writer calls each field of a step.
THEIR_TAGS = """
import dataclasses, json
from lt_shared.contracts.run_log import Step
from lt_train.metrics.trackers import step_values
fields = [field.name for field in dataclasses.fields(Step) if field.name not in ("step", "total_steps", "time", "source_losses")]
values = step_values(Step(step=1, total_steps=2, **{name: number for number, name in enumerate(fields)}))
print(json.dumps({fields[int(value)]: tag for tag, value in values.items()}))
"""


def read(directory: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(directory), size_guidance={"scalars": 0}).Reload()


def values(directory: Path, tag: str) -> dict[int, float]:
    return {event.step: event.value for event in read(directory).Scalars(tag)}


def export(*logs: object, to: Path) -> list[str]:
    return [path for _, path in tensorboard.export([str(log) for log in logs], str(to), RunFacts())]


def test_steps_times_and_restarts_are_those_of_a_plot(tmp_path: Path) -> None:
    (path,) = export(LOGS / "story.jsonl", to=tmp_path)
    assert path == str(tmp_path / "story")
    (run,) = run_loader.read([str(LOGS / "story.jsonl")])
    events = read(Path(path)).Scalars("lm loss")
    logged = ~np.isnan(run.steps.column("loss"))
    assert [event.step for event in events] == run.steps.numbers[logged].tolist()
    assert [event.wall_time for event in events] == run.steps.times[logged].tolist()
    drawn = [math.nan if math.isinf(value) else value for value in run.steps.column("loss")[logged].tolist()]
    assert [event.value for event in events] == pytest.approx(drawn, rel=1e-6, nan_ok=True)
    assert math.isnan(values(Path(path), "lm loss")[220])
    validation = {event["step"]: event["loss"] for event in run.evaluations}
    assert values(Path(path), "lm loss validation") == pytest.approx(validation)
    assert values(Path(path), "lm loss validation ppl")[400] == pytest.approx(math.exp(validation[400]), rel=1e-6)
    assert set(read(Path(path)).Tags()["scalars"]) >= {"grad-norm", "iteration-time", "throughput", "batch-size", "samples"}


def test_tags_are_those_of_lt_train() -> None:
    done = subprocess.run([sys.executable, "-c", THEIR_TAGS], capture_output=True, check=True, text=True)
    theirs = json.loads(done.stdout)
    assert len(theirs) >= 14
    assert {name: tensorboard.TAGS[name] for name in theirs} == theirs


def test_exporting_again_replaces(tmp_path: Path) -> None:
    log = tmp_path / "run1.log"
    log.write_bytes((LOGS / "lt_train.log").read_bytes())
    (path,) = export(log, to=tmp_path / "curves")
    first = (Path(path) / tensorboard.EVENT_FILE).read_bytes()
    export(log, to=tmp_path / "curves")
    assert (Path(path) / tensorboard.EVENT_FILE).read_bytes() == first
    assert os.listdir(path) == [tensorboard.EVENT_FILE]
    log.write_bytes(log.read_bytes()[: len(log.read_bytes()) // 2])
    export(log, to=tmp_path / "curves")
    losses = [event.step for event in read(Path(path)).Scalars("lm loss")]
    assert losses == sorted(set(losses))
    assert (Path(path) / tensorboard.EVENT_FILE).stat().st_size < len(first)


def test_curves_of_another_program_are_not_mixed_with(tmp_path: Path) -> None:
    (tmp_path / "lt_train").mkdir()
    (tmp_path / "lt_train" / "events.out.tfevents.1700000000.node7").touch()
    with pytest.raises(CannotCreate, match=r"has event files of another program: events\.out"):
        export(LOGS / "lt_train.log", to=tmp_path)
    assert len(os.listdir(tmp_path / "lt_train")) == 1


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "curves").mkdir()
    (tmp_path / "curves" / "lt_train").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CannotCreate, match="exists and is not a directory"):
        export(LOGS / "lt_train.log", to=tmp_path / "curves")
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize(
    ("names", "directories"),
    [
        (["/fsx/run1/train"], ["train"]),
        (["-"], ["stdin"]),
        (["/fsx/a/x", "/fsx/b/x"], ["a/x", "b/x"]),
        (["..", "../.."], ["_..", "_../_.."]),
        (["a", "../../b"], ["a", "_../_../b"]),
        (["x\x1b[2J\n"], ["x\\x1b[2J\\n"]),
        (["a\n", "a\\n"], ["a\\n", "a\\n-2"]),
        (["", "/"], ["run", "run-2"]),
        (["é" * 300], ["é" * 100]),
    ],
)
def test_directories_stay_below_and_apart(names: list[str], directories: list[str]) -> None:
    assert tensorboard.directory_names(names) == directories


def test_what_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target in (tmp_path / "file", Path("/proc/nowhere")):
        with pytest.raises(CannotCreate):
            export(LOGS / "lt_train.log", to=target)
    with pytest.raises(BadConfig, match="needs a local or mounted path"):
        tensorboard.export([str(LOGS / "lt_train.log")], "s3://bucket/curves", RunFacts())


def test_the_command_prints_a_line_for_each_run(tool: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    logs = [str(LOGS / "lt_train.log"), str(LOGS / "story.jsonl")]
    done = tool("export", *logs, "-o", "curves")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["v"], line["kind"]) for line in lines] == [(1, "export")] * 2
    assert [line["path"].split("/")[0] for line in lines] == ["curves", "curves"]
    assert tool("export", *logs, "-o", "curves", "--plain").stdout.splitlines() == [line["path"] for line in lines]
    assert (tool("export", logs[0]).returncode, len(list((tmp_path / "curves").rglob("*tfevents*")))) == (2, 2)


def test_a_log_without_times_ends_when_its_file_changed(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.touch()
    os.utime(log, (5000, 5000))
    records = ({"step": 10, "step_seconds": 2.0}, {"step": 20, "step_seconds": 2.0}, {"step": 30})
    assert tensorboard.wall_times(run_of(*records, files=[str(log)])).tolist() == [4980, 5000, 5000]
    assert tensorboard.wall_times(run_of(*records, files=["-"])).tolist() == [0, 20, 20]


def test_a_step_without_a_time_lies_between_its_neighbours() -> None:
    steps = Steps(np.array([1, 2, 3]), {}, np.array([100.0, np.nan, 104.0]))
    assert tensorboard.wall_times(run_of_columns(steps)).tolist() == [100, 102, 104]


def test_files_that_are_not_whole_have_a_name_that_is_not_read() -> None:
    assert "tfevents" in tensorboard.EVENT_FILE
    assert "tfevents" not in tensorboard.UNREAD_NAME


def test_a_killed_export_leaves_nothing_that_tensorboard_reads(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    lines = (
        f" iteration {step}/ 999999 | elapsed time per iteration (ms): 9.0 | lm loss: 2.0E+00 |\n" for step in range(1, 60_001)
    )
    log.write_text("".join(lines))
    partial = tmp_path / "curves" / "a" / ".lt-monitor.events.partial"
    command = [sys.executable, "-m", "lt_monitor", "export", str(log), "-o", str(tmp_path / "curves")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not (partial.exists() and partial.stat().st_size):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    found = [name for _, _, names in os.walk(tmp_path / "curves") for name in names]
    assert [name for name in found if "tfevents" in name] in ([], [tensorboard.EVENT_FILE])
    subprocess.run(command, check=True, capture_output=True)
    assert os.listdir(tmp_path / "curves" / "a") == [tensorboard.EVENT_FILE]
    assert len(values(tmp_path / "curves" / "a", "lm loss")) == 60_000
