"""A filesystem that is too small for the next checkpoint: known before, the checkpoint before stays, training continues."""

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from layouts import assembled
from running import SMALL, Result, faulty, train
from torch.distributed.checkpoint import FileSystemReader

from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.manifest import Dataset
from lt_train.checkpoint import disk_space
from lt_train.planner.checkpoint_size import CheckpointSize

# Two ranks; a checkpoint has about 2.7 MB.
RUN = (*SMALL, "--seq-length", "32", "--global-batch-size", "4", "--ranks", "2", "--eval-iters", "0")
NOT_SAVED = "not saved: it needs "
# Makes room once the run has said that there is none.
MAKE_ROOM = """
import pathlib, shutil
measure = shutil.disk_usage
def measure_with_room(directory):
    log = pathlib.Path({run!r}, "train.log")
    if log.exists() and {said!r} in log.read_text():
        pathlib.Path({filler!r}).unlink(missing_ok=True)
    return measure(directory)
shutil.disk_usage = measure_with_room
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a filesystem of so many MB."""
    place = tmp_path / "disk"
    place.mkdir()

    def mounted(megabytes: int) -> Path:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", place], capture_output=True)
        if done.returncode:
            pytest.skip(f"no filesystem can be mounted here: {done.stderr.decode()}")
        return place

    yield mounted
    subprocess.run(["umount", "-l", place], capture_output=True)


def saved(run: Path) -> list[int]:
    found = checkpoint_layout.checkpoints(run)
    assert all(checkpoint_layout.damage(path) is None for path in found)
    return sorted(checkpoint_layout.iteration_of(path) or 0 for path in found)


def steps(run: Path) -> list[int]:
    # A line for which there was no room may be cut off.
    lines = (run / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return [record["step"] for record in records if record["kind"] == "step"]


def running(run: Path, dataset: Dataset, iterations: int, interval: int, *more: str, **variables: str) -> Result:
    length = ("--train-iters", str(iterations), "--save-interval", str(interval))
    return train(*RUN, *length, *more, "--save", str(run), dataset.prefix, **variables)


@pytest.mark.parametrize("way", [(), ("--async-save",)])
def test_training_continues_without_room(way: tuple[str, ...], disk: Callable[[int], Path], dataset: Dataset) -> None:
    """All steps are trained, nothing half-written is left, and only the end, which cannot be saved, fails."""
    run = disk(8) / "run"
    ended = running(run, dataset, 8, 2, *way)
    assert ended.code == 74, ended.err
    assert saved(run) == [2, 4]
    assert steps(run) == list(range(1, 9))
    assert f"warning: checkpoint of iteration 6 {NOT_SAVED}" in ended.err
    assert "tries again at iteration 7" in ended.err
    assert f"warning: checkpoint of iteration 7 {NOT_SAVED}" in ended.err
    (error,) = [line for line in ended.err.splitlines() if "error:" in line]
    assert f"iteration 8 {NOT_SAVED}" in error, ended.err
    assert not list(run.glob(".iter_*"))
    assert checkpoint_layout.read_tracker(run) == 4


def test_what_keep_last_lets_go_is_deleted_before_the_save(disk: Callable[[int], Path], dataset: Dataset) -> None:
    run = disk(8) / "run"
    done = running(run, dataset, 8, 2, "--keep-last", "2")
    assert done.code == 0, done.err
    assert NOT_SAVED not in done.err
    assert saved(run) == [6, 8]


def test_the_only_complete_checkpoint_stays(disk: Callable[[int], Path], dataset: Dataset) -> None:
    run = disk(5) / "run"
    ended = running(run, dataset, 6, 2, "--keep-last", "1")
    assert ended.code == 74, ended.err
    assert saved(run) == [2]


def test_a_checkpoint_is_tried_again_before_the_next_is_due(
    disk: Callable[[int], Path], dataset: Dataset, tmp_path: Path
) -> None:
    """After a tenth of the steps between two checkpoints."""
    place = disk(8)
    run, filler = place / "run", place / "filler"
    filler.write_bytes(bytes(5_000_000))
    (tmp_path / "sitecustomize.py").write_text(MAKE_ROOM.format(run=str(run), said=NOT_SAVED, filler=str(filler)))
    done = running(run, dataset, 60, 30, PYTHONPATH=str(tmp_path))
    assert done.code == 0, done.err
    assert saved(run) == [33, 60]


def test_a_disk_that_fills_up_while_it_is_written(tmp_path: Path, dataset: Dataset) -> None:
    """As with a quota, which no free space tells of: what one rank cannot write, all leave. The tracker alone may be missing."""
    run = tmp_path / "run"
    # Of five checkpoints each for another reason, and of the sixth.
    places = ["1:fsync:iter_0000002", "0:mkdir:iter_0000004", "0:python_open:/.metadata.tmp", "0:python_open:/metadata.json"]
    places += ["0:python_open:/run.json", "0:fsync:/run.json", "0:open:latest_checkpointed_iteration"]
    faults = faulty(",".join(f"{place}:ENOSPC:rank" for place in places))
    done = running(run, dataset, 12, 2, "--async-save", "--use-distributed-optimizer", **faults)
    assert done.code == 0, done.err
    for iteration in (2, 4, 5, 6, 8):
        said = f"checkpoint of iteration {iteration} not saved: the disk became full while it was written: it needs "
        assert said in done.err, done.err
    assert saved(run) == [10, 12]
    assert "latest_checkpointed_iteration.txt: no space left on device; it does not name iteration 10" in done.err
    assert not list(run.glob(".iter_*"))
    again = running(tmp_path / "end", dataset, 2, 2, **faulty("0:fsync:iter_0000002:EDQUOT:rank"))
    assert again.code == 74, again.err
    assert "iteration 2 not saved: the disk became full" in again.err


def test_training_continues_on_a_disk_without_a_byte(disk: Callable[[int], Path], dataset: Dataset) -> None:
    """Lines and checkpoints are left out until there is room, and whole afterwards."""
    place = disk(16)
    run, filler = place / "run", place / "filler"

    def is_behind(step: int) -> bool:
        return not (run / ".step").exists() or int.from_bytes((run / ".step").read_bytes(), "little") < step

    def fill_for_a_while() -> None:
        while is_behind(15):
            time.sleep(0.002)
        with filler.open("wb") as file:
            while is_behind(75):
                # All that there is at once, on a busy machine as well; later what a checkpoint gives back that was being written.
                room = os.statvfs(place)
                with contextlib.suppress(OSError):
                    os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size + room.f_bavail * room.f_frsize)
        filler.unlink()

    thread = threading.Thread(target=fill_for_a_while, daemon=True)
    thread.start()
    done = running(run, dataset, 100, 10, "--keep-last", "1")
    assert done.code == 0, done.err
    # Once each time that the disk is full, of which mostly there is one; the end of that in each file.
    times = done.err.count("no space left on device; training continues, and lines are left out")
    assert 1 <= times <= done.err.count("line(s) before this are missing: the disk was full") <= 3 * times
    assert "training continues, and tries again" in done.err
    assert saved(run) == [100]
    found = steps(run)
    assert 10 < len(found) < 100 and found[-1] == 100
    assert not list(run.glob(".iter_*"))


def test_the_record_is_an_event_of_lt_monitor(disk: Callable[[int], Path], dataset: Dataset) -> None:
    run = disk(5) / "run"
    running(run, dataset, 6, 2)
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    faults = [record for record in records if record["kind"] == "fault"]
    assert [(fault["fault"], fault["severity"], fault["step"]) for fault in faults] == [
        ("disk-full", "warning", n) for n in (4, 5)
    ]


def in_checkpoint(directory: Path) -> dict[str, Any]:
    return FileSystemReader(directory).read_metadata().state_dict_metadata


def test_the_plan_knows_the_size(tmp_path: Path) -> None:
    """Also what a bfloat16 weight is: not the high bits of the float32 one, in about half of all."""
    options = ("--model", "tiny", "--seq-length", "32", "--train-iters", "2", "--mock-data", "--device", "cpu", "--ranks", "1")
    for name, more in {"float32": (), "bfloat16": ("--bf16",), "weights": ("--no-save-optim",)}.items():
        run = tmp_path / name
        done = train(*options, *more, "--eval-iters", "0", "--save", str(run))
        assert done.code == 0, done.err
        config = assembled([*options, *more, "--save", str(run)])
        size = disk_space.directory_bytes(run / "iter_0000002")
        planned_bytes = CheckpointSize.from_config(config).total
        assert size == pytest.approx(planned_bytes, rel=0.05)
        assert size <= disk_space.needed_bytes(planned_bytes, None) < size * 1.5


def test_a_bfloat16_weight_is_not_the_high_half_of_its_float32() -> None:
    """Why a checkpoint holds both: half of all weights are rounded up."""
    masters = torch.randn(100_000, generator=torch.Generator().manual_seed(1))
    high = (masters.view(torch.int32) >> 16).to(torch.int16)
    assert 0.45 < (masters.bfloat16().view(torch.int16) != high).float().mean() < 0.55
