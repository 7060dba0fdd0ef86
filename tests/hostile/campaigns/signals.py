"""Two signals at random moments: every tool ends with the documented exit code, and without a traceback.

    python tests/hostile/campaigns/signals.py                       # 50 tries of each tool
    python tests/hostile/campaigns/signals.py --runs 20 train       # 20 tries of lt-train
    python tests/hostile/campaigns/signals.py --seed 7

Each try starts a command in a process group of its own and sends SIGINT or SIGTERM to the group twice, the first time at a random
moment of the time that the undisturbed command takes, the second time up to a second later. The command must end within two
minutes: with its own code if it was quicker, with 130 for SIGINT, with 143 for SIGTERM or killed by a signal; lt-train also with
75, after it has saved. Nothing may be left running in the group, and stderr must have no traceback.

Prints a line for each tool with how often each exit code came, and exits with 1 when something did not hold.
"""

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "train")]

from convert_models import write_model  # noqa: E402

TOKENIZER = Path(__file__).parents[2] / "demo" / "tokenizer"
LIMIT_SECONDS = 120
# Before that moment Python itself starts, and Ctrl-C prints its traceback.
EARLIEST_SECONDS = 0.2
SMALL = (
    "--model tiny --num-layers 1 --hidden-size 32 --ffn-hidden-size 64 --seq-length 32 --micro-batch-size 2 --lr 1e-3"
    " --device cpu --ranks 1 --log-interval 1 --eval-iters 1 --mock-data --train-iters 30 --save-interval 10"
)
COMMANDS = {
    "preprocess": "a.jsonl --tokenizer tokenizer --workers 2 -o {out}",
    "convert": "model --to torchtitan -o {out}",
    "train": f"{SMALL} --save {{out}}",
    "monitor": "plot -o {out}.html run.log",
}
BY_SIGNAL = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Tries:
    def __init__(self, folder: Path, seed: int):
        self.folder, self.random, self.number = folder, random.Random(seed), 0
        (folder / "tokenizer").symlink_to(TOKENIZER)
        write_model(folder / "model")
        lines = [json.dumps({"text": f"document {number} with some text " * 9}) for number in range(3000)]
        (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
        steps = [json.dumps({"v": 1, "kind": "step", "step": number, "loss": 2.5}) for number in range(1, 400)]
        (folder / "run.log").write_text("\n".join(steps) + "\n")
        self.codes: collections.defaultdict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
        self.seconds: dict[str, float] = {}

    def start(self, tool: str) -> subprocess.Popen[str]:
        self.number += 1
        program = Path(sysconfig.get_path("scripts")) / f"lt-{tool}"
        words = COMMANDS[tool].format(out=f"out{self.number}").split()
        return subprocess.Popen(
            [program, *words], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def undisturbed_seconds(self, tool: str) -> float:
        if tool not in self.seconds:
            begin = time.monotonic()
            _, errors = (process := self.start(tool)).communicate()
            if process.returncode:
                raise SystemExit(f"lt-{tool} ends with {process.returncode}: {errors}")
            self.seconds[tool] = time.monotonic() - begin
        return self.seconds[tool]

    def run(self, tool: str) -> str | None:
        """Return what did not hold, or None."""
        moment = self.random.uniform(EARLIEST_SECONDS, self.undisturbed_seconds(tool))
        pause = self.random.choice([0.0, self.random.uniform(0, 0.05), self.random.uniform(0, 1)])
        signals = [self.random.choice([signal.SIGINT, signal.SIGTERM]) for _ in range(2)]
        process = self.start(tool)
        time.sleep(moment)
        for number in signals:
            if process.poll() is None:
                os.killpg(process.pid, number)
            time.sleep(pause)
        what = f"lt-{tool}: {signals[0].name} after {moment:.2f} s, {signals[1].name} {pause:.2f} s later"
        try:
            _, errors = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"{what}: runs on for {LIMIT_SECONDS} s: {process.communicate()[1][-1500:]}"
        code = process.returncode
        self.codes[tool][code] += 1
        of_signals = {*(-number for number in signals), *(BY_SIGNAL[number] for number in signals)}
        allowed = {0, 75} | of_signals if tool == "train" else {0} | of_signals
        if code not in allowed:
            return f"{what}: ended with {code}: {errors[-1500:]}"
        if "Traceback" in errors or "internal error" in errors:
            return f"{what}: {errors[-2500:]}"
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return None
        time.sleep(1)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return f"{what}: left a process behind"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=f"of: {', '.join(COMMANDS)}; by default all")
    parser.add_argument("--runs", type=int, default=50, help="tries of each tool")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    problems = 0
    with tempfile.TemporaryDirectory(prefix="lt-campaign-") as folder:
        tries = Tries(Path(folder), options.seed)
        for tool in options.tools or COMMANDS:
            for _ in range(options.runs):
                if problem := tries.run(tool):
                    problems += 1
                    print(problem, flush=True)
    for tool, codes in tries.codes.items():
        shown = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
        print(f"{codes.total():6d} tries  lt-{tool}  {shown}")
    print(f"{sum(codes.total() for codes in tries.codes.values())} tries, {problems} broken")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
