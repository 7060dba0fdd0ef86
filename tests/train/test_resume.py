"""A run that was killed continues as if nothing had happened, bit for bit on a CPU."""

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from running import SMALL, command, environment, losses, run

from lt_shared import checkpoint_layout
from lt_shared.manifest import Dataset

STEPS = ("--train-iters", "12", "--save-interval", "4", "--eval-interval", "5", "--lr", "1e-3")


def start(directory: Path, dataset: Dataset, *options: str) -> subprocess.Popen[bytes]:
    arguments = command(*SMALL, *STEPS, *options, "--save", str(directory), dataset.prefix)
    return subprocess.Popen(arguments, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_with_ranks_checked(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL lt-train alone; its ranks must go by themselves."""
    ranks = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert not psutil.wait_procs(ranks, timeout=10)[1]


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, "lt-train ended early"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def finish(directory: Path, dataset: Dataset, *options: str) -> None:
    result = run(*SMALL, *STEPS, *options, "--save", str(directory), dataset.prefix)
    assert result.code == 0, result.err


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    """An uninterrupted run of one rank, with checkpoints at 4, 8 and 12."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    finish(directory, dataset)
    return directory


@pytest.mark.parametrize(
    "options",
    [
        (),
        # The loss scale begins too high: some steps are skipped before and after the kill.
        ("--ranks", "2", "--use-distributed-optimizer", "--fp16", "--initial-loss-scale", str(2**24), "--hysteresis", "1"),
        ("--tensor-model-parallel-size", "2", "--bf16"),
    ],
    ids=["one-rank", "dp2-distributed-fp16", "tp2-bf16"],
)
def test_killed_run_continues_bit_for_bit(options: tuple[str, ...], tmp_path: Path, dataset: Dataset, finished: Path) -> None:
    whole = tmp_path / "whole" if options else finished
    if options:
        finish(whole, dataset, *options)
    process = start(tmp_path / "killed", dataset, *options)
    wait_for(tmp_path / "killed" / checkpoint_layout.TRACKER, process)
    kill_with_ranks_checked(process)
    resumed_from = checkpoint_layout.read_tracker(tmp_path / "killed")
    finish(tmp_path / "killed", dataset, *options)
    assert losses(tmp_path / "killed") == losses(whole)
    assert f"at iteration {resumed_from}" in (tmp_path / "killed/train.log").read_text()


def cut_back(run: Path, copy: Path, iteration: int) -> Path:
    """A copy of a run as it was after the checkpoint of `iteration`, without what it had logged."""
    shutil.copytree(run, copy)
    for checkpoint in checkpoint_layout.checkpoints(copy):
        if (checkpoint_layout.iteration_of(checkpoint) or 0) > iteration:
            shutil.rmtree(checkpoint)
    checkpoint_layout.write_tracker(copy, iteration)
    (copy / "metrics.jsonl").unlink()
    return copy


def test_log_lines_of_several_steps_continue(tmp_path: Path, dataset: Dataset) -> None:
    """A line gives the mean loss since the line before; a checkpoint between two lines must not lose the first half."""
    options = ("--log-interval", "6")
    finish(tmp_path / "whole", dataset, *options)
    half = cut_back(tmp_path / "whole", tmp_path / "half", 8)
    finish(half, dataset, *options)
    assert losses(half)["step", 12] == losses(tmp_path / "whole")["step", 12]


def test_kills_at_random_moments_leave_only_whole_checkpoints(tmp_path: Path, dataset: Dataset, finished: Path) -> None:
    directory = tmp_path / "killed"
    generator = random.Random(20)
    killed = 0
    for _ in range(3):
        process = start(directory, dataset)
        wait_for(directory / "train.log", process)
        time.sleep(generator.uniform(0.2, 2.5))
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        for checkpoint in checkpoint_layout.checkpoints(directory):
            assert checkpoint_layout.damage(checkpoint) is None
    assert killed
    finish(directory, dataset)
    assert losses(directory) == losses(finished)


def test_resume_with_another_layout(tmp_path: Path, dataset: Dataset, finished: Path) -> None:
    moved = cut_back(finished, tmp_path / "moved", 4)
    finish(moved, dataset, "--pipeline-model-parallel-size", "2")
    # The same sums in another order, as in test_parallelism; 5e-6 is ten roundings of the loss.
    later = {key: loss for key, loss in losses(finished).items() if key[1] > 4}
    assert losses(moved) == pytest.approx(later, abs=5e-6)


def test_damaged_newest_checkpoint_is_passed_over(tmp_path: Path, dataset: Dataset, finished: Path) -> None:
    directory = Path(shutil.copytree(finished, tmp_path / "run"))
    newest, second, *_ = checkpoint_layout.checkpoints(directory)
    next(newest.glob("*.distcp")).unlink()
    result = run(*SMALL, *STEPS, "--save", str(directory), dataset.prefix)
    assert result.code == 0, result.err
    assert result.err.count("passing over an incomplete checkpoint") == 1
    assert f"at iteration {checkpoint_layout.iteration_of(second)}" in result.err
    assert checkpoint_layout.damage(newest) is None


def test_no_complete_checkpoint_is_an_error(tmp_path: Path, dataset: Dataset, finished: Path) -> None:
    directory = Path(shutil.copytree(finished, tmp_path / "run"))
    for checkpoint in checkpoint_layout.checkpoints(directory):
        shard = next(checkpoint.glob("*.distcp"))
        shard.write_bytes(shard.read_bytes()[:100])
    before = sorted(path.name for path in directory.iterdir())
    result = run(*SMALL, *STEPS, "--save", str(directory), dataset.prefix)
    assert result.code == 65
    assert "none of its checkpoints is complete" in result.err
    assert sorted(path.name for path in directory.iterdir()) == before


def test_interrupt_and_termination(tmp_path: Path, dataset: Dataset) -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = start(tmp_path / number.name, dataset, "--train-iters", "100000")
        wait_for(tmp_path / number.name / "metrics.jsonl", process)
        ranks = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, number)
        assert process.wait(timeout=30) == code
        assert not psutil.wait_procs(ranks, timeout=10)[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small filesystem")
def test_full_disk_is_an_error_and_leaves_the_checkpoint_before(tmp_path: Path, dataset: Dataset) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(small)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr}")
    try:
        result = run(*SMALL, *STEPS, "--ranks", "2", "--save", str(small / "run"), dataset.prefix)
        assert result.code == 74, result.err
        assert "not saved" in result.err
        assert "Traceback" not in result.err
        complete = checkpoint_layout.checkpoints(small / "run")
        assert complete
        assert all(checkpoint_layout.damage(checkpoint) is None for checkpoint in complete)
        assert not list((small / "run").glob(".iter*"))
    finally:
        subprocess.run(["umount", str(small)], check=True)
