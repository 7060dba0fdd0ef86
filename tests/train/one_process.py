"""Runs of one rank on a CPU, one after the other in one process, so that each can be trained with some of lt-train replaced.

`train_each` is for such a process; `start` is what a test calls, with the program that calls it.
"""

import dataclasses
import gc
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nursery
from layouts import assembled
from reserved_ports import free_port
from running import environment

from lt_train.launch import launcher
from lt_train.process import device
from lt_train.process.rank_environment import RankEnvironment


def start(program: str, place: Path, runs: Mapping[str, tuple[str, ...]]) -> Any:
    """What `program` prints last. It gets `place`, with a folder for each run, and `runs`, each a way, or "", and its options."""
    for name in runs:
        (place / name).mkdir(parents=True)
    command = [nursery.python(), program, str(place), json.dumps(dict(runs))]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=900)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def prepare() -> tuple[RankEnvironment, Any]:
    """Make this process a run's one rank: its place and its device."""
    place = RankEnvironment(0, 0, 1, 1, "127.0.0.1", free_port(), "test")
    os.environ.update(place.variables())
    return place, device.prepare("cpu", place)


def train_each(
    rank: tuple[RankEnvironment, Any],
    folder: Path,
    runs: Mapping[str, list[str]],
    common: tuple[str, ...],
    before: Callable[[str, str], None],
) -> None:
    """Train each of `runs` with `common` options; `before` gets its name and its way."""
    from megatron.core import parallel_state

    from lt_train.train import training_run

    place, where = rank
    for name, (way, *options) in runs.items():
        before(name, way)
        plan = assembled([*common, *options, "--save", str(folder / name)])
        place = dataclasses.replace(place, master_port=free_port())
        os.environ.update(place.variables())
        training_run.train(launcher.prepare(plan), place, where)
        parallel_state.destroy_model_parallel()
        gc.collect()


def norms(run: Path) -> list[float]:
    """Of the gradients of a run's steps."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["grad_norm"] for record in records if "grad_norm" in record]
