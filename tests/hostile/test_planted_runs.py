"""A run's directory that another user has made, with what lt-train will look for."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed
from running import SMALL, environment, train
from stranger import Stranger

from lt_shared.console import CannotCreate
from lt_train.metrics import trackers
from lt_train.preflight import bandwidth
from lt_train.process.rank_environment import RankEnvironment
from lt_train.process.watchdog import Watchdog

ONE_RANK = RankEnvironment(0, 0, 1, 1, "127.0.0.1", 29500, "a test")
ARGUMENTS = (*SMALL, "--mock-data", "--train-iters", "1", "--ranks", "1")


@pytest.mark.parametrize("name", [".lock", "train.log", "metrics.jsonl", "data-order.jsonl", "attempts.jsonl", ".step"])
def test_a_link_is_not_followed(name: str, stranger: Stranger) -> None:
    victim = stranger.shared / "victim"
    victim.write_text("precious")
    victim.chmod(0o644)
    stranger.run(f"mkdir run; ln -s ../victim run/{name}")
    result = train(*ARGUMENTS, "--save", str(stranger.shared / "run"))
    assert result.code == 73, result.err
    assert f": {stranger.shared}/run/{name}: is a symbolic link" in result.err
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("plant", ["touch", "ln -s victim", "mkfifo", "mkdir"])
def test_a_planted_tracker_is_found_before_the_first_step(plant: str, stranger: Stranger) -> None:
    stranger.run(f"mkdir -m 1777 run; {plant} run/.latest_checkpointed_iteration.txt.partial")
    result = train(*ARGUMENTS, "--save", str(stranger.shared / "run"))
    assert result.code == 73, result.err
    assert "latest_checkpointed_iteration.txt" in result.err
    assert not (stranger.shared / "run" / "metrics.jsonl").exists()


def test_a_pipe_is_not_waited_for(stranger: Stranger) -> None:
    stranger.run("mkdir run; mkfifo -m 666 run/.lock")
    result = train(*ARGUMENTS, "--save", str(stranger.shared / "run"))
    assert result.code == 73, result.err
    assert "run/.lock: is not a file of its own" in result.err


def test_a_checkpoint_is_not_gone_on_from(stranger: Stranger) -> None:
    stranger.run("mkdir -p run/iter_0000001")
    result = train(*ARGUMENTS, "--save", str(stranger.shared / "run"))
    assert result.code == 65, result.err
    assert "iter_0000001: belongs to another user (uid 1001), and a run goes on from its own checkpoints only" in result.err


def test_a_link_to_ones_own_checkpoint_is_not_gone_on_from(stranger: Stranger) -> None:
    """He would choose which state of whose run is taken up."""
    (stranger.shared / "mine/iter_0000001").mkdir(parents=True)
    stranger.run("mkdir run; ln -s ../mine/iter_0000001 run/iter_0000001")
    result = train(*ARGUMENTS, "--save", str(stranger.shared / "run"))
    assert result.code == 65, result.err
    assert "iter_0000001: belongs to another user (uid 1001), and a run goes on from its own checkpoints only" in result.err


@pytest.mark.parametrize("name", ["attempts.jsonl", ".step"])
def test_a_pipe_is_not_read(name: str, stranger: Stranger) -> None:
    stranger.run(f"mkdir run; mkfifo -m 666 run/{name}; [ {name} = attempts.jsonl ] || echo '{{}}' > run/attempts.jsonl")
    result = train(*ARGUMENTS, "--save", str(stranger.shared / "run"))
    assert result.code == 73, result.err
    assert f"run/{name}: is not a file of its own" in result.err


def test_modules_in_the_current_directory_are_not_imported(stranger: Stranger, tmp_path: Path) -> None:
    for module in ("isal", "torch", "lt_train", "json"):
        stranger.run(f"echo 'raise SystemExit(\"executed\")' > {module}.py")
    words = [Path(sys.executable).with_name("lt-train"), *ARGUMENTS, "--save", str(tmp_path / "run")]
    done = subprocess.run(words, cwd=stranger.shared, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("planted", ["stacks/rank-00000.txt", "stacks"])
def test_stacks_are_not_written_through_a_link(planted: str, stranger: Stranger, capfd: pytest.CaptureFixture[str]) -> None:
    victim = stranger.shared / "victim"
    victim.mkdir()
    (victim / "rank-00000.txt").write_text("precious")
    target = "../victim" if planted == "stacks" else "../../victim/rank-00000.txt"
    stranger.run(f"mkdir -p run{'' if planted == 'stacks' else '/stacks'}; ln -s {target} run/{planted}")
    Watchdog(1.0, ONE_RANK, str(stranger.shared / "run"))._write_stacks()
    assert (victim / "rank-00000.txt").read_text() == "precious"
    stacks = stranger.shared / "run" / "stacks" / "rank-00000.txt"
    assert "most recent call first" in (capfd.readouterr().err if planted == "stacks" else stacks.read_text())


def test_the_id_of_a_tracked_run_is_not_written_through_a_link(stranger: Stranger) -> None:
    (stranger.shared / "victim").touch()
    stranger.run(f"mkdir run; ln -s ../victim run/{trackers.WANDB_ID}")
    with pytest.raises(CannotCreate, match="is a symbolic link"):
        trackers._run_id(str(stranger.shared / "run"))
    assert not (stranger.shared / "victim").read_text()


def test_the_probe_of_a_shared_directory_is_not_written_through_a_link(stranger: Stranger) -> None:
    victim = stranger.shared / "victim"
    victim.write_text("precious")
    stranger.run(f"mkdir run; ln -s ../victim run/.lt-train-preflight-{ONE_RANK.master_port}")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        assert bandwidth._check_save_visible(ONE_RANK, ["this"], str(stranger.shared / "run")) is None
    finally:
        torch.distributed.destroy_process_group()
    assert victim.read_text() == "precious"
    assert (stranger.shared / "run" / f".lt-train-preflight-{ONE_RANK.master_port}").is_symlink()
