"""A run's directory that another user has made, with what lt-train will look for."""

import subprocess
import sys
from pathlib import Path

import pytest
from running import SMALL, environment, train
from stranger import Stranger

ARGUMENTS = (*SMALL, "--mock-data", "--train-iters", "1", "--ranks", "1")


@pytest.mark.parametrize("name", [".lock", "train.log", "metrics.jsonl", "attempts.jsonl", ".step"])
def test_a_link_is_not_followed(name: str, stranger: Stranger) -> None:
    victim = stranger.shared / "victim"
    victim.write_text("precious")
    victim.chmod(0o644)
    stranger.run(f"mkdir run; ln -s ../victim run/{name}")
    result = train(*ARGUMENTS, "--save", str(stranger.shared / "run"))
    assert result.code == 73, result.err
    assert f": {stranger.shared}/run/{name}: is a symbolic link" in result.err
    assert victim.read_text() == "precious"


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
