"""Two pods of a printed PyTorchJob as two processes, with the variables of the training operator, and its rule for their ends."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import nursery
import pytest
from rendering import manifests, training_command
from running import SMALL, environment, faulty, losses, train

from lt_shared.manifest import Dataset
from lt_train.runtime.ports import free_port

RUN = (*SMALL, "--train-iters", "12", "--save-interval", "4", "--lr", "1e-3", "--use-distributed-optimizer")
# An operator deletes a failed pod, and makes a new one, from this code on; for a lower one the job has failed.
RETRYABLE = 128
LIMIT_SECONDS = 240


class Operator:
    """Runs the two pods until the master has succeeded or the job has failed; `ends` are the codes of pods that did not."""

    def __init__(self, command: list[str], folder: Path):
        self.command, self.folder = command, folder
        self.port = free_port()
        self.ends: list[tuple[int, int]] = []
        tools = folder / "bin"
        tools.mkdir()
        nursery.executable(tools / "lt-train", nursery.python(), "-m", "lt_train")

    def run(self, **first_start: str) -> bool:
        """Whether the job has succeeded. `first_start` are variables of the first two pods."""
        pods = [self._start(rank, first_start) for rank in range(2)]
        deadline = time.monotonic() + LIMIT_SECONDS
        try:
            while time.monotonic() < deadline:
                for rank, pod in enumerate(pods):
                    code = pod.poll()
                    if code is None or code == 0:
                        continue
                    self.ends.append((rank, code))
                    if code < RETRYABLE:
                        return False
                    pods[rank] = self._start(rank, {})
                if pods[0].poll() == 0:
                    return True
                time.sleep(0.1)
            raise AssertionError(self.log)
        finally:
            for pod in pods:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pod.pid, signal.SIGKILL)
                pod.wait()

    def _start(self, rank: int, variables: dict[str, str]) -> subprocess.Popen[bytes]:
        world = {"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
        torchrun = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(rank)}
        rendezvous = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(self.port)}
        path = {"PATH": f"{self.folder}/bin:/usr/bin:/bin"}
        with (self.folder / f"pod{rank}.log").open("ab") as log:
            variables = environment() | world | torchrun | rendezvous | path | variables
            return subprocess.Popen(self.command, env=variables, stdout=log, stderr=log, start_new_session=True)

    @property
    def log(self) -> str:
        return "".join(file.read_text() for file in sorted(self.folder.glob("pod*.log")))


def operator(tmp_path: Path, *options: str) -> Operator:
    options = (*options, "--save", f"{tmp_path}/run")
    printed = manifests("k8s", "--image", "lt", "--nodes", "2", "--gpus-per-node", "1", "--mount", str(tmp_path), *options)
    return Operator(training_command(printed), tmp_path)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_and_its_survivor_start_again_together(dataset: Dataset, tmp_path: Path, rank: int) -> None:
    """A rank is killed in its second save. The pod of the other one cannot know why the connection was closed."""
    data = tmp_path / "data"
    data.mkdir()
    for suffix in (".bin", ".idx"):
        (data / f"web{suffix}").hardlink_to(f"{dataset.prefix}{suffix}")
    job = operator(tmp_path, *RUN, str(data / "web"))
    assert job.run(**faulty(f"{rank}:fsync:iter_0000008:SIGKILL:rank")), job.log
    assert sorted(job.ends) == sorted([(rank, 128 + 9), (1 - rank, 128 + 74)])
    undisturbed = train(*RUN, "--ranks", "2", "--save", str(tmp_path / "one"), str(data / "web"))
    assert undisturbed.code == 0, undisturbed.err
    assert losses(tmp_path / "run") == losses(tmp_path / "one")
    assert "at iteration 4" in job.log


def test_what_cannot_work_is_not_tried_again(tmp_path: Path) -> None:
    job = operator(tmp_path, *RUN, str(tmp_path / "nowhere"))
    assert not job.run()
    assert {code for _, code in job.ends} == {66}
