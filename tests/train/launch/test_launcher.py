"""How a run starts: from a pipe, under other launchers, once per directory, and not at all when it is done."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import nursery
import pseudo_terminal
import pytest
import synthetic
from running import SMALL, command, environment, losses, quick_command, run, run_tasks, train

from lt_shared.console import ExitCode, TryAgain
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.manifest import Checkpoint, Dataset
from lt_train.launch import launcher, rank_processes
from lt_train.process.rank_environment import first_host

STEPS = ("--train-iters", "3")


def test_manifest_from_a_pipe_and_up_to_date(tmp_path: Path, manifest_text: str) -> None:
    arguments = (*SMALL, *STEPS, "--save", str(tmp_path / "run"), "-")
    first = train(*arguments, stdin=manifest_text)
    assert first.code == 0, first.err
    (checkpoint,) = first.manifest
    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint_layout.damage(Path(checkpoint.path)) is None
    assert checkpoint.loss == losses(tmp_path / "run")["step", 3]
    assert (tmp_path / "run/tokenizer/vocab.json").is_file()
    # It is quick: what takes seconds to import is not.
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('torch is imported')")
    again = run(*arguments, stdin=manifest_text, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert (again.code, again.out) == (0, first.out)
    assert "up to date" in again.err
    plain = train(*arguments, "--plain", stdin=manifest_text)
    assert plain.out == f"{checkpoint.path}\n"


def test_empty_and_cut_off_manifests_start_nothing(tmp_path: Path, manifest_text: str) -> None:
    for text in ("", "\n", manifest_text.splitlines()[0] + "\n", "{}"):
        result = train(*SMALL, "--save", str(tmp_path / "run"), "-", stdin=text)
        assert result.code in (65, 66)
        assert len(result.err.splitlines()) <= 2
        assert not (tmp_path / "run").exists()
    assert train(*SMALL, "-", stdin="").code == 66


def test_a_rank_refuses_standard_input(manifest_text: str) -> None:
    result = train(*SMALL, "-", stdin=manifest_text, LOCAL_RANK="0")
    assert result.code == 2
    assert "@FILE" in result.err


def test_under_torchrun(tmp_path: Path, finished: Path, manifest_text: str) -> None:
    (tmp_path / "data.manifest").write_text(manifest_text)
    torchrun = [nursery.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "lt_train"]
    arguments = [*SMALL, *STEPS, "--save", str(tmp_path / "theirs"), f"@{tmp_path / 'data.manifest'}"]
    # It is a copy and starts copies, as `train` does.
    variables = environment() | {"PYTHON_EXEC": nursery.python()}
    done = subprocess.run([*torchrun, *arguments], env=variables, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "theirs") == losses(finished / "short")
    assert json.loads(done.stdout.splitlines()[-1])["kind"] == "end"


def test_under_srun(tmp_path: Path, dataset: Dataset) -> None:
    """Two tasks with the variables that srun sets for them."""
    shared = {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
    }
    arguments = quick_command(*SMALL, *STEPS, "--save", str(tmp_path / "run"), dataset.prefix)
    tasks = run_tasks(arguments, [shared | {"SLURM_PROCID": task, "SLURM_LOCALID": task} for task in ("0", "1")])
    assert [task.code for task in tasks] == [0, 0], tasks
    assert "2 ranks found in the environment of srun" in tasks[0].err
    assert '"kind":"checkpoint"' in tasks[0].out
    assert tasks[1].out == ""


@pytest.mark.parametrize(
    ("node_list", "host"),
    [("gpu[003-004,7],x1", "gpu003"), ("node1", "node1"), ("a1,b2", "a1"), ("p5-dy-[1-4]", "p5-dy-1"), ("n[10]-ib", "n10-ib")],
)
def test_first_host_of_a_node_list(node_list: str, host: str) -> None:
    assert first_host(node_list) == host


def test_second_run_in_the_same_directory_is_told_to_wait_but_not_for_ever(tmp_path: Path, dataset: Dataset) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    with (directory / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        starts = [train(*SMALL, "--save", str(directory), dataset.prefix) for _ in range(3)]
    assert [start.code for start in starts] == [75, 75, 78]
    assert all("another lt-train is running" in start.err for start in starts)


@pytest.mark.parametrize(("nodes", "code"), [(1, 75), (2, 76)])
def test_srun_ends_the_other_nodes_after_a_hang(monkeypatch: pytest.MonkeyPatch, nodes: int, code: int) -> None:
    """A printed job keeps 75 from srun, which would then wait for the node whose rank has stopped."""
    monkeypatch.setenv("SLURM_PROCID", str(nodes - 1))
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", str(nodes))
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", f"1(x{nodes})")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "localhost")
    monkeypatch.setattr(rank_processes.Ranks, "run", lambda ranks, run_config, world_size, saves: ExitCode.NO_PROGRESS)
    assert launcher.launch(synthetic.plan("--mock-data", "--ranks", str(nodes))) == code


NOISE = """
import os
import signal
original = os.fsync
def fsync(descriptor):
    if "RANK" in os.environ:
        os.write(1, b"[Gloo] Rank 0 is connected\\n")
    original(descriptor)
os.fsync = fsync
"""


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_what_libraries_write_to_standard_output_is_not_in_the_manifest(ranks: str, tmp_path: Path, dataset: Dataset) -> None:
    """Gloo of torch 2.8 and NCCL with NCCL_DEBUG write there from C."""
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise/sitecustomize.py").write_text(NOISE)
    path = os.pathsep.join([str(tmp_path / "noise"), *sys.path])
    options = (*SMALL, "--train-iters", "2", "--ranks", ranks, "--save", str(tmp_path / "run"))
    done = train(*options, dataset.prefix, PYTHONPATH=path)
    assert done.code == 0, done.err
    assert "[Gloo] Rank 0 is connected\n" in done.err
    assert [json.loads(line)["kind"] for line in done.out.splitlines()] == ["checkpoint", "end"]


def test_ctrl_c_saves_and_says_what_continues(tmp_path: Path, dataset: Dataset) -> None:
    """On a terminal. The exit code is none that a batch script puts back into the queue."""
    run_directory = tmp_path / "run"
    arguments = (*SMALL, "--eval-iters", "0", "--train-iters", "100000", "--save", str(run_directory), dataset.prefix)
    interrupted: list[int] = []

    def interrupt(process: pseudo_terminal.Process, shown: bytes) -> None:
        is_training = (run_directory / "metrics.jsonl").exists() and any(kind == "step" for kind, _ in losses(run_directory))
        if is_training and not interrupted:
            interrupted.append(process.pid)
            process.send_signal(signal.SIGINT)

    ended = pseudo_terminal.run(command(*arguments), environment=environment(), on_output=interrupt)
    assert ended.code == ExitCode.INTERRUPTED, ended.shown
    assert "interrupted; this continues the run: lt-train --model tiny" in " ".join(ended.shown.split()), ended.shown
    assert "starting: importing PyTorch" in ended.shown
    assert "Traceback" not in ended.shown
    (checkpoint,) = checkpoint_layout.checkpoints(run_directory)
    assert checkpoint_layout.damage(checkpoint) is None
    step = checkpoint_layout.iteration_of(checkpoint)
    assert step == max(step for kind, step in losses(run_directory) if kind == "step")
    again = train(*arguments, "--exit-interval", "1")
    assert again.code == 75, again.err
    assert ("step", step + 1) in losses(run_directory)


def test_a_signal_ends_the_wait_for_the_lock(tmp_path: Path) -> None:
    saving = MagicMock(save=str(tmp_path), directory=str(tmp_path), is_remote=False)
    with (tmp_path / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        begin = time.monotonic()
        with pytest.raises(TryAgain, match="another lt-train"), launcher._run_directory(saving, MagicMock(), 30.0, lambda: True):
            pass
    assert time.monotonic() - begin < 15


def closed_pipe() -> int:
    """Return the descriptor of a pipe whose reader has ended."""
    reading_end, writing_end = os.pipe()
    os.close(reading_end)
    return writing_end


def lost_terminal() -> int:
    """Return the descriptor of a terminal that is gone."""
    controller, terminal = os.openpty()
    os.close(controller)
    return terminal


def unwritable() -> int:
    """Return a descriptor that refuses writes, which a tool puts in the place of a standard output that it does not have."""
    return os.open(os.devnull, os.O_RDONLY)


@pytest.mark.parametrize(("ranks", "output"), [("1", closed_pipe), ("2", closed_pipe), ("2", lost_terminal), ("1", unwritable)])
def test_a_closed_standard_output_ends_a_run_once(
    ranks: str, output: Callable[[], int], tmp_path: Path, dataset: Dataset
) -> None:
    """Every checkpoint has a manifest line, so that a run which was started again would end after each one."""
    options = (*SMALL, "--train-iters", "3", "--save-interval", "1", "--max-restarts", "3", "--ranks", ranks)
    words, stdout = quick_command(*options, "--save", str(tmp_path / "run"), dataset.prefix), output()
    run = subprocess.run(words, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=900, env=environment())
    os.close(stdout)
    assert run.returncode == ExitCode.BROKEN_PIPE, run.stderr
    assert run.stderr.count("standard output is closed") == 1, run.stderr
    assert "starting the ranks again" not in run.stderr
    assert "Traceback" not in run.stderr
    assert checkpoint_layout.checkpoints(tmp_path / "run") == [tmp_path / "run/iter_0000001"]
