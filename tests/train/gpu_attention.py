"""Attention on a GPU beside the formula, with windows, documents and soft caps: `python tests/train/gpu_attention.py`.

Not a part of the test session, which runs without a GPU. Then the losses of the families that have such layers, on the GPU beside
those on the CPU, which the tests hold to transformers'. Prints a table; fails when a difference is larger than its tolerance.
"""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from gpu_layouts import STEPS, write_text
from layouts import train_all
from torch import Tensor

SEQUENCE, BATCH, HEADS, GROUPS, SCALE = 512, 2, 4, 2, 0.09
WINDOWS, CAPS, SIZES = (None, 100), (None, 4.0), (64, 128, 256)
# Of the largest value: float32 on tensor cores with TF32 off, and 8 bits of bfloat16.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
MODEL = (
    *("--hidden-size", "128", "--ffn-hidden-size", "256", "--seq-length", "256", "--max-position-embeddings", "256"),
    *("--micro-batch-size", "2", "--global-batch-size", "4", "--train-iters", str(STEPS), "--log-interval", "1", "--lr", "1e-3"),
    *("--eval-iters", "0", "--vocab-size", "4096", "--transformer-impl", "torch"),
)
FAMILIES = {
    "gemma2": ("--num-layers", "4", "--window-size", "63,0"),
    "gemma3": ("--num-layers", "6", "--window-size", "63,0"),
    "olmo2": ("--num-layers", "2"),
    "olmo3": ("--num-layers", "4", "--window-size", "63,0"),
}
LOSS_TOLERANCE = 1e-3


def core_attention(window: int | None, cap: float | None) -> Any:
    from lt_train.models.attention import CausalAttention

    config = SimpleNamespace(
        attention_dropout=0.0,
        sequence_parallel=True,
        window_size=None if window is None else (window, 0),
        window_attn_skip_freq=None,
        softmax_type="vanilla",
        context_parallel_size=1,
    )
    made = CausalAttention(config, softmax_scale=SCALE)  # type: ignore[arg-type]
    made.softcap = cap
    return made


def by_the_formula(heads: list[Tensor], documents: Tensor | None, window: int | None, cap: float | None) -> Tensor:
    """In float64, from the matrix of scores."""
    query, key, value = (tensor.double().permute(1, 2, 0, 3) for tensor in heads)
    key, value = (tensor.repeat_interleave(HEADS // GROUPS, 1) for tensor in (key, value))
    scores = query @ key.transpose(-1, -2) * SCALE
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    positions = torch.arange(SEQUENCE, device=query.device)
    distance = positions[:, None] - positions
    seen = (distance >= 0) & (distance <= (SEQUENCE if window is None else window))
    if documents is not None:
        seen = seen & (documents[:, :, None] == documents[:, None, :])[:, None]
    return (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ value).permute(2, 0, 1, 3).flatten(2)


def difference(dtype: torch.dtype, size: int, window: int | None, cap: float | None, with_documents: bool) -> float:
    """The largest of the output's and of the three gradients', each as a share of the largest value."""
    generator = torch.Generator("cuda").manual_seed(1)
    shapes = [(SEQUENCE, BATCH, heads, size) for heads in (HEADS, GROUPS, GROUPS)]
    heads = [torch.randn(shape, generator=generator, device="cuda", dtype=dtype).requires_grad_() for shape in shapes]
    exact = [tensor.detach().double().requires_grad_() for tensor in heads]
    documents = (torch.arange(SEQUENCE, device="cuda") // 150).repeat(BATCH, 1).int() if with_documents else None
    found, expected = core_attention(window, cap)(*heads, documents), by_the_formula(exact, documents, window, cap)
    gradient = torch.randn(found.shape, generator=generator, device="cuda", dtype=dtype)
    found.backward(gradient)
    expected.backward(gradient.double())
    pairs = [(found, expected), *((tensor.grad, other.grad) for tensor, other in zip(heads, exact, strict=True))]
    return max(((ours.double() - theirs).abs().max() / theirs.abs().max()).item() for ours, theirs in pairs)


def check_attention() -> list[str]:
    failed = []
    for dtype, tolerance in TOLERANCES.items():
        cases = [(s, w, c, d) for s in SIZES for w in WINDOWS for c in CAPS for d in (False, True)]
        for size, window, cap, with_documents in cases:
            documents = "documents" if with_documents else ""
            name = f"{str(dtype).removeprefix('torch.')} heads of {size}, window {window}, cap {cap} {documents}"
            try:
                found = difference(dtype, size, window, cap, with_documents)
            except Exception as error:  # What a kernel cannot compile is a result, too.
                print(f"{name:60} {type(error).__name__}: {str(error)[:200]}", flush=True)
                failed.append(name)
                continue
            print(f"{name:60} {found:.1e}", flush=True)
            failed += [name] if found > tolerance else []
    return failed


def check_losses() -> list[str]:
    with tempfile.TemporaryDirectory() as place:
        data = write_text(Path(place) / "data")
        losses = {}
        for device in ("cpu", "cuda"):
            commands = {
                name: (*("--model", f"tiny-{name}"), *MODEL, *options, "--device", device, "--ranks", "1", data)
                for name, options in FAMILIES.items()
            }
            losses[device] = train_all(commands, Path(place) / device, 1)
    failed = []
    for name in FAMILIES:
        cpu, gpu = losses["cpu"][name], losses["cuda"][name]
        largest = max((abs(gpu.losses[step] - cpu.losses[step]) for step in cpu.losses), default=float("inf"))
        print(f"{name:60} {largest:.1e} {gpu.error or ''}", flush=True)
        failed += [name] if gpu.error or cpu.error or largest > LOSS_TOLERANCE else []
    return failed


def main() -> int:
    failed = [*check_attention(), *check_losses()]
    print(f"failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
