"""Training with the loss fused with the output layer's GEMM on a CPU, where torch computes the GEMM.

`train` is what a test calls; as a program this file trains in several ways, one after the other.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from one_process import norms, prepare, start, train_each
from running import losses
from torch import Tensor

OPTIONS = (
    *("--mock-data", "--model", "tiny", "--num-layers", "1", "--hidden-size", "32", "--ffn-hidden-size", "64"),
    *("--num-attention-heads", "2", "--num-query-groups", "1", "--vocab-size", "128", "--seq-length", "8", "--lr", "1e-2"),
    *("--micro-batch-size", "1", "--global-batch-size", "2", "--train-iters", "2", "--log-interval", "1"),
    *("--eval-interval", "2", "--eval-iters", "1", "--device", "cpu", "--ranks", "1", "--kernels", "triton"),
    *("--swiglu-impl", "torch", "--cross-entropy-impl", "torch"),
)
FUSED = "fused"


def train(place: Path, runs: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[list[float], list[float], int]]:
    """The losses of each run's steps and evaluations, its gradients' norms, and how many GEMMs had the loss; each of `runs` is
    `FUSED` or "", and more options."""
    gemms = start(__file__, place, runs)
    return {name: (list(losses(place / name).values()), norms(place / name), gemms[name]) for name in runs}


def exponential_gemm(rows: Tensor, weight: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """In place of `kernels.gemm_epilogues.exponential_gemm`."""
    from lt_train.kernels.gemm_epilogues import LOG2E

    exponentials = torch.exp2((rows.float() @ weight.float().t()) * LOG2E - offsets[:, None])
    return exponentials.to(rows.dtype), exponentials.sum(1)


def main(folder: Path, runs: dict[str, list[str]]) -> None:
    rank = prepare()
    from lt_train.config import kernels
    from lt_train.ops import fused_linear_cross_entropy

    choose = kernels.choose
    gemms = dict.fromkeys(runs, 0)

    def before(name: str, way: str) -> None:
        def counting(*arguments: Tensor) -> tuple[Tensor, Tensor]:
            gemms[name] += 1
            return exponential_gemm(*arguments)

        fused = {"cross_entropy": "fused-linear"} if way == FUSED else {}
        kernels.choose = lambda *run: dataclasses.replace(choose(*run), **fused)
        fused_linear_cross_entropy.exponential_gemm = counting

    train_each(rank, folder, runs, OPTIONS, before)
    print(json.dumps(gemms))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
