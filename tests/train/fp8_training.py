"""Training in fp8 on a CPU, which lt-train refuses: torch has the GEMMs there, Triton's interpreter the kernels.

`train` is what a test calls; as a program this file trains in several ways, one after the other.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from one_process import norms, prepare, start, train_each
from running import losses

LAYERS, ITERATIONS, MICRO_BATCHES = 1, 2, 2
OPTIONS = (
    *("--mock-data", "--model", "tiny", "--num-layers", str(LAYERS), "--hidden-size", "32", "--ffn-hidden-size", "64"),
    *("--num-attention-heads", "2", "--num-query-groups", "1", "--vocab-size", "96", "--seq-length", "8", "--lr", "1e-2"),
    *("--micro-batch-size", "1", "--global-batch-size", str(MICRO_BATCHES), "--train-iters", str(ITERATIONS)),
    *("--log-interval", "1", "--eval-iters", "0", "--device", "cpu", "--ranks", "1"),
)
# The interpreter takes longest for the loss, which is in 16 bits anyway.
BY_KERNELS = ("--bf16", "--fp8-format", "hybrid", "--kernels", "triton", "--cross-entropy-impl", "torch")
# Ways: no kernel computes an amax; no GEMM writes into a gradient's buffer; what torch compiles runs as it stands.
READING, ADDING, UNCOMPILED = "reading", "adding", "uncompiled"


@dataclasses.dataclass(frozen=True)
class Found:
    """Losses and gradient norms of the steps, and how many tensors were read for their amax, cast to their transpose
    alone, and recomputed with SwiGLU's gradient."""

    losses: list[float]
    norms: list[float]
    read: int
    cast_transpose: int
    recomputed: int


def train(place: Path, runs: Mapping[str, tuple[str, ...]]) -> dict[str, Found]:
    """Each of `runs` is a way, or "", and more options."""
    counts = start(__file__, place, runs)
    return {name: Found(list(losses(place / name).values()), norms(place / name), *counts[name]) for name in runs}


def main(directory: Path, runs: dict[str, list[str]]) -> None:
    rank = prepare()
    import torch

    from lt_train.kernels import amax_reduction, swiglu
    from lt_train.models import transformer_config
    from lt_train.ops.fp8_casts import TritonCasts

    enable, accumulates = amax_reduction.enable, transformer_config.accumulates_in_gemms
    counted = ((amax_reduction, "compute_parts"), (TritonCasts, "cast_transpose"), (swiglu, "gradient_and_transpose"))
    plain = [getattr(owner, name) for owner, name in counted]
    counts = {name: [0] * len(counted) for name in runs}

    def before(name: str, way: str) -> None:
        for number, (owner, function) in enumerate(counted):
            setattr(owner, function, counting(plain[number], counts[name], number))
        torch.compiler.set_stance("force_eager" if way == UNCOMPILED else "default")
        amax_reduction.enable = (lambda wanted: enable(False)) if way == READING else enable
        transformer_config.accumulates_in_gemms = (lambda *settings: False) if way == ADDING else accumulates

    train_each(rank, directory, runs, OPTIONS, before)
    print(json.dumps(counts))


def counting(function: Callable[..., Any], counts: list[int], number: int) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        counts[number] += 1
        return function(*arguments)

    return counted


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
