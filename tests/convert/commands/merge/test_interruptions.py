"""A merge that is killed or interrupted resumes, or leaves nothing that could be taken for its result."""

import itertools
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from averaged_models import WEIGHTS, assert_same, average, values, write

import lt_convert
from lt_convert.commands import checksum_verification
from lt_convert.tensors.averages import Average
from lt_convert.tensors.blocks import TensorReader
from lt_shared.models.architecture import Architecture


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Models of 25 MB, enough to be killed in the middle."""
    architecture = Architecture("large", "llama", 2, 512, 2048, 8, 8, 8000, 512)
    return [write(tmp_path_factory.mktemp("large") / f"hf{seed}", architecture, seed, "float16") for seed in (1, 2, 3)]


KILLED = """
import os, signal, sys, time
from lt_convert.cli import main
from lt_convert.engine import journal

journal.SYNC_SECONDS = 0.0
left, delay_seconds = int(sys.argv.pop(1)), float(sys.argv.pop(1))
add = journal.Journal.add

def add_and_die(self, piece):
    global left
    add(self, piece)
    left -= 1
    if left == 0:
        time.sleep(delay_seconds)
        os.kill(os.getpid(), signal.SIGKILL)

journal.Journal.add = add_and_die
main()
"""


def test_kills_at_random_leave_a_result_or_nothing(large: list[Path], tmp_path: Path) -> None:
    """Each attempt kills itself after it has finished some tensors; what an earlier one has finished is not written again.

    Its threads go on writing until then, at random. No machine is too slow or too fast for that.
    """
    chance = random.Random(1)
    words = [f"{model}={weight}" for model, weight in zip(large, WEIGHTS, strict=True)]
    command = ["merge", *words, "--to", "torchtitan", "-o", str(tmp_path / "merged")]
    kills = 0
    while True:
        attempt = [str(chance.randint(10, 20)), str(chance.uniform(0, 0.05))]
        child = subprocess.run([sys.executable, "-c", KILLED, *attempt, *command], capture_output=True, text=True, check=False)
        assert ("resumes after" in child.stderr) == (kills > 0), child.stderr
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL, child.stderr
        kills += 1
        assert not (tmp_path / "merged").exists()
    assert kills > 1
    assert not list(tmp_path.glob(".*"))
    assert checksum_verification.verify(str(tmp_path / "merged"))["problems"] == []
    back = lt_convert.convert(tmp_path / "merged", tmp_path / "back").path
    assert_same(values(Path(back)), average(large, WEIGHTS))


def test_another_weight_does_not_resume(large: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge that was interrupted leaves averages with the weights that it had."""
    whole, begun = Average.contents, itertools.count()

    def some(average: Average, reader: TensorReader) -> Iterator[Any]:
        if next(begun) > 5:
            raise KeyboardInterrupt
        return whole(average, reader)

    monkeypatch.setattr(Average, "contents", some)
    with pytest.raises(KeyboardInterrupt):
        lt_convert.merge({large[0]: 0.5, large[1]: 0.5}, tmp_path / "merged")
    monkeypatch.undo()
    assert (tmp_path / ".merged.partial").is_dir()
    lt_convert.merge({large[0]: 0.9, large[1]: 0.1}, tmp_path / "merged")
    assert_same(values(tmp_path / "merged"), average(large[:2], (0.9, 0.1)))
