"""Causal attention with flash-attn-4 (Shah et al. 2024, in NVIDIA's CuTe language), the fastest attention for Hopper.

For Llama 3's heads at 8192 tokens, forward and backward on an H200, 2026-11-22: 7.8 ms compared with cuDNN's 9.2 for a head size
of 64, 13.3 compared with 14.7 for 128. The first call compiles for five seconds. `lt_train.config.kernels` lists the unsupported
settings and then chooses `CausalAttention`. Values may have another head size than queries and keys: 128 and 192 in latent
attention.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from lt_train.models.mixers.core_attention import CausalAttention
from lt_train.parallel.chunk_exchange import GatheredChunks, SummedChunks


class FlashAttention(CausalAttention):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, documents: Tensor | None = None) -> Tensor:
        group = parallel_state.get_context_parallel_group() if self.ranks > 1 else None
        window = self.window if self.window is not None and self.window < len(key) * self.ranks - 1 else None
        mixed = attend(query, key, value, self.softmax_scale, window, self.softmax_offset, documents, group)
        return mixed.flatten(2)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    window: int | None,
    sinks: Tensor | None = None,
    documents: Tensor | None = None,
    group: Any = None,
) -> Tensor:
    """Return [s, b, heads, v] for queries [s, b, heads, d], keys [s, b, groups, d], values [s, b, groups, v] and `sinks` [heads].

    `documents` is as in `CausalAttention.forward`. The context-parallel ranks of `group` hold chunks of the sequence.
    """
    mixed: Tensor = _Attention.apply(query, key, value, sinks, documents, scale, window, group)  # type: ignore[no-untyped-call]
    return mixed


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Positions `begin` to `end` of a sequence.

    They are `rows` of the local queries and see the keys from `first_key` to `end`.
    """

    rows: slice
    begin: int
    end: int
    first_key: int


def chunks(length: int, window: int | None, rank: int, ranks: int) -> list[Chunk]:
    """Return the chunks of the sequence on a rank with `length` queries.

    flash-attn-4 aligns causal masks at the end: the last query sees the last key, and a window counts back from there. So each
    chunk is one call, with the keys from the window before its begin to its end. These are all keys that its queries see: no
    results need to be merged.
    """
    if ranks == 1:
        return [Chunk(slice(0, length), 0, length, 0)]
    size = length // 2
    local_chunks = []
    for place, number in enumerate((rank, 2 * ranks - 1 - rank)):
        begin = number * size
        seen = 0 if window is None else max(0, begin - window)
        local_chunks.append(Chunk(slice(place * size, (place + 1) * size), begin, begin + size, seen))
    return local_chunks


class _Attention(torch.autograd.Function):
    """As `attend`; the result is stored as [s, b, heads, v].

    flash-attn-4 expects the batch before the sequence. Its public function would return that layout, and a copy would be needed;
    the kernels here write into views of the final layout instead, which saves 7 ms of a step of 850.

    The backward kernel computes probabilities again from scores and normalizers, and takes the product of output and gradient
    from the output. With the sinks in both, its gradients are those of attention with sinks.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        documents: Tensor | None,
        scale: float | None,
        window: int | None,
        group: Any,
    ) -> Tensor:
        ctx.group = group
        ctx.chunks = chunks(len(query), window, *((0, 1) if group is None else (group.rank(), group.size())))
        ctx.settings = {"softmax_scale": scale, "causal": True}
        if window is not None:
            ctx.settings |= {"window_size_left": window, "window_size_right": 0}
        gathered = None if group is None else GatheredChunks(key, value, group)
        ctx.sizes = [key.shape[-1], value.shape[-1]]
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        normalizers = []
        for chunk in ctx.chunks:
            if gathered is not None:
                key, value = torch.split(gathered.wait_for(chunk.end), ctx.sizes, dim=-1)
            mixed = output[chunk.rows]
            seen = key[chunk.first_key : chunk.end], value[chunk.first_key : chunk.end]
            normalizer = _forward(query[chunk.rows], *seen, mixed, _calls(chunk, documents), ctx.settings)
            normalizers.append(normalizer if sinks is None else _add_sinks(mixed.transpose(0, 1), normalizer, sinks))
        ctx.save_for_backward(query, key, value, sinks, documents, output, *normalizers)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sinks, documents, output, *normalizers = ctx.saved_tensors
        of_query = query.new_empty(query.shape)

        def backward(number: int, of_key: Tensor, of_value: Tensor) -> None:
            chunk = ctx.chunks[number]
            rows, seen = chunk.rows, slice(chunk.first_key, chunk.end)
            given = (query[rows], key[seen], value[seen], output[rows], gradient[rows])
            results = {"dq": of_query[rows], "dk": of_key, "dv": of_value}
            _backward(given, normalizers[number], results, _calls(chunk, documents), ctx.settings)

        if ctx.group is None:
            of_key, of_value = torch.empty_like(key), torch.empty_like(value)
            backward(0, of_key, of_value)
        else:
            of_key, of_value = _summed(backward, ctx.chunks, key, ctx.sizes, ctx.group)
        of_sinks = None
        if sinks is not None:
            of_sinks = _sinks_gradient(output.transpose(0, 1), gradient.transpose(0, 1), torch.cat(normalizers, dim=-1), sinks)
        return of_query, of_key, of_value, of_sinks, None, None, None, None


def _summed(
    backward: Callable[[int, Tensor, Tensor], None], both: list[Chunk], key: Tensor, sizes: list[int], group: Any
) -> tuple[Tensor, ...]:
    """The gradients of this rank's keys and values, whose heads have `sizes`, from what `backward` computes for each chunk."""
    first, second = both
    whole = key.new_empty(*key.shape[:-1], sum(sizes))
    whole[: second.first_key].zero_()
    whole[second.end :].zero_()
    backward(1, *torch.split(whole[second.first_key : second.end], sizes, dim=-1))
    summed = SummedChunks(whole, group)
    summed.add_second()
    part = whole.new_empty(first.end - first.first_key, *whole.shape[1:])
    backward(0, *torch.split(part, sizes, dim=-1))
    whole[first.first_key : first.end] += part
    return torch.split(summed.finish(), sizes, dim=-1)


def _calls(chunk: Chunk, documents: Tensor | None) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """Yield the kernel calls for `chunk`: the sample, or None for all samples, and the document borders.

    Documents are sequences of unequal length in one call; the kernels read their borders on the GPU. The queries of a document in
    the chunk see the keys from the begin of the document. A document before the chunk has no queries, and its keys get zero
    gradients. Such a call takes one sample, because the samples are not contiguous in memory.
    """
    if documents is None:
        yield None, {}
        return
    of_queries = documents.clamp(chunk.begin, chunk.end) - chunk.begin
    of_keys = documents.clamp(chunk.first_key, chunk.end) - chunk.first_key
    longest = {"max_seqlen_q": chunk.end - chunk.begin, "max_seqlen_k": chunk.end - chunk.first_key}
    for sample, (queries, keys) in enumerate(zip(of_queries, of_keys, strict=True)):
        yield sample, {"cu_seqlens_q": queries, "cu_seqlens_k": keys, **longest}


def _of_call(sample: int | None, tensor: Tensor) -> Tensor:
    """What a kernel takes of `tensor` [s, b, ...]."""
    return tensor.transpose(0, 1) if sample is None else tensor[:, sample]


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    calls: Iterator[tuple[int | None, dict[str, Any]]],
    settings: dict[str, Any],
) -> Tensor:
    """Write `output`; returns the normalizers [b, heads, s]."""
    sequence, batch, heads, _ = query.shape
    normalizers = torch.empty(batch, heads, sequence, dtype=torch.float32, device=query.device)
    for sample, places in calls:
        given = (_of_call(sample, each) for each in (query, key, value))
        results = {"out": _of_call(sample, output), "lse": normalizers if sample is None else normalizers[sample]}
        _flash()._flash_attn_fwd(*given, **results, **places, **settings)
    return normalizers


def _backward(
    given: tuple[Tensor, ...],
    normalizers: Tensor,
    results: dict[str, Tensor],
    calls: Iterator[tuple[int | None, dict[str, Any]]],
    settings: dict[str, Any],
) -> None:
    """Write `results`, the gradients, from queries, keys, values, output and its gradient."""
    for sample, places in calls:
        own = normalizers if sample is None else normalizers[sample]
        written = {name: _of_call(sample, each) for name, each in results.items()}
        _flash()._flash_attn_bwd(*(_of_call(sample, each) for each in given), own, **written, **places, **settings)


def _add_sinks(output: Tensor, normalizers: Tensor, sinks: Tensor) -> Tensor:
    """Let the sinks [heads] take their share of `output` [b, s, heads, d], in place; the normalizers [b, heads, s] with them."""
    column = sinks.float()[:, None]
    output.mul_(torch.sigmoid(normalizers - column).transpose(1, 2).unsqueeze(-1))
    return torch.logaddexp(normalizers, column)


def _sinks_gradient(output: Tensor, gradient: Tensor, normalizers: Tensor, sinks: Tensor) -> Tensor:
    """A sink has no value: what its probability adds to the output is nothing, and what it takes from it is in proportion."""
    products = (output.float() * gradient.float()).sum(dim=-1).transpose(1, 2)
    probabilities = torch.exp(sinks.float()[:, None] - normalizers)
    return -(probabilities * products).sum(dim=(0, 2)).to(sinks.dtype)


def load() -> None:
    """Import flash-attn-4, which the first call would do."""
    _flash()


@functools.cache
def _flash() -> ModuleType:
    # It compiles with arguments that its compiler warns of, each time.
    warnings.filterwarnings("ignore", message="Argument aux_data", category=UserWarning)
    from flash_attn.cute import interface

    return interface  # type: ignore[no-any-return]
