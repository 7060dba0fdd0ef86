"""A kill campaign on both sides of `lt-preprocess --stream ... | lt-train ... -`: does the same pipe end in the same losses?

    python tests/hostile/campaigns/pipe.py               # 50 kills
    python tests/hostile/campaigns/pipe.py --runs 6 --seed 7

A pipe is started, something of it gets SIGKILL at a random moment, and the same pipe is started again in the same directory: the
producer, the trainer's launcher, one of its ranks, or all processes of both sides. After four such kills the pipe runs to its
end. The producer waits before each line, so that shards come while training is under way. What must hold:

- each side ends by itself, with 0, by the signal, or with one line of an error and the exit code for it, and leaves no process;
- where only the producer was killed, the trainer names the stream and asks to be started again (75), has no data yet (66), or
  has all that it needs;
- a checkpoint that was announced is there;
- the pipe that ends has every loss of an undisturbed pipe and the weights of its last checkpoint, bit for bit.

Ranks are copies of a process that has imported torch (tests/train/nursery.py). Prints how often what was killed and with which
codes both sides ended, and exits with 1 when something did not hold.
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "train"))

from fault_campaign import Broken, tensor_checksums
from running import SMALL, environment, losses, quick_command

from lt_shared.contracts import checkpoint_layout

DEMO = Path(__file__).parents[2] / "demo"
STEPS = 24
TRAINING = (
    *(*SMALL, "--train-iters", str(STEPS), "--save-interval", "4", "--keep-last", "2", "--lr", "1e-3", "--ranks", "2"),
    *("--eval-interval", "8", "--save", "run", "-"),
)
SHARD_TOKENS = 3_000
LINE_SECONDS = 0.3
# Where the kernels of the tokenizer are compiled already, it would be done before the trainer has begun.
PRODUCER = f"""
import time
from lt_shared.contracts import manifest
write = manifest.Writer.write
manifest.Writer.write = lambda *words: (time.sleep({LINE_SECONDS}), write(*words))
from lt_preprocess.cli import main
main()
"""
KILLS_OF_A_PIPE = 4
MOST_SECONDS = 300
VICTIMS = ("producer", "launcher", "rank", "both")
# No line has come, a rank that was killed, a connection to it, a lock that the killed one still has or a stream that has ended.
ORDERLY = (0, 66, 69, 74, 75, 137)
# The reader is gone, as the shell would say it, and a lock.
ORDERLY_PRODUCER = (0, 75, 141)


@dataclasses.dataclass(frozen=True)
class Ended:
    """Exit codes of both sides, -9 for SIGKILL, and what they have written; `killed` is None when nothing was."""

    killed: str | None
    producer: int
    trainer: int
    lines: str
    errors: str

    def __str__(self) -> str:
        return f"lt-preprocess ended with {self.producer}, lt-train with {self.trainer}"


class Pipe:
    """Both commands in a directory of their own, by which their processes are known."""

    def __init__(self, place: Path, corpus: Path, choose: random.Random):
        self.place = place
        self.choose = choose
        words = [str(corpus), "--tokenizer", str(DEMO / "tokenizer"), "--append-eod", "--workers", "1"]
        self.producer = [
            *(sys.executable, "-c", PRODUCER, *words, "--stream", "--max-shard-size", str(2 * SHARD_TOKENS), "-o", "data"),
        ]
        self.trainer = quick_command(*TRAINING)

    def run(self, victim: str | None = None, after_seconds: float = 0) -> Ended:
        with contextlib.ExitStack() as stack:
            out, trainer_errors, producer_errors = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3))
            common = {"cwd": self.place, "env": environment(), "start_new_session": True}
            producer = subprocess.Popen(self.producer, stdout=subprocess.PIPE, stderr=producer_errors, **common)  # type: ignore[call-overload]
            trainer = subprocess.Popen(self.trainer, stdin=producer.stdout, stdout=out, stderr=trainer_errors, **common)  # type: ignore[call-overload]
            producer.stdout.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                trainer.wait(after_seconds if victim else MOST_SECONDS)
            killed = self.kill(victim, producer, trainer) if victim and trainer.poll() is None else None
            self.await_the_end(producer, trainer)
            for file in (out, trainer_errors, producer_errors):
                file.seek(0)
            errors = producer_errors.read() + trainer_errors.read()
            return Ended(killed, producer.returncode, trainer.returncode, out.read(), errors)

    def kill(self, victim: str, producer: "subprocess.Popen[bytes]", trainer: "subprocess.Popen[bytes]") -> str:
        """Returns what was killed: the launcher where there is no rank yet."""
        ranks = [process for process in self.session_leaders() if process not in (producer.pid, trainer.pid)]
        if victim == "rank" and not ranks:
            victim = "launcher"
        if victim == "rank":
            victims = [self.choose.choice(ranks)]
        elif victim == "both":
            victims = self.processes()
        else:
            victims = [producer.pid if victim == "producer" else trainer.pid]
        for process in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return victim

    def await_the_end(self, producer: "subprocess.Popen[bytes]", trainer: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + MOST_SECONDS
        while producer.poll() is None or trainer.poll() is None or self.processes():
            if time.monotonic() > deadline:
                left = self.processes()
                for process in left:
                    os.kill(process, signal.SIGKILL)
                raise Broken(f"it does not end: {len(left)} processes, codes {producer.poll()} and {trainer.poll()}")
            time.sleep(0.1)

    def processes(self) -> list[int]:
        """Those that work in the directory."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(path / "cwd") == str(self.place) and "Z" not in (path / "stat").read_text().rpartition(")")[2][:3]:
                    found.append(int(path.name))
        return found

    def session_leaders(self) -> Iterator[int]:
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(process) == process:
                    yield process

    def result(self) -> dict[str, object]:
        """Exact losses, and the checksums of the last checkpoint's tensors."""
        return {
            "losses": losses(self.place / "run"),
            "state": tensor_checksums(checkpoint_layout.iteration_directory(self.place / "run", STEPS)),
        }


class Campaign:
    def __init__(self, directory: Path, seed: int):
        self.directory = directory
        self.choose = random.Random(seed)
        self.corpus = directory / "corpus.jsonl"
        texts = [f"document {number} says {number * 7919 % 1000} " * self.choose.randrange(1, 12) for number in range(450)]
        self.corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        self.happened: collections.Counter[str] = collections.Counter()

    def new_pipe(self, name: str) -> Pipe:
        place = self.directory / name
        place.mkdir()
        return Pipe(place, self.corpus, self.choose)

    @functools.cached_property
    def undisturbed(self) -> tuple[float, dict[str, object]]:
        """Seconds and result."""
        pipe, begin = self.new_pipe("undisturbed"), time.monotonic()
        done = pipe.run()
        # The trainer may have all that it needs before the producer has written its last line.
        if done.trainer != 0 or done.producer not in (0, 141):
            raise SystemExit(f"undisturbed, {done}: {done.errors}")
        return time.monotonic() - begin, pipe.result()

    def disturb(self, number: int, kills: int) -> int:
        """Kill one pipe up to so many times; returns how often it was killed."""
        seconds, expected = self.undisturbed
        pipe = self.new_pipe(f"pipe{number}")
        killed, announced = 0, 0
        while killed < kills:
            victim = VICTIMS[sum(self.happened.values()) % len(VICTIMS)]
            done = pipe.run(victim, self.choose.uniform(0, 0.9) * seconds)
            announced = self.check(pipe, done, announced)
            if done.killed is None:
                break
            killed += 1
            self.happened[f"{done.killed}: {done}"] += 1
        done = pipe.run()
        self.check(pipe, done, announced)
        if done.trainer != 0 or done.producer not in (0, 141):
            raise Broken(f"again, {done}: {done.errors[-3000:]}")
        found = pipe.result()
        for name in expected:
            if found[name] != expected[name]:
                raise Broken(f"another {name}: {_difference(expected[name], found[name])}")
        shutil.rmtree(pipe.place)
        return killed

    def check(self, pipe: Pipe, done: Ended, announced: int) -> int:
        """Returns the newest checkpoint that any lt-train has announced."""
        what = f"{done.killed} killed, {done}: {done.errors[-3000:]}"
        if done.producer not in (*ORDERLY_PRODUCER, -9) or done.trainer not in (*ORDERLY, -9):
            raise Broken(what)
        if "internal error" in done.errors or "Traceback" in done.errors:
            raise Broken(what)
        if done.killed == "producer" and done.trainer not in (0, 66, 75):
            raise Broken(what)
        if done.trainer == 0 and f"iteration {STEPS:8}/{STEPS:8}" not in done.errors and "up to date" not in done.errors:
            raise Broken(f"not all steps: {what}")
        if done.trainer == 66 and "standard input: the manifest is empty" not in done.errors:
            raise Broken(what)
        if done.trainer > 0 and "error: " not in done.errors and "ended by" not in done.errors:
            raise Broken(f"no reason: {what}")
        newest = max([announced, *map(int, re.findall(r'"kind":"checkpoint".*?"iteration":(\d+)', done.lines))])
        kept = (pipe.place / "run").glob("iter_*")
        whole = [int(path.name[5:]) for path in kept if checkpoint_layout.damage(path) is None]
        if newest > max(whole, default=0):
            raise Broken(f"checkpoint {newest} was announced, {max(whole, default=0)} is the newest: {what}")
        return newest


def _difference(wanted: object, found: object) -> str:
    assert isinstance(wanted, dict) and isinstance(found, dict)
    differing = [name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)]
    return ", ".join(f"{name} is {found.get(name)}, expected {wanted.get(name)}" for name in differing[:5])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50, metavar="N", help="how many kills")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random moments")
    chosen = parser.parse_args()
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="lt-campaign-") as folder:
        campaign = Campaign(Path(folder).resolve(), chosen.seed)
        killed, number = 0, 0
        while killed < chosen.runs and len(broken) < chosen.runs:
            number += 1
            try:
                killed += campaign.disturb(number, min(KILLS_OF_A_PIPE, chosen.runs - killed))
            except Broken as error:
                broken.append(str(error))
                print(f"BROKEN {error}", file=sys.stderr, flush=True)
                killed = sum(campaign.happened.values())
    for kind, count in sorted(campaign.happened.items()):
        print(f"{count:6d}  {kind}")
    print(f"{campaign.happened.total()} kills of {number} pipes, {len(broken)} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
