"""Attention on a GPU beside the formula, with windows, documents and soft caps.

    python tests/train/gpu_attention.py          # all
    python tests/train/gpu_attention.py flash    # flash-attn-4's kernels alone, a minute

Not a part of the test session, which runs without a GPU. First flash-attn-4's kernels as one rank calls them, and as the ranks of
a shared sequence do, one after the other, with keys and values that are there already (`gpu_layouts.py` has real ranks). Then
FlexAttention, and the losses of the families that have such layers, on the GPU beside those on the CPU, which the tests hold to
transformers'. Prints a table; fails when a difference is larger than its tolerance.
"""

import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from gpu_layouts import STEPS, write_text
from layouts import train_all
from shared_sequences import config
from torch import Tensor

from lt_train.models.mixers import flash_attention
from lt_train.models.mixers.core_attention import CausalAttention, document_numbers, sequence_share

SEQUENCE, BATCH, HEADS, GROUPS, SCALE = 512, 2, 4, 2, 0.09
# One token, a few, and many; borders within chunks and at their ends; the last one is empty.
DOCUMENTS = [[0, 1, 6, 128, 300, 450, 512, 512, 512], [0, 5, 490, 512, 512, 512, 512, 512, 512]]
WINDOWS, CAPS, SIZES = (None, 100), (None, 4.0), (64, 128, 256)
# Of the largest value: float32 on tensor cores with TF32 off, and 8 bits of bfloat16.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
MODEL = (
    *("--hidden-size", "128", "--ffn-hidden-size", "256", "--seq-length", "256", "--max-position-embeddings", "256"),
    *("--micro-batch-size", "2", "--global-batch-size", "4", "--train-iters", str(STEPS), "--log-interval", "1", "--lr", "1e-3"),
    *("--eval-iters", "0", "--vocab-size", "4096"),
)
FAMILIES = {
    "gemma2": ("--num-layers", "4", "--window-size", "63,0"),
    "gemma3": ("--num-layers", "6", "--window-size", "63,0"),
    "olmo2": ("--num-layers", "2"),
    "olmo3": ("--num-layers", "4", "--window-size", "63,0"),
}
LOSS_TOLERANCE = 1e-3


def core_attention(window: int | None, cap: float | None) -> Any:
    made = CausalAttention(config(window), softmax_scale=SCALE)
    made.softcap = cap
    return made


def by_the_formula(heads: Sequence[Tensor], documents: Tensor | None, window: int | None, cap: float | None) -> Tensor:
    """In float64, from the matrix of scores."""
    query, key, value = (tensor.double().permute(1, 2, 0, 3) for tensor in heads)
    key, value = (tensor.repeat_interleave(HEADS // tensor.shape[1], 1) for tensor in (key, value))
    scores = query @ key.transpose(-1, -2) * SCALE
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    positions = torch.arange(SEQUENCE, device=query.device)
    distance = positions[:, None] - positions
    seen = (distance >= 0) & (distance <= (SEQUENCE if window is None else window))
    if documents is not None:
        numbers = document_numbers(documents, SEQUENCE)
        seen = seen & (numbers[:, :, None] == numbers[:, None, :])[:, None]
    return (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ value).permute(2, 0, 1, 3).flatten(2)


def difference(dtype: torch.dtype, size: int, window: int | None, cap: float | None, with_documents: bool) -> float:
    """The largest of the output's and of the three gradients', each as a share of the largest value."""
    heads, gradient = inputs(dtype, size, GROUPS)
    documents = torch.tensor(DOCUMENTS, dtype=torch.int32, device="cuda") if with_documents else None
    found = core_attention(window, cap)(*heads, documents)
    return largest([found, *torch.autograd.grad(found, heads, gradient)], heads, gradient, documents, window, cap)


def inputs(dtype: torch.dtype, size: int, groups: int, value_size: int | None = None) -> tuple[list[Tensor], Tensor]:
    """Queries, keys and values, and the gradient of the output."""
    generator = torch.Generator("cuda").manual_seed(1)
    value_size = value_size or size
    heads = ((HEADS, size), (groups, size), (groups, value_size))
    shapes = [*((SEQUENCE, BATCH, *each) for each in heads), (SEQUENCE, BATCH, HEADS * value_size)]
    *heads, gradient = (torch.randn(shape, generator=generator, device="cuda", dtype=dtype) for shape in shapes)
    return [each.requires_grad_() for each in heads], gradient


def largest(
    found: list[Tensor], heads: list[Tensor], gradient: Tensor, documents: Tensor | None, window: int | None, cap: float | None
) -> float:
    """The difference of what was found from the output and the gradients by the formula."""
    exact = [tensor.detach().double().requires_grad_() for tensor in heads]
    output = by_the_formula(exact, documents, window, cap)
    expected = [output, *torch.autograd.grad(output, exact, gradient.double())]
    pairs = zip(found, expected, strict=True)
    differences = torch.stack([(ours.double() - theirs).abs().max() / theirs.abs().max() for ours, theirs in pairs])
    # What is no number is as far away as can be.
    return differences.nan_to_num(nan=torch.inf).max().item()


class SharedSequence:
    """In place of a group of ranks and its collectives: keys and values are there, and gradients are summed up."""

    def __init__(self, ranks: int, keys_values: Sequence[Tensor]):
        self.ranks = ranks
        self.sizes = [each.shape[-1] for each in keys_values]
        self.whole = torch.cat([each.detach() for each in keys_values], dim=-1)
        self.sum = torch.zeros_like(self.whole, dtype=torch.float32)
        self.current = 0

    def rank(self) -> int:
        return self.current

    def size(self) -> int:
        return self.ranks

    def gathered(self, key: Tensor, value: Tensor, group: Any) -> SimpleNamespace:
        return SimpleNamespace(wait_for=lambda end: self.whole)

    def summed(self, whole: Tensor, group: Any) -> SimpleNamespace:
        def finish() -> Tensor:
            self.sum += whole
            return sequence_share(torch.zeros_like(whole), 0, self.current, self.ranks)

        return SimpleNamespace(add_second=lambda: None, finish=finish)


def shared_difference(ranks: int, size: int, value_size: int, groups: int, window: int | None, with_documents: bool) -> float:
    """As `difference`, of flash-attn-4 on each of `ranks` ranks in turn."""
    heads, gradient = inputs(torch.bfloat16, size, groups, value_size)
    documents = torch.tensor(DOCUMENTS, dtype=torch.int32, device="cuda") if with_documents else None
    if ranks == 1:
        found = flash_attention.attend(*heads, SCALE, window, None, documents).flatten(2)
        return largest([found, *torch.autograd.grad(found, heads, gradient)], heads, gradient, documents, window, None)
    shared = SharedSequence(ranks, heads[1:])
    output, of_query = torch.empty_like(gradient), torch.empty_like(heads[0])
    places = torch.arange(SEQUENCE, device="cuda")
    with mock.patch.multiple(flash_attention, GatheredChunks=shared.gathered, SummedChunks=shared.summed):
        for shared.current in range(ranks):
            own = sequence_share(places, 0, shared.current, ranks)
            given = [each.detach()[own].requires_grad_() for each in heads]
            mixed = flash_attention.attend(*given, SCALE, window, None, documents, shared).flatten(2)
            output[own] = mixed.detach()
            of_query[own] = torch.autograd.grad(mixed, given, gradient[own])[0]
    return largest([output, of_query, *shared.sum.split(shared.sizes, dim=-1)], heads, gradient, documents, window, None)


def check_flash() -> list[str]:
    failed = []
    sizes = ((64, 64), (128, 128), (192, 128))
    for ranks, size, groups, window, with_documents in itertools.product(
        (1, 2, 4), sizes, (HEADS, GROUPS), WINDOWS, (False, True)
    ):
        documents = "documents" if with_documents else ""
        name = f"flash-attn-4, {ranks} ranks, {groups} heads of {size} for keys and values, window {window} {documents}"
        try:
            found = shared_difference(ranks, *size, groups, window, with_documents)
        # Whatever flash-attn-4 or its compiler raises for one case; the others are tried.
        except Exception as error:
            print(f"{name:78} {type(error).__name__}: {str(error)[:200]}", flush=True)
            failed.append(name)
            continue
        print(f"{name:78} {found:.1e}", flush=True)
        failed += [name] if found > TOLERANCES[torch.bfloat16] else []
    return failed


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
        if error := gpu.error or cpu.error:
            print(f"{name:60} {error}", flush=True)
            failed.append(name)
            continue
        largest = max(abs(gpu.losses[step] - cpu.losses[step]) for step in cpu.losses)
        print(f"{name:60} {largest:.1e}", flush=True)
        failed += [name] if largest > LOSS_TOLERANCE else []
    return failed


def main() -> int:
    failed = check_flash()
    if sys.argv[1:] != ["flash"]:
        failed += [*check_attention(), *check_losses()]
    print(f"failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
