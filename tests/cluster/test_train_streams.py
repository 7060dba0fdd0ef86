"""lt-train on the two nodes of a real Slurm follows a stream, of which each node sees more and more at a time of its own."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard
from running import SMALL, losses, train

DEMO = Path(__file__).parents[1] / "demo"
# Of 320 samples the first shard has 155, the first two 310.
STEPS = (
    *("--train-iters", "40", "--save-interval", "5", "--split", "1,0,0", "--eval-iters", "0", "--lr", "1e-3"),
    *("--micro-batch-size", "4"),
)
# What a node sees of the shared directory is bound over it, for this node alone.
NODE = """\
mount --bind "$PWD/seen-by-$(hostname)" data
exec lt-train {options} --save streamed --follow @data/web.list
"""
JOB = "srun --nodes 2 --ntasks-per-node 1 unshare --mount bash -e node.sh"


class View:
    """What one node sees of data/."""

    def __init__(self, directory: Path, node: str):
        self.whole, self.seen = directory / "data", directory / f"seen-by-{node}"
        self.seen.mkdir()

    def shows_shard(self, number: int) -> None:
        for path in self.whole.glob(f"web-part{number:05d}_*"):
            shutil.copy(path, self.seen / f"{path.name}.partial")
            (self.seen / f"{path.name}.partial").rename(self.seen / path.name)

    def shows_lines(self, *numbers: int) -> None:
        """Those of the list, with as many again where the producer was started again; the last is the end line."""
        lines = (self.whole / "web.list").read_text().splitlines(keepends=True)
        (self.seen / "web.list.partial").write_text("".join(lines[number] for number in numbers))
        (self.seen / "web.list.partial").rename(self.seen / "web.list")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    text = zstandard.ZstdDecompressor().stream_reader((DEMO / "corpus.jsonl.zst").read_bytes()).read()
    (tmp_path / "corpus.jsonl").write_bytes(b"".join(text.splitlines(keepends=True)[:200]))
    (tmp_path / "node.sh").write_text(NODE.format(options=" ".join((*SMALL, *STEPS))))
    return tmp_path


def step_reached(log: Path) -> int:
    return max(map(int, re.findall(r" iteration +(\d+)/", log.read_text())), default=0)


def test_nodes_that_see_shards_at_different_times(slurm: Any, directory: Path) -> None:
    """The list is not there yet; a node lacks a file, then a line; a rank is killed: the losses are those of one machine."""
    first, second = View(directory, "n1"), View(directory, "n2")
    log = directory / "job.out"
    job = slurm.submit(directory, JOB, "--nodes=2", "-o", log.name)
    slurm.read_until(log, r"(waiting for the first shard(?s:.*)){2}")
    tokenize = f"lt-preprocess corpus.jsonl --tokenizer {DEMO}/tokenizer --append-eod --stream --max-shard-size 20K -o data/web"
    slurm.run("bash", "-c", f"{tokenize} > data/web.list", cwd=directory)
    assert len((directory / "data/web.list").read_text().splitlines()) == 5
    for view in (first, second):
        view.shows_lines(0)
    first.shows_shard(0)
    time.sleep(3)
    second.shows_shard(0)
    slurm.read_until(log, r" iteration +19/")
    # One node has it all, the producer of whose list was killed and started again.
    for number in (1, 2, 3):
        first.shows_shard(number)
    first.shows_lines(0, 0, 1, 2, 3, 4)
    second.shows_lines(0, 1)
    slurm.read_until(log, r"waiting for data since \d+ s, after iteration 19: a stream, on another rank")
    assert step_reached(log) == 19
    second.shows_shard(1)
    slurm.read_until(log, r" iteration +38/")
    time.sleep(2)
    assert step_reached(log) == 38
    os.kill(slurm.ranks(job)["1"], signal.SIGKILL)
    slurm.wait(job, "FAILED", "NODE_FAIL", "CANCELLED")
    second.shows_lines(0, 1, 2, 3, 4)
    again = slurm.submit(directory, JOB, "--nodes=2", "-o", "again.out")
    slurm.read_until(directory / "again.out", r"loaded checkpoint from \S+ at iteration 35\n")
    for number in (2, 3):
        second.shows_shard(number)
    slurm.finish(again, directory / "again.out")
    whole = train(*SMALL, *STEPS, "--ranks", "2", "--save", str(directory / "whole"), f"@{directory}/data/web.list")
    assert whole.code == 0, whole.err
    assert losses(directory / "streamed") == losses(directory / "whole")
    assert json.loads((directory / "streamed/iter_0000040/run.json").read_text())["streams"][0]["shards"][1]["tokens"] > 9000
