"""What copies of the state in memory cost on GPUs, and how fast a lost node is replaced from them.

    python tests/train/gpu_memory_copies.py                # two launchers with one GPU each and a spare, less than 150 s
    python tests/train/gpu_memory_copies.py --model llama3.2-3b --seconds 280
    python tests/train/gpu_memory_copies.py --cpu          # two gloo ranks each and a tiny model

Not a part of the test session, whose tests of the same (launch/test_spare_run.py) are on a CPU. Trains without copies, then with
copies and a spare launcher on the second GPU, and kills the second launcher, with which its rank dies. Prints mean step times,
the log's lines about the copies, the seconds from the death to the next step, and the largest difference of a loss. Ends with 1
if the run did not come back from the copies, or a loss differs by more than rounding.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from running import environment, losses

from lt_train.process.device import gpu_count
from lt_train.process.ports import free_port

COPIES = ("--max-restarts", "3", "--spare-nodes", "1", "--replicate-interval")
STEP = re.compile(r"iteration +(\d+)/.*?elapsed time per iteration \(ms\): ([\d.]+)")
TOLD = re.compile(r".*(?:is lost|going on from|loaded checkpoint|recovered in|copies in memory|error:|warning: a copy).*")
ROUNDING = 1e-3


class Job:
    """A run in `place` on `count` launchers, the last of them on the GPU of the one before."""

    def __init__(self, place: Path, count: int, options: list[str], on_cpu: bool, deadline: float):
        place.mkdir()
        self.place, self.deadline, port = place, deadline, str(free_port())
        self.nodes = []
        for node in range(count):
            variables = {"PET_NNODES": str(count), "PET_NODE_RANK": str(node)}
            variables |= {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port}
            variables |= {"OMP_NUM_THREADS": "1"} if on_cpu else {"CUDA_VISIBLE_DEVICES": str(min(node, 1))}
            with (place / f"node{node}").open("w") as messages:
                command = [sys.executable, "-m", "lt_train", *options, "--save", str(place / "run")]
                self.nodes.append(
                    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=messages, env=environment() | variables)
                )

    def log(self, node: int = 0) -> str:
        return (self.place / f"node{node}").read_text()

    def steps(self) -> list[tuple[int, float]]:
        return [(int(step), float(milliseconds)) for step, milliseconds in STEP.findall(self.log())]

    def wait_for_steps(self, count: int) -> float:
        """Wait until `count` lines of steps are in the log. Return the time."""
        while len(self.steps()) < count:
            if self.nodes[0].poll() is not None or time.monotonic() > self.deadline:
                raise RuntimeError(self.log()[-4000:])
            time.sleep(0.01)
        return time.monotonic()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--model", default="llama3.2-1b")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--interval", default="10", help="steps between copies, or auto")
    parser.add_argument("--seconds", type=float, default=145)
    arguments = parser.parse_args()
    if not arguments.cpu and gpu_count() < 2:
        print(f"two GPUs are needed, and here are {gpu_count()}")
        return 2
    deadline = time.monotonic() + arguments.seconds
    options = ["--mock-data", "--micro-batch-size", "1", "--log-interval", "1", "--eval-iters", "0", "--lr", "1e-4"]
    options += ["--train-iters", str(arguments.steps), "--save-interval", "100000", "--use-distributed-optimizer"]
    if arguments.cpu:
        options += [
            "--model",
            "tiny",
            "--seq-length",
            "64",
            "--device",
            "cpu",
            "--ranks",
            "2",
            "--global-batch-size",
            "4",
            "--bf16",
        ]
    else:
        options += ["--model", arguments.model, "--seq-length", "2048", "--device", "cuda", "--ranks", "1"]
        options += ["--global-batch-size", "4", "--bf16", "--deterministic"]
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        plain = Job(Path(directory, "plain"), 2, options, arguments.cpu, deadline)
        stack.callback(plain.kill)
        plain.wait_for_steps(arguments.steps)
        plain.kill()
        copied = Job(Path(directory, "copied"), 3, [*options, *COPIES, arguments.interval], arguments.cpu, deadline)
        stack.callback(copied.kill)
        half = arguments.steps // 2
        copied.wait_for_steps(half)
        before = copied.steps()
        copied.nodes[1].kill()
        killed = time.monotonic()
        while "going on from" not in copied.log() and time.monotonic() < deadline:
            time.sleep(0.005)
        seconds = copied.wait_for_steps(len(copied.steps()) + 1) - killed
        copied.wait_for_steps(len(before) + half)
        plain_ms, copied_ms = _mean(plain.steps()), _mean(before)
        print(f"a step without copies: {plain_ms:.1f} ms, with a copy every {arguments.interval}: {copied_ms:.1f} ms")
        print(f"from the death of a node to the next step: {seconds:.2f} s")
        expected, found = losses(Path(directory, "plain", "run")), losses(Path(directory, "copied", "run"))
        difference = max(abs(loss - expected[key]) for key, loss in found.items() if key in expected)
        print(f"losses of {len(found)} steps differ by at most {difference:.1e}")
        notes = TOLD.findall(copied.log())
        print(*(f"    {line.strip()}" for line in notes), sep="\n", flush=True)
        return 0 if any("from the nodes' memory" in line for line in notes) and difference <= ROUNDING else 1


def _mean(steps: list[tuple[int, float]]) -> float:
    """The mean milliseconds of the steps but for the first ones, which compile kernels."""
    return statistics.mean(milliseconds for step, milliseconds in steps if step > 5)


if __name__ == "__main__":
    sys.exit(main())
