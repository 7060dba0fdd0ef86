"""Losses of every layout that the GPUs at hand allow, beside those of one rank: `python tests/train/gpu_layouts.py`.

Not a part of the test session, which runs without a GPU. Prints a table and fails when a layout differs by more than the
tolerance.
"""

import sys
import tempfile
from pathlib import Path

import numpy
from running import losses, run

from lt_shared import indexed_dataset
from lt_train.device import gpu_count

MODEL = ("--model", "tiny", "--seq-length", "256", "--micro-batch-size", "2", "--global-batch-size", "16", "--device", "cuda")
STEPS = ("--train-iters", "20", "--save-interval", "10", "--log-interval", "1", "--eval-iters", "2", "--lr", "1e-3")
TENSOR = ("--tensor-model-parallel-size", "2")
PIPELINE = ("--pipeline-model-parallel-size", "2")
LAYOUTS = {
    "TP2": (2, TENSOR),
    "TP2, sequence parallel": (2, (*TENSOR, "--sequence-parallel")),
    "PP2": (2, PIPELINE),
    "DP2": (2, ()),
    "DP2, distributed optimizer": (2, ("--use-distributed-optimizer",)),
    "TP2 PP2, sequence parallel": (4, (*TENSOR, *PIPELINE, "--sequence-parallel")),
    "TP2 DP2, distributed optimizer": (4, (*TENSOR, "--use-distributed-optimizer")),
}
# fp32 sums in another order, amplified by 20 steps; bf16 rounds each layer's output to 8 bits.
TOLERANCES = {"fp32": 1e-4, "bf16": 2e-2}


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        prefix = write_text(Path(place) / "data")
        for precision in TOLERANCES:
            options = ("--bf16",) if precision == "bf16" else ()
            single = train(Path(place) / precision, prefix, 1, *options)
            print(f"{precision}: one rank, loss {single['step', 1]:.6f} to {single['step', 20]:.6f}", flush=True)
            for name, (ranks, layout) in LAYOUTS.items():
                if ranks > gpu_count():
                    print(f"  {name:32} not run: needs {ranks} GPUs")
                    continue
                directory = Path(place) / f"{precision}-{name}"
                found = train(directory, prefix, ranks, *options, *layout)
                difference = max(abs(found[key] - single[key]) for key in single)
                verdict = "ok" if difference <= TOLERANCES[precision] else "DIFFERS"
                failed += verdict != "ok"
                print(f"  {name:32} largest difference {difference:.1e}  {verdict}", flush=True)
    return min(failed, 1)


def write_text(prefix: Path) -> str:
    """Random tokens with a skewed distribution, which a model learns within a few steps."""
    generator = numpy.random.default_rng(5)
    with indexed_dataset.Writer(str(prefix), numpy.uint16) as writer:
        for _ in range(400):
            writer.append_document((generator.random(1000) ** 3 * 2048).astype(numpy.uint16))
        writer.publish()
    return str(prefix)


def train(directory: Path, prefix: str, ranks: int, *options: str) -> dict[tuple[str, int], float]:
    result = run(*MODEL, *STEPS, "--ranks", str(ranks), *options, "--save", str(directory), prefix)
    if result.code:
        sys.exit(f"exit code {result.code}: {' '.join(options)}\n{result.err[-3000:]}")
    return losses(directory)


if __name__ == "__main__":
    sys.exit(main())
