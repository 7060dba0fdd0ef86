"""A node is lost, the run goes on with the other, and takes the node back: its losses are those of runs resharded by hand.

Two launchers on this machine are the nodes, with two ranks each.
"""

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from reserved_ports import free_port
from running import environment, faulty, losses, quick_command, train

from lt_shared.console import BadConfig, ExitCode, ToolError, Unavailable
from lt_shared.contracts import checkpoint_layout
from lt_train.config.options import schema
from lt_train.config.run_config import RunConfig
from lt_train.launch import elastic_run, launcher, rank_processes
from lt_train.launch.node_group import listen
from lt_train.planner import memory_estimate
from lt_train.planner.resolve import resolve_run_config
from lt_train.process import device, rank_environment

MODEL = (
    *("--mock-data", "--model", "tiny", "--num-layers", "1", "--hidden-size", "64", "--ffn-hidden-size", "128"),
    *("--device", "cpu", "--seq-length", "16", "--global-batch-size", "8", "--micro-batch-size", "1", "--log-interval", "1"),
    *("--eval-iters", "0", "--train-iters", "8", "--save-interval", "2", "--lr", "1e-2", "--lr-warmup-iters", "0"),
    "--use-distributed-optimizer",
)
ELASTIC = ("--min-nodes", "1", "--wait-for-nodes", "0", "--ranks", "2")


class Job:
    """The run in `save`, whose nodes are launchers as in two pods of a PyTorchJob."""

    def __init__(self, save: Path, copies: bool):
        self.save = save
        self._copies = copies
        self._command = quick_command(*MODEL, *ELASTIC, "--save", str(save))
        shared = {"PET_NNODES": "2", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
        self._variables = environment() | shared

    @contextmanager
    def node(self, number: int, fault: str = "") -> Iterator[subprocess.Popen[str]]:
        variables = self._variables | {"PET_NODE_RANK": str(number)} | faulty(fault)
        if self._copies:
            variables |= {"LT_TRAIN_SAVE_LOCAL": str(self.save.parent / f"disk{number}"), "LT_TRAIN_SAVE_LOCAL_INTERVAL": "1"}
        with subprocess.Popen(self._command, env=variables, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as node:
            try:
                yield node
            finally:
                node.kill()


def messages(node: subprocess.Popen[str], last: str | None = None) -> str:
    """Read the node's messages, up to a line with the text `last`, or else to the node's end."""
    assert node.stderr is not None
    lines = []
    for line in node.stderr:
        lines.append(line)
        if last and last in line:
            return "".join(lines)
    assert last is None, "".join(lines)
    return "".join(lines)


def by_hand(place: Path, checkpoint: Path, ranks: int, *options: str) -> dict[tuple[str, int], float]:
    """The losses of a run in `place` that goes on from a copy of `checkpoint` with a number of ranks."""
    place.mkdir()
    shutil.copytree(checkpoint, place / checkpoint.name)
    done = train(*MODEL, "--ranks", str(ranks), *options, "--save", str(place), OMP_NUM_THREADS="1")
    assert done.code in (ExitCode.OK, ExitCode.TRY_AGAIN), done.err
    return losses(place)


@pytest.mark.parametrize(("lost", "start"), [(1, 2), (0, 3)])
def test_a_node_is_lost_and_taken_back(tmp_path: Path, lost: int, start: int) -> None:
    """The launcher of a node, also of the first, which leads, dies while its ranks save step 4. When the other node has saved it
    alone, it waits there until the lost one is back, which takes part from that step on, or from the next checkpoint. The other
    node begins with the checkpoint of step 2, or with local copies of step 3.
    """
    job = Job(tmp_path / "run", copies=start == 3)
    with job.node(1 - lost, "0:rename:iter_0000004:REGROUP:rank") as remaining:
        with job.node(lost, f"{2 * lost}:fsync:iter_0000004:SIGKILL:launcher") as victim:
            assert victim.wait() == -9, messages(victim)
        log = messages(remaining, "going on with 1 of 2 node(s) from iteration 2")
        assert re.search(r"node 1 \(\S+\) of 2 is lost: waiting up to 0 s" if lost else "lost: this node leads them now", log)
        with job.node(lost) as returned:
            log = messages(remaining)
            assert remaining.wait() == 0, log
            assert returned.wait() == 0, messages(returned)
    assert "2 of 2 node(s) are there: all take part after the next checkpoint" in log
    assert f"continues on 1 of 2 node(s) from iteration {start}" in log
    together = re.search(r"going on with 2 of 2 node\(s\) from iteration ([46])", log)
    assert together, log
    assert checkpoint_layout.read_tracker(job.save) == 8
    assert not (job.save / elastic_run.LEADER_FILE).exists()

    recorded, end = losses(job.save), int(together[1])
    assert [step for _, step in recorded] == list(range(1, 9))
    first = checkpoint_layout.iteration_directory(job.save, 2)
    expected = by_hand(tmp_path / "before", first, 4, "--exit-interval", "3") if start == 3 else {}
    if start == 3:
        first = checkpoint_layout.iteration_directory(tmp_path / "before", 3)
    expected |= by_hand(tmp_path / "one", first, 2, "--exit-interval", str(end))
    expected |= by_hand(tmp_path / "two", checkpoint_layout.iteration_directory(tmp_path / "one", end), 4)
    assert {key: loss for key, loss in recorded.items() if key[1] > 2} == expected


NODE = {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "127.0.0.1"}
SAVED = ("--min-nodes", "1", "--save", "run", "--mock-data", "--device", "cpu", "--ranks", "2")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--tensor-model-parallel-size", "4"), "no number of nodes works; on 1: 2 ranks do not divide into tensor parallel 4"),
        (("--min-nodes", "3"), "--min-nodes 3, and the job has 2 node"),
    ],
)
def test_runs_that_cannot_go_on_with_fewer_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in NODE.items():
        monkeypatch.setenv(name, value)
    words = (*SAVED, "--model", "tiny", "--global-batch-size", "4", *options)

    def resolve(nodes: int | None = None, ranks: int | None = None) -> RunConfig:
        return resolve_run_config(schema().make_context("lt-train", [*words]).params, (), nodes, ranks)

    with pytest.raises(BadConfig, match=reason):
        launcher.launch(resolve(), resolve)


def test_memory_that_suffices_on_two_nodes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*SAVED, "--model", "llama3.2-1b", "--seq-length", "64", "--global-batch-size", "4", "--use-distributed-optimizer")
    for name, value in NODE.items():
        monkeypatch.setenv(name, value)

    def resolve(nodes: int | None = None, ranks: int | None = None) -> RunConfig:
        return resolve_run_config(schema().make_context("lt-train", [*words]).params, (), nodes, ranks)

    config, node = resolve(), rank_environment.find_node()
    assert node
    nodes = elastic_run.Nodes(node, config, resolve, launcher.prepare, lambda seconds: nullcontext(), None)
    monkeypatch.setattr(device, "host_memory", lambda: 2**40)
    assert nodes.usable_counts() == (1, 2)
    # A rank of one node has an optimizer state twice as large.
    monkeypatch.setattr(device, "host_memory", lambda: 2 * memory_estimate.estimate(config).fullest_rank.total)
    with pytest.raises(BadConfig, match="on 1: the plan does not fit"):
        nodes.usable_counts()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--save", "run"), "--min-nodes without --global-batch-size"),
        (("--global-batch-size", "4"), "without checkpoints to go on from"),
        (("--global-batch-size", "4", "--save", "run", "--no-save-optim"), "without checkpoints to go on from"),
        (
            (*SAVED[2:4], "--global-batch-size", "4", "--max-restarts", "1", "--replicate-interval", "2"),
            "same number of ranks only",
        ),
    ],
)
def test_options_that_elastic_runs_need(options: tuple[str, ...], reason: str) -> None:
    words = ["--min-nodes", "1", "--mock-data", "--device", "cpu", "--model", "tiny", *options]
    with pytest.raises(ToolError, match=reason):
        resolve_run_config(schema().make_context("lt-train", words).params, ())


def test_ranks_of_another_launcher_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun = {"RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    for name, value in (torchrun | {"MASTER_ADDR": "127.0.0.1"}).items():
        monkeypatch.setenv(name, value)
    words = [*SAVED[:-2], "--model", "tiny", "--global-batch-size", "4"]
    with pytest.raises(BadConfig, match="torchrun has started this one"):
        launcher.launch(resolve_run_config(schema().make_context("lt-train", words).params, ()))


class FakeGroup:
    """A group of which some nodes are there."""

    def __init__(self, present: list[int]):
        self.present = present

    def poll(self) -> None:
        pass


def test_the_largest_usable_number_of_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three of four nodes are there, and three do not divide the batch: one waits, and is no reason to begin again."""
    monkeypatch.chdir(tmp_path)
    for name, value in (NODE | {"PET_NNODES": "4"}).items():
        monkeypatch.setenv(name, value)
    words = (*SAVED, "--model", "tiny", "--global-batch-size", "8", "--micro-batch-size", "1")

    def resolve(nodes: int | None = None, ranks: int | None = None) -> RunConfig:
        return resolve_run_config(schema().make_context("lt-train", [*words]).params, (), nodes, ranks)

    node = rank_environment.find_node()
    assert node
    nodes = elastic_run.Nodes(node, resolve(), resolve, launcher.prepare)
    with listen("127.0.0.1", free_port()) as listener, rank_processes.Ranks(has_spare=False) as ranks:
        run = elastic_run.LeadingRun(nodes, listener, "127.0.0.1", 0)
        group: Any = FakeGroup([0, 2, 3])
        assert run._gather(ranks, group, 0) == [0, 2]
        run._ask_for_more(ranks, group, 2)
        assert not ranks.regroup_file.exists()
        group.present = [0, 1, 2, 3]
        assert run._gather(ranks, group, 60) == [0, 1, 2, 3]
        run._ask_for_more(ranks, group, 2)
        assert ranks.regroup_file.exists()
        run._counts = (2, 4)
        group.present = [0]
        with pytest.raises(Unavailable, match=r"1 of 4 node.* came within 0 s, and the run goes on with 2 or 4"):
            run._gather(ranks, group, 0)
        # A signal ends the wait.
        ranks.signalled = signal.SIGTERM
        assert run._gather(ranks, group, 60) == []
