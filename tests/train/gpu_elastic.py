"""How a run of two nodes goes on after one is lost, and takes it back: seconds, and the losses beside runs resharded by hand.

    python tests/train/gpu_elastic.py           # two launchers with one GPU each, less than 150 s
    python tests/train/gpu_elastic.py --cpu     # with two gloo ranks each

Not a part of the test session, whose test of the same (launch/test_elastic_run.py) is on a CPU. Kills the launcher of the second
node, starts it again when the first one goes on alone, and ends the run with SIGTERM some steps after both go on together. Then
two runs are resharded by hand from the same checkpoints, and the largest difference of a loss is printed. Ends with 1 if a loss
differs, or if the run did not come back.
"""

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from running import environment, losses

from lt_shared.contracts import checkpoint_layout
from lt_train.process.device import gpu_count
from lt_train.process.ports import free_port

INTERVAL = 20
LONGEST_SECONDS = 140
ALONE, TOGETHER = (rf"continues on {nodes} of 2 node\(s\) from iteration (\d+)" for nodes in (1, 2))
MODEL = (
    *("--mock-data", "--model", "tiny", "--num-layers", "2", "--seq-length", "128", "--micro-batch-size", "1"),
    *("--global-batch-size", "8", "--train-iters", "4000", "--save-interval", str(INTERVAL), "--log-interval", "1"),
    *("--eval-iters", "0", "--use-distributed-optimizer", "--lr", "1e-3"),
)


class Job:
    def __init__(self, place: Path, on_cpu: bool):
        self.save = place / "run"
        self.log = self.save / "train.log"
        self.ranks = 2 if on_cpu else 1
        self.where = ("--device", "cpu") if on_cpu else ("--device", "cuda", "--bf16", "--deterministic")
        self._on_cpu = on_cpu
        self._port = str(free_port())
        self._place = place
        self._deadline = time.monotonic() + LONGEST_SECONDS

    def start(self, node: int) -> subprocess.Popen[bytes]:
        options = ("--ranks", str(self.ranks), "--min-nodes", "1", "--wait-for-nodes", "1", "--save", str(self.save))
        variables = {"PET_NNODES": "2", "PET_NODE_RANK": str(node), "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": self._port}
        variables |= {"OMP_NUM_THREADS": "1"} if self._on_cpu else {"CUDA_VISIBLE_DEVICES": str(node)}
        with (self._place / f"node{node}.err").open("a") as messages:
            command = [sys.executable, "-m", "lt_train", *MODEL, *self.where, *options]
            return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=messages, env=environment() | variables)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait for a line of train.log. Raises RuntimeError after LONGEST_SECONDS."""
        while time.monotonic() < self._deadline:
            if self.log.exists() and (match := re.search(pattern, self.log.read_text(), re.DOTALL)):
                return match
            time.sleep(0.02)
        messages = "".join(path.read_text()[-3000:] for path in sorted(self._place.glob("node*.err")))
        raise RuntimeError(f"no {pattern!r} within {LONGEST_SECONDS} s\n{messages}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="gloo ranks instead of GPUs")
    on_cpu = parser.parse_args().cpu
    if not on_cpu and gpu_count() < 2:
        print(f"two GPUs are needed, and here are {gpu_count()}")
        return 2
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        job = Job(place, on_cpu)
        nodes = [job.start(0), job.start(1)]
        try:
            job.wait_for(rf"iteration +{INTERVAL + 5}/")
            nodes[1].kill()
            since = time.monotonic()
            alone = int(job.wait_for(ALONE)[1])
            job.wait_for(rf"{ALONE}.*iteration +{alone + 1}/")
            print(f"one node goes on from iteration {alone}: {time.monotonic() - since:.1f} s from the loss to the next step")
            nodes[1].wait()
            nodes[1] = job.start(1)
            since = time.monotonic()
            together = int(job.wait_for(TOGETHER)[1])
            job.wait_for(rf"{TOGETHER}.*iteration +{together + 5}/")
            print(f"two nodes go on from iteration {together}: {time.monotonic() - since:.1f} s from the start of the second")
            nodes[0].send_signal(signal.SIGTERM)
            codes = [node.wait(timeout=60) for node in nodes]
        finally:
            for node in nodes:
                node.kill()
        print(f"SIGTERM to the first node: both end with {codes}")
        recorded = losses(job.save)
        last = max(step for _, step in recorded)
        by_hand = resharded(job, alone, job.ranks, ("--exit-interval", str(together)))
        by_hand |= resharded(job, together, 2 * job.ranks, ("--exit-interval", str(last)))
        expected = {key: loss for key, loss in recorded.items() if key[1] > alone}
        missing = expected.keys() - by_hand.keys()
        difference = max(abs(by_hand[key] - loss) for key, loss in expected.items() if key in by_hand)
        print(f"{len(expected)} losses beside runs resharded by hand: {len(missing)} missing, they differ by {difference:.1e}")
    return 0 if codes == [75, 75] and not missing and difference == 0 else 1


def resharded(job: Job, step: int, ranks: int, options: tuple[str, ...]) -> dict[tuple[str, int], float]:
    """The losses of a run on one node that goes on from the checkpoint of `step`."""
    place = job.save.parent / f"from-{step}"
    place.mkdir()
    checkpoint = checkpoint_layout.iteration_directory(job.save, step)
    shutil.copytree(checkpoint, place / checkpoint.name)
    command = [sys.executable, "-m", "lt_train", *MODEL, *job.where, *options, "--ranks", str(ranks), "--save", str(place)]
    variables = environment() | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=variables)
    if done.returncode not in (0, 75):
        raise RuntimeError(done.stderr.decode()[-3000:])
    return losses(place)


if __name__ == "__main__":
    sys.exit(main())
