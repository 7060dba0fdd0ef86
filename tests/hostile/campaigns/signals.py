"""Two signals at random moments: every command ends with the documented exit code, without a traceback, and completes again.

    python tests/hostile/campaigns/signals.py                       # 50 tries of each tool
    python tests/hostile/campaigns/signals.py --runs 20 train       # 20 tries of lt-train
    python tests/hostile/campaigns/signals.py --seed 7 --command merge

Each try starts a command in a directory and a process group of its own and sends SIGINT or SIGTERM to the group twice, the first
time at a random moment of the time that the undisturbed command takes, the second time up to a second later. The command must end
within two minutes: with the code of the undisturbed command if it was quicker, with 130 for SIGINT, with 143 for SIGTERM or
killed by a signal; lt-train also with 75, after it has saved. Nothing may be left running in the group, and stderr must have no
traceback. An output with a final name must equal the undisturbed output. The same command, undisturbed in the same directory,
must then make the same outputs, and leave nothing hidden.

The tries take the commands of a tool in turn. Prints a line for each command with how often each exit code came, and exits with 1
when something did not hold.
"""

import argparse
import collections
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "train")]

from convert_models import write_model  # noqa: E402
from fault_campaign import Broken, tensor_checksums  # noqa: E402

TOKENIZER = Path(__file__).parents[2] / "demo" / "tokenizer"
LIMIT_SECONDS = 120
# Before that moment Python itself starts, and Ctrl-C prints its traceback.
EARLIEST_SECONDS = 0.2
SMALL = (
    "--model tiny --num-layers 1 --hidden-size 32 --ffn-hidden-size 64 --seq-length 32 --micro-batch-size 2 --lr 1e-3"
    " --device cpu --ranks 1 --log-interval 1 --eval-iters 1"
)
TRAIN = f"{SMALL} --train-iters 12 --save-interval 4"
COMMANDS = {
    "preprocess": (
        "a.jsonl --tokenizer tokenizer --workers 2 -o out",
        "a.jsonl --tokenizer tokenizer --workers 1 --stream --max-shard-size 20kB -o out",
        "cat data_text_document --tokenizer tokenizer",
        "dedup a.jsonl -o out",
        "grep number data_text_document",
        "import ids.npy --dtype uint16 --eod-token 0 -o out_text_document",
        "info data_text_document",
        "merge data_text_document data_title_document -o out_text_document",
        "pack data_text_document --seq-length 64 -o out_text_document",
        "shuffle data_text_document -o out_text_document",
        "split data_text_document --ratios 1,1 --names a,b -o out",
        "verify data_text_document --deep 50",
    ),
    "convert": (
        "model --to torchtitan -o out",
        "model --to megatron-dist -o out",
        "merge model other --to hf -o out",
        "extract other --base model --rank 2 -o out",
        "follow runs --once --to hf -o out",
        "inspect model",
        "verify titan model",
    ),
    "train": (
        f"{TRAIN} --save out data_text_document",
        f"{TRAIN} --ranks 2 --save out data_text_document",
        f"{TRAIN} --tokenizer tokenizer --save out a.jsonl",
        "plan --model llama3-8b --gpu h100-80gb --nodes 2 --global-batch-size 64",
        "import pretrain.sh",
        f"preflight {TRAIN} --save out data_text_document",
        "render slurm --nodes 2 --gpus-per-node 8 --model tiny --train-iters 4 --save out data_text_document",
        "bench --model tiny --num-layers 1 --hidden-size 32 --ffn-hidden-size 64 --seq-length 32 --device cpu --ranks 1",
        "replay runs --steps 2:3",
        "score runs --step 3",
        "models",
    ),
    "monitor": (
        "alert --state out.state run.log",
        "blame runs --step 3",
        "dashboard",
        "diff run.log run.log",
        "export -o out run.log",
        "goodput run.log",
        "plot -o out.html run.log",
        "plot -o out.png run.log",
        "prom -o out.prom run.log",
        "rules",
        "runs run.log runs/train.log",
        "scrape --state out.state run.log",
        "slurm jobs.json",
        "stuck stacks",
        "summarize run.log",
        "tail-cause run.log",
    ),
}  # fmt: skip
BY_SIGNAL = {signal.SIGINT: 130, signal.SIGTERM: 143}
# Their content has the time, inodes or the process.
UNLIKE = re.compile(r"lt-convert\.json|.*\.state|\.lock|events\.out.*|\.(idx-)?cache|.*\.png|.*\.html|.*\.prom")


class Tries:
    def __init__(self, folder: Path, seed: int, tools: set[str]):
        self.folder, self.random = folder, random.Random(seed)
        self.inputs = folder / "inputs"
        self.inputs.mkdir()
        (self.inputs / "tokenizer").symlink_to(TOKENIZER)
        write_model(self.inputs / "model")
        write_model(self.inputs / "other", seed=1)
        lines = [
            json.dumps({"text": f"document {number} with some text " * 9, "title": f"number {number}"}) for number in range(3000)
        ]
        (self.inputs / "a.jsonl").write_text("\n".join(lines) + "\n")
        steps = [json.dumps({"v": 1, "kind": "step", "step": number, "loss": 2.5}) for number in range(1, 4000)]
        (self.inputs / "run.log").write_text("\n".join(steps) + "\n")
        job = {"name": "train", "job_state": ["RUNNING"], "nodes": "n[1-4]"}
        (self.inputs / "jobs.json").write_text(json.dumps({"jobs": [{"job_id": number} | job for number in range(500)]}))
        (self.inputs / "pretrain.sh").write_text(
            "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 64"
            " --max-position-embeddings 64 --micro-batch-size 1 --train-iters 5 --lr 1e-3 --mock-data"
            " --tokenizer-type NullTokenizer --vocab-size 100\n"
        )
        stack = '  File "/a/b.py", line 3 in f\n' * 3
        (self.inputs / "stacks").mkdir()
        (self.inputs / "stacks/stacks_rank_0.txt").write_text(f"Thread 0x1 (most recent call first):\n{stack}")
        self.write_arrays()
        self.prepare("preprocess", "a.jsonl --tokenizer tokenizer --json-keys text --json-keys title --append-eod -o data")
        if tools & {"train", "convert", "monitor"}:
            run = f"{SMALL} --train-iters 4 --save-interval 2 --save runs data_text_document"
            self.prepare("train", run)
        if "convert" in tools:
            self.prepare("convert", "model --to torchtitan -o titan")
        self.codes: collections.defaultdict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
        self.undisturbed: dict[str, tuple[float, int, dict[str, object]]] = {}

    def write_arrays(self) -> None:
        import numpy

        (numpy.arange(100_000) % 200).astype(numpy.uint16).tofile(self.inputs / "ids.npy")

    def prepare(self, tool: str, words: str) -> None:
        _, errors = (process := self.start(self.inputs, tool, words)).communicate()
        if process.returncode:
            raise SystemExit(f"lt-{tool} {words} ends with {process.returncode}: {errors}")

    def start(self, place: Path, tool: str, words: str) -> subprocess.Popen[str]:
        program = Path(sysconfig.get_path("scripts")) / f"lt-{tool}"
        return subprocess.Popen(
            [program, *words.split()], cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def new_place(self) -> Path:
        """Create the directory anew, always at the same path, because records have paths."""
        place = self.folder / "place"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.inputs, place, symlinks=True)
        return place

    def result(self, place: Path) -> dict[str, object]:
        """The content of each output by name. A checkpoint's tensors stand for its files."""
        if (place / "out" / "metrics.jsonl").exists():
            last = max((place / "out").glob("iter_*"))
            losses = [json.loads(line) for line in (place / "out/metrics.jsonl").read_text().splitlines()]
            by_step = {record["step"]: record["loss"] for record in losses if record.get("kind") == "step"}
            return {"losses": by_step, "tensors": tensor_checksums(last)}
        inputs = {path.name for path in self.inputs.iterdir()}
        paths = [path for path in sorted(place.rglob("*")) if path.relative_to(place).parts[0] not in inputs]
        return {
            str(path.relative_to(place)): b"" if UNLIKE.fullmatch(path.name) else path.read_bytes()
            for path in paths
            if path.is_file()
        }

    def measure(self, tool: str, words: str) -> tuple[float, int, dict[str, object]]:
        """Run the command undisturbed. Return its seconds, its exit code and its result."""
        if words not in self.undisturbed:
            place = self.new_place()
            begin = time.monotonic()
            process = self.start(place, tool, words)
            _, errors = process.communicate(timeout=LIMIT_SECONDS)
            if process.returncode not in (0, 1):
                raise SystemExit(f"lt-{tool} {words} ends with {process.returncode}: {errors}")
            self.undisturbed[words] = (time.monotonic() - begin, process.returncode, self.result(place))
        return self.undisturbed[words]

    def run(self, tool: str, words: str) -> None:
        """Disturb the command, and run it again. Raises Broken."""
        seconds, code, result = self.measure(tool, words)
        moment = self.random.uniform(min(EARLIEST_SECONDS, seconds / 2), seconds)
        pause = self.random.choice([0.0, self.random.uniform(0, 0.05), self.random.uniform(0, 1)])
        signals = [self.random.choice([signal.SIGINT, signal.SIGTERM]) for _ in range(2)]
        place = self.new_place()
        process = self.start(place, tool, words)
        time.sleep(moment)
        for number in signals:
            if process.poll() is None:
                os.killpg(process.pid, number)
            time.sleep(pause)
        what = f"lt-{tool} {words}: {signals[0].name} after {moment:.2f} s, {signals[1].name} {pause:.2f} s later"
        self.check_end(process, what, {code} | ({75} if tool == "train" else set()), signals)
        self.codes[f"lt-{tool} {words.split()[0]}"][process.returncode] += 1
        if tool != "train" and (
            wrong := [name for name, content in self.result(place).items() if is_half(name, content, result)]
        ):
            raise Broken(f"{what}: ended with {process.returncode} and other outputs than undisturbed: {', '.join(wrong)}")
        again = self.start(place, tool, words)
        _, errors = again.communicate(timeout=LIMIT_SECONDS)
        if again.returncode != code:
            raise Broken(f"{what}: again: ended with {again.returncode}: {errors[-1500:]}")
        completed = self.result(place)
        if wrong := [name for name in completed.keys() | result.keys() if completed.get(name) != result.get(name)]:
            raise Broken(f"{what}: again: other outputs: {', '.join(sorted(wrong))}")

    def check_end(self, process: subprocess.Popen[str], what: str, orderly: set[int], signals: list[signal.Signals]) -> None:
        try:
            _, errors = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise Broken(f"{what}: runs on for {LIMIT_SECONDS} s: {process.communicate()[1][-1500:]}") from None
        if process.returncode not in orderly | {*(-number for number in signals), *(BY_SIGNAL[number] for number in signals)}:
            raise Broken(f"{what}: ended with {process.returncode}: {errors[-1500:]}")
        if "Traceback" in errors or "internal error" in errors:
            raise Broken(f"{what}: {errors[-2500:]}")
        for seconds in (0, 1):
            time.sleep(seconds)
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                return
        os.killpg(process.pid, signal.SIGKILL)
        raise Broken(f"{what}: left a process behind")


def is_half(name: str, content: object, result: dict[str, object]) -> bool:
    """Whether the output has a name that a complete output has, and another content."""
    return not any(part.startswith(".") for part in Path(name).parts) and content != result.get(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=f"of: {', '.join(COMMANDS)}; by default all")
    parser.add_argument("--runs", type=int, default=50, help="tries of each tool")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", default="", help="only commands that have this in their words")
    options = parser.parse_args()
    problems = 0
    with tempfile.TemporaryDirectory(prefix="lt-campaign-") as folder:
        tools = options.tools or list(COMMANDS)
        tries = Tries(Path(folder).resolve(), options.seed, set(tools))
        for tool in tools:
            commands = [words for words in COMMANDS[tool] if options.command in words]
            for number in range(options.runs if commands else 0):
                try:
                    tries.run(tool, commands[number % len(commands)])
                except Broken as error:
                    problems += 1
                    print(error, flush=True)
    for command, codes in tries.codes.items():
        shown = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
        print(f"{codes.total():6d} tries  {command}  {shown}")
    print(f"{sum(codes.total() for codes in tries.codes.values())} tries, {problems} broken")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
