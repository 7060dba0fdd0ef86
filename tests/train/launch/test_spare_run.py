"""A node is lost, and a spare one takes its place with the copies in another node's memory.

Nodes are launchers in network namespaces, with two ranks each.
"""

import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self
from unittest.mock import MagicMock

import pytest
from networks import INTERFACE, namespaces, needs_namespaces
from running import copied_ranks_in, environment, losses, quick_command, train

from lt_shared.console import Unavailable
from lt_train.launch import spare_run
from lt_train.launch.spare_run import Exchange, FollowingSpareRun

pytestmark = needs_namespaces

MODEL = (
    *("--mock-data", "--model", "tiny", "--num-layers", "1", "--hidden-size", "64", "--ffn-hidden-size", "128"),
    *("--device", "cpu", "--seq-length", "16", "--global-batch-size", "4", "--micro-batch-size", "1", "--log-interval", "1"),
    *("--eval-iters", "0", "--train-iters", "40", "--lr", "1e-2", "--lr-warmup-iters", "0", "--bf16"),
    "--use-distributed-optimizer",
)
SPARES = ("--ranks", "2", "--max-restarts", "3", "--replicate-interval", "1")
STEP = re.compile(r"iteration +(\d+)/")


class Job:
    """The run in `place`/run on launchers in namespaces, as in the pods of a PyTorchJob. `place` has a log for each."""

    def __init__(self, place: Path, networks: list[str], *options: str):
        self.place = place
        self.networks = networks
        self._command = quick_command(*MODEL, *SPARES, *options, "--save", str(place / "run"))
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int) -> None:
        variables = {"PET_NNODES": str(len(self.networks)), "PET_NODE_RANK": str(number), "OMP_NUM_THREADS": "1"}
        variables |= {"PET_MASTER_ADDR": "10.77.0.1", "PET_MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": INTERFACE}
        folder = self.place / f"node{number}"
        folder.mkdir(exist_ok=True)
        with (self.place / f"log{number}").open("w") as log:
            self.nodes[number] = subprocess.Popen(
                ["ip", "netns", "exec", self.networks[number], *self._command],
                env=environment() | variables,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=folder,
            )

    def log(self, number: int = 0) -> str:
        return (self.place / f"log{number}").read_text()

    def steps(self) -> list[int]:
        return [int(step) for step in STEP.findall(self.log())]

    def said(self) -> str:
        """The log of the run, which the first rank writes on whichever node it is."""
        return (self.place / "run" / "train.log").read_text()

    def wait_for_step(self, step: int, earlier_steps: int = 0) -> None:
        while not any(number >= step for number in self.steps()[earlier_steps:]):
            assert self.nodes[0].poll() is None, self.log()
            time.sleep(0.01)

    def kill(self, number: int) -> None:
        """Kill the launcher and the ranks of a node at once."""
        ranks = copied_ranks_in(self.place / f"node{number}")
        for process in (self.nodes[number].pid, *ranks.values()):
            os.kill(process, signal.SIGKILL)
        self.nodes[number].wait()

    def end(self, *numbers: int) -> None:
        codes = [self.nodes[number].wait(timeout=300) for number in numbers]
        assert not any(codes), "".join(map(self.log, range(len(self.nodes))))[-9000:]


@contextmanager
def job(place: Path, count: int, *options: str, late: int = 0) -> Iterator[Job]:
    """A job on `count` nodes; the test starts the `late` last ones."""
    with namespaces(count) as networks, ExitStack() as stack:
        job = Job(place, networks, *options)
        stack.callback(lambda: [node.kill() for node in job.nodes.values()])
        for number in range(count - late):
            job.start(number)
        yield job


def recoveries(log: str) -> list[float]:
    """The seconds from the last step before each loss to the first step after it."""
    return [float(seconds) for seconds in re.findall(r"recovered in ([\d.]+) s", log)]


def undisturbed(place: Path, *options: str) -> dict[tuple[str, int], float]:
    """The losses of the same run on one machine without a loss."""
    still = train(*MODEL, "--ranks", "4", *options, "--save", str(place / "still"), OMP_NUM_THREADS="1")
    assert still.code == 0, still.err
    return losses(place / "still")


@pytest.fixture(scope="module")
def undisturbed_losses(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], float]:
    """The losses of four ranks without further options, for the two tests that lose one of two nodes."""
    return undisturbed(tmp_path_factory.mktemp("undisturbed"))


def test_a_lost_node_is_replaced_by_a_spare_one(tmp_path: Path, undisturbed_losses: dict[tuple[str, int], float]) -> None:
    with job(tmp_path, 3, "--spare-nodes", "1") as run:
        run.wait_for_step(8)
        run.kill(1)
        run.end(0, 2)
        said = run.log()
    assert re.search(r"node 1 \(.*\) is lost", said), said
    assert re.search(r"going on from the copies of iteration \d+ in memory", said)
    assert "spare processes are the ranks 2, 3, and the ranks of other nodes go on in theirs" in run.log(2)
    assert re.search(r"successfully loaded checkpoint from the nodes' memory at iteration", said)
    assert re.search("the first after it, [0-9] step", said), "the copies of the last steps are there"
    (seconds,) = recoveries(said)
    assert seconds < 60
    assert losses(tmp_path / "run") == undisturbed_losses


def test_another_node_leads_when_the_first_one_is_lost(tmp_path: Path, undisturbed_losses: dict[tuple[str, int], float]) -> None:
    with job(tmp_path, 3, "--spare-nodes", "1", late=1) as run:
        run.wait_for_step(2)
        run.start(2)
        while "it waits for the loss of another node" not in run.log(2):
            assert run.nodes[2].poll() is None, run.log(2)
            time.sleep(0.01)
        run.wait_for_step(run.steps()[-1] + 4)
        # The kernel frees the memory of a killed launcher before its lock, so the lock comes later than the loss.
        with shared_lock(tmp_path / "run" / ".lock"):
            run.kill(0)
            while "s for the lock" not in run.log(1):
                assert run.nodes[1].poll() is None, run.log(1)
                assert "successfully loaded" not in run.said()
                time.sleep(0.01)
        run.end(1, 2)
        assert "the node that leads is lost, and node 1 leads now" in run.log(1)
        assert "spare processes are the ranks 0, 1, and the ranks of other nodes go on in theirs" in run.log(2)
        assert "successfully loaded checkpoint from the nodes' memory at iteration" in run.said()
        assert len(recoveries(run.said())) == 1
    assert losses(tmp_path / "run") == undisturbed_losses


@contextmanager
def shared_lock(path: Path) -> Iterator[None]:
    """Hold the lock on a file together with its present holder, also when that process has been killed."""
    inode = path.stat().st_ino
    holders = [line.split()[4] for line in Path("/proc/locks").read_text().splitlines() if line.split()[5].endswith(f":{inode}")]
    process = int(holders[0])
    number = next(entry.name for entry in Path(f"/proc/{process}/fd").iterdir() if path.samefile(entry))
    handle = os.pidfd_open(process)
    # pidfd_getfd, which Python has not: a descriptor of the same open file, and so of the same lock.
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(438, handle, int(number), 0)
    os.close(handle)
    assert descriptor >= 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        os.close(descriptor)


class EndingLeader:
    """The side of a member whose leader begins an attempt, ends the run with 143, and closes the connection at once."""

    def __init__(self, *arguments: object):
        begin = {"begin": 1, "step": 0, "stored": 0, "fetch": {}, "next": None, "nodes": [0, 1], "port": 1, "address": "gpu1"}
        self._batches = [[{"group": {"hosts": {"1": "gpu2"}, "nodes": [0, 1], "restarts": 1}}, begin], [{"finish": 143}]]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def wait(self, seconds: float) -> None:
        pass

    def send(self, message: object) -> None:
        pass

    def receive(self) -> list[dict[str, Any]]:
        if not self._batches:
            raise Unavailable("the node that leads the others is lost", "")
        return self._batches.pop(0)


def test_the_leader_ends_the_run_during_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a second signal to the leader: its node is not lost, and nobody waits for it."""

    def run_ranks(*arguments: Any) -> int:
        watch = arguments[4]
        while True:
            watch()

    monkeypatch.setattr(spare_run, "Member", EndingLeader)
    nodes = MagicMock()
    nodes.active = 2
    nodes.nodes.node.node_rank = 1
    nodes.nodes.config.faults = MagicMock(timeout_seconds=1.0, wait_for_nodes_seconds=1.0)
    ranks = MagicMock(signalled=None, run=run_ranks)
    assert FollowingSpareRun(nodes, Exchange(b"", 0)).run(ranks) == 143
    ranks.stop.assert_called()


def test_without_the_copies_the_disks_count_and_then_the_checkpoint(tmp_path: Path) -> None:
    """Two nodes whose launchers are killed together are started again: the third one has no copies of one of their ranks."""
    copies = ("--save-local", "local", "--save-local-interval", "3", "--save-interval", "16")
    options = (*copies, "--ranks", "1", "--global-batch-size", "3")
    lost = "no node has copies in memory of rank(s) 1: going on from --save-local or a checkpoint"
    with job(tmp_path, 3, *options) as run:
        for step, keeps_disks in ((6, True), (19, False)):
            seen = len(run.steps())
            run.wait_for_step(step, seen)
            for number in (1, 2):
                run.kill(number)
                if not keeps_disks:
                    (tmp_path / f"node{number}" / "local").rename(tmp_path / f"lost{number}")
            for number in (1, 2):
                run.start(number)
            while run.log().count(lost) < (1 if keeps_disks else 2):
                assert run.nodes[0].poll() is None, run.log()
                time.sleep(0.01)
        run.end(0, 1, 2)
        said = run.log()
    from_disks, from_save = re.findall(r"successfully loaded checkpoint from (\S+) at iteration (\d+)", said)
    assert "/local/" in from_disks[0]
    assert int(from_disks[1]) % 3 == 0
    assert from_save == (str(tmp_path / "run"), "16")
    assert losses(tmp_path / "run") == undisturbed(tmp_path, *options[-2:], "--ranks", "3")
