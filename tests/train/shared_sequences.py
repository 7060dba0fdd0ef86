"""flash-attn-4 on gloo ranks that share the samples, beside attention by one mask on one rank: a program for a test.

Prints by case the largest difference of the output or of a gradient, relative to the largest value, from attention in float64.
The kernels are the stand-in of `flash_kernels`. Memory that is not written to is NaN.
"""

import itertools
import json
import multiprocessing
import sys
from types import SimpleNamespace
from typing import Any

import flash_kernels
import torch
import torch.distributed
from torch import Tensor

from lt_train.models.mixers import flash_attention
from lt_train.models.mixers.core_attention import CausalAttention, sequence_share

RANKS = 4
LENGTH, BATCH, HEADS, GROUPS, SIZE = 48, 2, 4, 2, 8
# Of a value's head: as large as the query's, or as in latent attention.
VALUE_SIZES = (SIZE, 6)
# Borders within chunks, at their ends, and many in one chunk; the first sample has a document of one token, the second one that
# covers most chunks. The last ones are empty.
DOCUMENTS = [[0, 1, 6, 20, 21, 24, 26, 46, 48], [0, 5, 41, 48, 48, 48, 48, 48, 48]]
WINDOWS = (None, 1, 7, 19)


def inputs(value_size: int) -> list[Tensor]:
    """Queries, keys, values, sinks and the gradient of the output."""
    generator = torch.Generator().manual_seed(4)
    heads = ((HEADS, SIZE), (GROUPS, SIZE), (GROUPS, value_size))
    shapes = [*((LENGTH, BATCH, *each) for each in heads), (HEADS,), (LENGTH, BATCH, HEADS * value_size)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def config(window: int | None, ranks: int = 1) -> Any:
    """What attention alone needs of megatron-core's; sinks are set afterwards."""
    return SimpleNamespace(
        attention_dropout=0.0,
        sequence_parallel=True,
        window_size=None if window is None else (window, 0),
        window_attn_skip_freq=None,
        softmax_type="vanilla",
        context_parallel_size=ranks,
    )


def attention(kind: type[CausalAttention], window: int | None, sinks: Tensor | None, ranks: int) -> CausalAttention:
    made = kind(config(window, ranks), 1)
    made.softmax_offset = None if sinks is None else torch.nn.Parameter(sinks)
    return made


def results(made: CausalAttention, heads: list[Tensor], gradient: Tensor, documents: Tensor | None) -> list[Tensor]:
    """The output and the gradients of queries, keys, values and sinks."""
    given = [each.clone().requires_grad_() for each in heads]
    output = made(*given, documents)
    asked = given if made.softmax_offset is None else [*given, made.softmax_offset]
    return [output, *torch.autograd.grad(output, asked, gradient)]


def compare(ranks: int, window: int | None, with_documents: bool, with_sinks: bool, value_size: int) -> float:
    """Called by the first `ranks` ranks."""
    *heads, sinks, gradient = inputs(value_size)
    documents = torch.tensor(DOCUMENTS, dtype=torch.int32) if with_documents else None
    given = sinks if with_sinks else None
    rank = torch.distributed.get_rank()
    expected = results(attention(CausalAttention, window, given, 1), heads, gradient, documents)

    def share(tensor: Tensor) -> Tensor:
        return sequence_share(tensor, 0, rank, ranks) if ranks > 1 else tensor

    own = attention(flash_attention.FlashAttention, window, given, ranks)
    found = results(own, [share(each) for each in heads], share(gradient), documents)
    if with_sinks:
        torch.distributed.all_reduce(found[-1], group=flash_attention.parallel_state.get_context_parallel_group())
    wanted = [share(each) for each in expected[:4]] + expected[4:]
    differences = [(mine - theirs).abs().max() / theirs.abs().max() for mine, theirs in zip(found, wanted, strict=True)]
    # What is no number is as far away as can be.
    return torch.stack(differences).nan_to_num(nan=torch.inf).max().item()


def serve(rank: int, store: str, found: Any) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    flash_attention._flash = lambda: flash_kernels  # type: ignore[assignment,return-value]
    torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    for ranks in (1, 2, 4):
        group = torch.distributed.new_group(range(ranks))
        if rank >= ranks:
            continue
        flash_attention.parallel_state.get_context_parallel_group = lambda group=group: group
        for case in itertools.product(WINDOWS, (False, True), (False, True), VALUE_SIZES):
            found.put((f"{ranks} {case}", compare(ranks, *case)))
    torch.distributed.barrier()


def main(store: str) -> None:
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()
    started = [context.Process(target=serve, args=(rank, store, found), daemon=True) for rank in range(RANKS)]
    for process in started:
        process.start()
    largest: dict[str, float] = {}
    for _ in range((1 + 2 + 4) * len(WINDOWS) * 4 * len(VALUE_SIZES)):
        name, difference = found.get()
        largest[name] = max(difference, largest.get(name, 0.0))
    print(json.dumps(largest))


if __name__ == "__main__":
    main(sys.argv[1])
