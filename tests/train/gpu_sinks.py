"""gpt-oss's attention and model on a GPU beside the formula on a CPU: `python tests/train/gpu_sinks.py`.

Not a part of the test session, which runs without a GPU. First attention alone, by FlexAttention and by flash-attn-4 (where it is
installed), with and without a window: outputs and the gradients of queries, keys, values and sinks, in bfloat16 beside float64.
Then the tiny model, trained some steps by each choice of kernels that lt-train allows, beside the same run in float32 on a CPU.
Prints a table; fails when a difference is above its tolerance.
"""

import itertools
import sys
import tempfile
from pathlib import Path

import torch
from layouts import train_all
from shared_sequences import config
from torch import Tensor

from lt_train.config.optional_packages import FLASH_ATTENTION
from lt_train.models.mixers.core_attention import CausalAttention, document_numbers
from lt_train.models.mixers.flash_attention import FlashAttention

SEQUENCE, BATCH, HEADS, GROUPS, SIZE = 512, 2, 8, 2, 64
ONE = torch.tensor([[0, SEQUENCE]] * BATCH, dtype=torch.int32)
DOCUMENTS = torch.tensor([[0, 200, 400, SEQUENCE, SEQUENCE], [0, 300, SEQUENCE, SEQUENCE, SEQUENCE]], dtype=torch.int32)
# bfloat16 has 8 bits: a relative error of 4e-3 in each factor.
CLOSE = 2e-2
CLOSE_LOSSES = {"float32": 1e-4, "bfloat16": 3e-2}
MODEL = (
    *("--model", "tiny-gpt-oss", "--mock-data", "--seq-length", "256", "--micro-batch-size", "2", "--global-batch-size", "4"),
    *("--train-iters", "6", "--log-interval", "1", "--eval-iters", "1", "--lr", "1e-3", "--lr-warmup-iters", "0"),
    *("--kv-channels", "64"),
)
RUNS = {
    "cpu float32": ("--device", "cpu"),
    "gpu float32": ("--device", "cuda"),
    "gpu float32, --kernels torch": ("--device", "cuda", "--kernels", "torch"),
    "gpu bfloat16": ("--device", "cuda", "--bf16"),
    "gpu bfloat16, FlexAttention": ("--device", "cuda", "--bf16", "--attention-backend", "fused"),
    "gpu bfloat16, recomputed": ("--device", "cuda", "--bf16", "--recompute-granularity", "full", "--recompute-num-layers", "1"),
}


def by_the_formula(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, window: int | None, documents: Tensor) -> Tensor:
    key, value = (each.repeat_interleave(HEADS // GROUPS, dim=2) for each in (key, value))
    distance = torch.arange(SEQUENCE)[:, None] - torch.arange(SEQUENCE)
    hidden = (distance < 0) | (distance > (SEQUENCE if window is None else window))
    scores = torch.einsum("qbhd,kbhd->bhqk", query, key) / SIZE**0.5
    numbers = document_numbers(documents, SEQUENCE)
    hidden = hidden | (numbers[:, None, :, None] != numbers[:, None, None, :])
    weights = scores.masked_fill(hidden, float("-inf")).exp()
    total = weights.sum(-1, keepdim=True) + sinks.view(-1, 1, 1).exp()
    return torch.einsum("bhqk,kbhd->qbhd", weights / total, value).flatten(2)


def inputs(dtype: torch.dtype, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    made = [torch.randn(SEQUENCE, BATCH, heads, SIZE, generator=generator) for heads in (HEADS, GROUPS, GROUPS)]
    made += [torch.randn(HEADS, generator=generator), torch.randn(SEQUENCE, BATCH, HEADS * SIZE, generator=generator)]
    # The values that bfloat16 has, for both.
    return [each.bfloat16().to(device, dtype).requires_grad_() for each in made]


def attention(kind: type[CausalAttention], sinks: Tensor, window: int | None) -> CausalAttention:
    made = kind(config(window))
    made.softmax_offset = torch.nn.Parameter(sinks.detach())
    return made


def compare_attention(kind: type[CausalAttention], window: int | None, documents: Tensor | None) -> float:
    """The largest difference of the output or a gradient, relative to its largest element."""
    *expected_inputs, gradient = inputs(torch.float64, "cpu")
    expected = by_the_formula(*expected_inputs, window, ONE if documents is None else documents)  # type: ignore[arg-type]
    wanted = [expected, *torch.autograd.grad(expected, expected_inputs, gradient)]
    query, key, value, sinks, gradient = inputs(torch.bfloat16, "cuda")
    made = attention(kind, sinks, window)
    assert made.softmax_offset is not None
    output = made(query, key, value, None if documents is None else documents.cuda())
    found = [output, *torch.autograd.grad(output, (query, key, value, made.softmax_offset), gradient)]
    pairs = zip(found, wanted, strict=True)
    differences = torch.stack([(mine.double().cpu() - theirs).abs().max() / theirs.abs().max() for mine, theirs in pairs])
    # What is no number is as far away as can be.
    return differences.nan_to_num(nan=torch.inf).max().item()


def check_attention() -> list[str]:
    kinds: dict[str, type[CausalAttention]] = {"FlexAttention": CausalAttention}
    if FLASH_ATTENTION.missing():
        print("flash-attn-4 is not installed: not compared")
    else:
        kinds["flash-attn-4"] = FlashAttention
    failed = []
    for name, kind in kinds.items():
        for window, documents in itertools.product((None, 127, 16), (None, DOCUMENTS)):
            case = f"{name}, window {window}, {'one document' if documents is None else 'documents'}"
            difference = compare_attention(kind, window, documents)
            print(f"{case:46} {difference:9.1e}", flush=True)
            failed += [] if difference <= CLOSE else [case]
    return failed


def check_model() -> list[str]:
    with tempfile.TemporaryDirectory() as place:
        commands = {name: (*MODEL, *options) for name, options in RUNS.items()}
        outcomes = {}
        for where in ("cpu", "gpu"):
            (Path(place) / where).mkdir()
            outcomes |= train_all({name: each for name, each in commands.items() if where in name}, Path(place) / where, 1)
    failed, expected = [], outcomes["cpu float32"].losses
    for name, outcome in outcomes.items():
        if outcome.error is not None:
            print(f"{name:32} FAILED\n{outcome.error}")
            failed.append(name)
            continue
        difference = max(abs(outcome.losses[key] - loss) for key, loss in expected.items())
        print(f"{name:32} {difference:9.1e}  losses {' '.join(f'{loss:.4f}' for loss in outcome.losses.values())}", flush=True)
        is_right = difference <= CLOSE_LOSSES["bfloat16" if "bfloat16" in name else "float32"]
        failed += [] if is_right else [name]
    return failed


def main() -> int:
    failed = check_attention() + check_model()
    print(f"failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
