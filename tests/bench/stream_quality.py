"""What it costs that a stream is shuffled within windows alone: the validation loss on text that is shuffled as a whole, and not.

    nox -s bench -- stream-quality

The corpus is made a dataset, and a stream of 14 shards of 40,000 tokens; both train on the same 410,000 tokens or fewer of it, in
less than an epoch, and are evaluated on the same documents, which neither trains on. The window is a shard (the default), or
four. The demo corpus is in an order of its own (see tests/demo): that is what a window leaves in place.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import zstandard

REPOSITORY = Path(__file__).resolve().parents[2]
BINARIES = Path(sys.executable).parent
SEEDS = (1, 2, 3)
TRAINING = (
    *("--model", "tiny", "--device", "cpu", "--seq-length", "128", "--micro-batch-size", "16", "--global-batch-size", "16"),
    *("--train-iters", "200", "--lr", "4e-3", "--lr-warmup-iters", "20", "--eval-iters", "8"),
)
EVERY = 20


def tokenize(work: Path, name: str, *options: str) -> str:
    command = [BINARIES / "lt-preprocess", work / f"{name}.jsonl", "--tokenizer", REPOSITORY / "tests/demo/tokenizer"]
    output = work / "".join((name, *options[:1]))
    done = subprocess.run([*command, "--append-eod", "-o", output, *options], check=True, capture_output=True, text=True)
    (work / f"{name}.list").write_text(done.stdout)
    return json.loads(done.stdout.splitlines()[0])["prefix"] if not options else f"@{work / f'{name}.list'}"


def validation_loss(work: Path, run: str, seed: int, *options: str) -> float:
    command = [BINARIES / "lt-train", *TRAINING, "--seed", str(seed), "--save", work / f"{run}-{seed}", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"lt-train ended with exit code {done.returncode}:\n" + "\n".join(done.stderr.splitlines()[-3:]))
    records = [json.loads(line) for line in (work / f"{run}-{seed}" / "metrics.jsonl").read_text().splitlines()]
    return float([record["loss"] for record in records if record["kind"] == "eval"][-1])


def main() -> int:
    os.environ["PATH"] = f"{BINARIES}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        with zstandard.open(REPOSITORY / "tests/demo/corpus.jsonl.zst", "rt", encoding="utf-8") as corpus:
            lines = list(corpus)
        (work / "training.jsonl").write_text("".join(line for number, line in enumerate(lines) if number % EVERY))
        (work / "validation.jsonl").write_text("".join(lines[::EVERY]))
        whole, validation = tokenize(work, "training"), tokenize(work, "validation")
        stream = tokenize(work, "training", "--stream", "--max-shard-size", "80k")
        ways = {
            "shuffled as a whole": (whole,),
            "stream, window of a shard": (stream,),
            "stream, window of 4 shards": (stream, "--shuffle-window", "150000"),
        }
        print(f"{'':28}" + "".join(f"  seed {seed}" for seed in SEEDS) + "    mean")
        for name, (data, *options) in ways.items():
            common = ("--train-data-path", data, "--valid-data-path", validation, *options)
            losses = [validation_loss(work, name.replace(" ", "-"), seed, *common) for seed in SEEDS]
            print(f"{name:28}" + "".join(f"{loss:8.4f}" for loss in losses) + f"{statistics.fmean(losses):8.4f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
