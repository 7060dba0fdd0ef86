"""Whether the best learning rate stays where it is when the model becomes wider: with muP it must, without it falls.

    nox -s bench -- width-transfer

A Llama of two layers is trained over the demo corpus in three widths with each rate of a grid, with --use-mup and without. The
base width has the same runs in both cases. Prints the validation losses, and how many steps of the grid the best rate has moved
from the base width to the largest. Exit code 1 if muP's has moved by more than one step, or by no less than without muP.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BINARIES = Path(sys.executable).parent
WIDTHS = (32, 64, 128)
RATES = (0.004, 0.008, 0.016, 0.032, 0.064)
HEAD_SIZE = 16
STEPS = 100
TRAINING = (
    *("--model", "tiny", "--num-layers", "2", "--init-method-std", "0.1", "--kv-channels", str(HEAD_SIZE), "--seq-length", "64"),
    *("--micro-batch-size", "16", "--global-batch-size", "16", "--train-iters", str(STEPS), "--lr-warmup-iters", "10"),
    *("--weight-decay", "0", "--split", "95,5,0", "--eval-iters", "8", "--device", "cpu", "--ranks", "1"),
)
MUP = ("--use-mup", "--mup-base-hidden-size", str(WIDTHS[0]), "--mup-base-head-dim", str(HEAD_SIZE))


def commands(widths: tuple[int, ...], options: tuple[str, ...], data: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return a command line of lt-train for each width and rate."""
    lines = {}
    for width in widths:
        heads = str(width // HEAD_SIZE)
        sizes = ("--hidden-size", str(width), "--ffn-hidden-size", str(3 * width))
        sizes += ("--num-attention-heads", heads, "--num-query-groups", heads)
        lines |= {f"{width}-{rate}": (*TRAINING, *sizes, "--lr", str(rate), *options, *data) for rate in RATES}
    return lines


def sweep(widths: tuple[int, ...], options: tuple[str, ...], data: tuple[str, ...], place: Path) -> list[int]:
    """Train all widths and rates in one process, print the losses, and return the position of the best rate of each width."""
    sys.path.insert(0, str(REPOSITORY / "tests/train"))
    from layouts import train_all

    outcomes = train_all(commands(widths, options, data), place, 1)
    best = []
    for width in widths:
        losses = {rate: outcomes[f"{width}-{rate}"].losses["eval", STEPS] for rate in RATES}
        best.append(min(range(len(RATES)), key=lambda position: losses[RATES[position]]))
        print(f"{width:5} {'muP' if options else '   '} {_row(losses)}", flush=True)
    return best


def _row(losses: Mapping[float, float]) -> str:
    least = min(losses.values())
    return " ".join(f"{loss:8.3f}{'*' if loss == least else ' '}" for loss in losses.values())


def main() -> int:
    os.environ["PATH"] = f"{BINARIES}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        corpus = [REPOSITORY / "tests/demo/corpus.jsonl.zst", "--tokenizer", REPOSITORY / "tests/demo/tokenizer", "--append-eod"]
        subprocess.run([BINARIES / "lt-preprocess", *corpus, "-o", work / "data"], check=True, stdout=subprocess.DEVNULL)
        data = ("--data-cache-path", str(work / "cache"), str(work / "data_text_document"))
        print(f"width     {' '.join(f'{rate:8} ' for rate in RATES)} validation loss by learning rate, * the least", flush=True)
        plain = sweep(WIDTHS, (), data, work / "plain")
        scaled = sweep(WIDTHS[1:], MUP, data, work / "mup")
    moves = {"without": plain[-1] - plain[0], "with": scaled[-1] - plain[0]}
    for name, steps in moves.items():
        print(f"{name} muP, the best rate moves by {steps} steps of the grid from width {WIDTHS[0]} to {WIDTHS[-1]}")
    return 0 if abs(moves["with"]) <= 1 and abs(moves["with"]) < abs(moves["without"]) else 1


if __name__ == "__main__":
    sys.exit(main())
