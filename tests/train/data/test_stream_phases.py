"""A stream in phases of other weights, batch sizes and lengths: the same run while it grows, stopped anywhere, and scored."""

import dataclasses
import json
import math
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import SMALL, environment, losses, quick_command, train

from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data.sample_order import run_order, sample_losses

# 24 samples in steps of 8, 32 in steps of 16, 32 in steps of 8: the first shard ends in the second phase.
SCHEDULE = """
phases:
  - {name: start, samples: 26, weights: {web: 0.7, code: 0.3}}
  - {name: wide, samples: 40, weights: {web: 1, code: 1}, global-batch-size: 16}
  - {name: long, samples: 24, weights: {web: 1}, seq-length: 96, rotary-base: 50000}
"""
OPTIONS = (
    *(*SMALL, "--lr", "1e-3", "--ranks", "1", "--split", "1,0,0", "--eval-iters", "0", "--log-sample-loss"),
    *("--save-interval", "1", "--keep-last", "99", "--micro-batch-size", "8"),
)


@dataclasses.dataclass(frozen=True)
class Data:
    """The lines of a stream, another dataset, and the options of a run on both."""

    lines: list[str]
    code: str
    options: tuple[str, ...]

    def command(self, run: Path, listed: Path) -> tuple[str, ...]:
        return (*self.options, "--save", str(run), f"@{listed}", self.code)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, write_dataset: Callable[..., Dataset]) -> Data:
    place = tmp_path_factory.mktemp("data")
    shards = [write_dataset(place / f"part{number}", 10 * number, 10) for number in range(4)]
    described = [dataclasses.replace(shard, stream=str(place / "web"), part=number) for number, shard in enumerate(shards)]
    lines = [json.dumps(manifest.record_of(shard)) + "\n" for shard in described]
    (place / "schedule.yaml").write_text(SCHEDULE)
    code = write_dataset(place / "code", 60, 20).prefix
    end = json.dumps({"v": 1, "kind": "end", "count": len(shards)}) + "\n"
    return Data([*lines, end], code, (*OPTIONS, "--data-schedule", str(place / "schedule.yaml")))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data: Data) -> Path:
    """A run on the finished list."""
    place = tmp_path_factory.mktemp("finished")
    (place / "list").write_text("".join(data.lines))
    done = train(*data.command(place / "run", place / "list"))
    assert done.code == 0, done.err
    assert " phase wide begins at iteration 4: sequence length 64, global batch size 16, weights web 1, code 1\n" in done.err
    assert " phase long begins at iteration 6: sequence length 96, global batch size 8, weights web 1\n" in done.err
    return place / "run"


def steps(run: Path) -> list[dict[str, Any]]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == "step"]


def test_each_phase_has_its_batch_size(finished: Path) -> None:
    """The rate of the default schedule, a cosine from 1e-3 to 1e-4, is that of the samples, not of the steps."""
    records = steps(finished)
    assert [record["phase"] for record in records] == ["start"] * 3 + ["wide"] * 2 + ["long"] * 4
    assert [record["global_batch_size"] for record in records] == [8] * 3 + [16] * 2 + [8] * 4
    assert [record["consumed_samples"] for record in records] == [8, 16, 24, 40, 56, 64, 72, 80, 88]
    rates = [record["learning_rate"] for record in records]
    assert rates[5] == pytest.approx(1e-4 + 9e-4 * (1 + math.cos(math.pi * 64 / 88)) / 2)
    arguments = next(line for line in (finished / "train.log").read_text().splitlines() if "data_schedule" in line)
    assert "'global_batch_size': 16" in arguments
    [attempt, after] = run_order.read(finished)
    assert (after.step, after.consumed_samples) == (5, 56)
    assert [len(attempt.samples_of(step, step)) for step in range(1, 10)] == [8] * 3 + [16] * 2 + [8] * 4


@pytest.mark.parametrize("kept", [3, 4, 5, 6])
def test_stopped_at_the_end_of_a_phase_and_within(tmp_path: Path, data: Data, finished: Path, kept: int) -> None:
    shutil.copytree(finished, tmp_path / "run", symlinks=True)
    for path in (tmp_path / "run").glob("iter_*"):
        if int(path.name[5:]) > kept:
            shutil.rmtree(path)
    (tmp_path / "list").write_text("".join(data.lines))
    again = train(*data.command(tmp_path / "run", tmp_path / "list"))
    assert again.code == 0, again.err
    assert len(steps(tmp_path / "run")) == 9 + 9 - kept
    assert losses(tmp_path / "run") == losses(finished)


def test_killed_while_the_stream_grows(tmp_path: Path, data: Data, finished: Path) -> None:
    directory, growing = tmp_path / "run", tmp_path / "list"
    growing.write_text(data.lines[0])
    command = (*data.command(directory, growing), "--follow")
    with subprocess.Popen(quick_command(*command), env=environment(), stderr=subprocess.PIPE) as process:
        until(lambda: (directory / "metrics.jsonl").exists() and len(steps(directory)) == 4)
        time.sleep(2)
        assert len(steps(directory)) == 4
        process.send_signal(signal.SIGKILL)
    growing.write_text("".join(data.lines))
    done = train(*command)
    assert done.code == 0, done.err
    assert losses(directory) == losses(finished)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_samples_of_every_length_are_scored(finished: Path) -> None:
    """With the weights before step 7 those of the step have the losses that were logged; others of shorter phases come before."""
    result = train("score", str(finished), "--step", "7")
    assert result.code == 0, result.err
    found = sample_losses.parse([line.encode() for line in result.out.splitlines()], range(1000), "score")
    assert list(found) == list(range(72))
    logged = sample_losses.read(finished, range(64, 72))
    assert {sample: found[sample] for sample in logged} == pytest.approx(logged, rel=1e-5)
    whole = sample_losses.read(finished, range(56))
    # Of the first step, which has trained on other weights, and of the last before the long phase.
    assert all(found[sample] < whole[sample] for sample in range(8))
    assert {sample: found[sample] for sample in range(40, 56)} == pytest.approx(
        {sample: whole[sample] for sample in range(40, 56)}, abs=0.3
    )
