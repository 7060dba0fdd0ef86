"""Copies of the state in the launcher's memory: ranks that are killed go on from the newest one, bit for bit."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from running import copied_ranks_in, environment, losses, quick_command, train

SIZES = (
    *("--mock-data", "--model", "tiny", "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128"),
    *("--device", "cpu", "--seq-length", "32", "--global-batch-size", "4", "--micro-batch-size", "1", "--log-interval", "1"),
    *("--eval-iters", "0", "--train-iters", "12", "--save-interval", "1000", "--max-restarts", "3", "--lr", "1e-2"),
)
LAYOUTS = {"tensor parallel": ("--ranks", "2", "--tensor-model-parallel-size", "2", "--hidden-dropout", "0.1")}


def wait_for_step(place: Path, run: subprocess.Popen[bytes], step: int) -> None:
    while f"iteration {step:8d}/" not in (said := (place / "log").read_text()):
        assert run.poll() is None, said
        time.sleep(0.02)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_killed_rank_goes_on_from_the_copies(layout: str, tmp_path: Path) -> None:
    options = (*SIZES, *LAYOUTS[layout])
    command = quick_command(*options, "--replicate-interval", "1", "--save", str(tmp_path / "run"))
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=environment(), cwd=tmp_path)
    wait_for_step(tmp_path, run, 6)
    os.kill(copied_ranks_in(tmp_path)[1], signal.SIGKILL)
    assert run.wait(timeout=600) == 0
    said = (tmp_path / "log").read_text()
    assert "successfully loaded checkpoint from the nodes' memory at iteration" in said
    # The copy of the last step or of the one before: nothing was saved yet.
    assert "the first after it, 0 step(s) repeated" in said or "the first after it, 1 step(s) repeated" in said
    assert train(*options, "--save", str(tmp_path / "still")).code == 0
    assert losses(tmp_path / "run") == losses(tmp_path / "still")
