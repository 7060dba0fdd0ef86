"""Two pods of a printed run as two processes, with the variables of their operator, and its rule for the ends of pods."""

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

from lt_shared.contracts.manifest import Dataset
from lt_train.process.ports import free_port

RUN = (
    *(*SMALL, "--train-iters", "6", "--save-interval", "2", "--lr", "1e-3", "--use-distributed-optimizer"),
    *("--global-batch-size", "4"),
)
# The training operator replaces a pod that fails with this code or a larger one; after a smaller one the job has failed. The
# controller of JobSets replaces all pods, unless the code is one of those for which the Job is to fail.
RETRYABLE = 128
LIMIT_SECONDS = 900


class Operator:
    """Runs the two pods until they have succeeded or the job has failed; `ends` are the codes of pods that did not.

    `never` are the codes of a JobSet's rule, None for a PyTorchJob.
    """

    def __init__(self, command: list[str], folder: Path, never: list[int] | None):
        self.command, self.folder, self.never = command, folder, never
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
                    if code < RETRYABLE if self.never is None else code in self.never:
                        return False
                    if self.never is not None:
                        self._delete(pods[1 - rank])
                        pods[1 - rank] = self._start(1 - rank, {})
                    pods[rank] = self._start(rank, {})
                if all(pod.poll() == 0 for pod in pods):
                    return True
                time.sleep(0.1)
            raise AssertionError(self.log)
        finally:
            for pod in pods:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pod.pid, signal.SIGKILL)
                pod.wait()

    def _delete(self, pod: subprocess.Popen[bytes]) -> None:
        """As the kubelet: the first process of a container is asked to end, and has time for it."""
        pod.terminate()
        pod.wait(timeout=LIMIT_SECONDS)

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


def operator(tmp_path: Path, kind: str, *options: str) -> Operator:
    options = (*options, "--save", f"{tmp_path}/run")
    printed = manifests(
        "k8s", "--kind", kind, "--image", "lt", "--nodes", "2", "--gpus-per-node", "1", "--mount", str(tmp_path), *options
    )
    never = None
    if kind == "jobset":
        (replicated,) = printed[0]["spec"]["replicatedJobs"]
        (rule,) = replicated["template"]["spec"]["podFailurePolicy"]["rules"]
        never = rule["onExitCodes"]["values"]
    return Operator(training_command(printed), tmp_path, never)


@pytest.fixture(scope="module")
def undisturbed(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("undisturbed") / "one"
    done = train(*RUN, "--ranks", "2", "--save", str(place), dataset.prefix)
    assert done.code == 0, done.err
    return place


@pytest.mark.parametrize(("rank", "kind"), [(0, "pytorchjob"), (1, "pytorchjob"), (0, "jobset")])
def test_a_killed_rank_and_its_survivor_start_again_together(
    dataset: Dataset, undisturbed: Path, tmp_path: Path, rank: int, kind: str
) -> None:
    """A rank is killed in its second save. The pod of the other one cannot know why the connection was closed.

    The controller of JobSets replaces both pods, whichever of them ends.
    """
    data = tmp_path / "data"
    data.mkdir()
    for suffix in (".bin", ".idx"):
        (data / f"web{suffix}").hardlink_to(f"{dataset.prefix}{suffix}")
    job = operator(tmp_path, kind, *RUN, str(data / "web"))
    assert job.run(**faulty(f"{rank}:fsync:iter_0000004:SIGKILL:rank")), job.log
    ends = [(rank, 128 + 9), (1 - rank, 128 + 74)]
    assert sorted(job.ends) == sorted(ends) if kind == "pytorchjob" else job.ends[0] in ends
    assert losses(tmp_path / "run") == losses(undisturbed)
    assert "at iteration 2" in job.log


@pytest.mark.parametrize("kind", ["pytorchjob", "jobset"])
def test_what_cannot_work_is_not_tried_again(tmp_path: Path, kind: str) -> None:
    job = operator(tmp_path, kind, *RUN, str(tmp_path / "nowhere"))
    assert not job.run()
    assert {code for _, code in job.ends} == {66}
