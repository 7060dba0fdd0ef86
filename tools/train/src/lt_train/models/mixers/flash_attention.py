"""Causal attention with flash-attn-4 (Shah et al. 2024, in NVIDIA's CuTe language), the fastest attention for Hopper.

For Llama 3's heads at 8192 tokens, forward and backward take 7.8 ms for a head size of 64, and 13.3 ms for 128; cuDNN's take 9.2
and 14.7 ms (H200, 2026-11-22). The first call compiles for five seconds. `lt_train.config.kernels` knows the settings that
flash-attn-4 does not support and chooses `CausalAttention` for them. Values may have another head size than queries and keys: 128
and 192 in latent attention.
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
        first_key = 0 if window is None else max(0, begin - window)
        local_chunks.append(Chunk(slice(place * size, (place + 1) * size), begin, begin + size, first_key))
    return local_chunks


class _Attention(torch.autograd.Function):
    """Compute `attend`, with the result stored as [s, b, heads, v].

    flash-attn-4 expects the batch before the sequence. Its public function would return that layout, which the next layer would
    have to copy. Here the kernels write into views of the final layout, which saves 7 ms of a step of 850.

    The backward kernel computes the probabilities again from scores and normalizers, and the product of output and gradient from
    the output. Both the normalizers and the output that it gets include the sinks, so its gradients include them as well.
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
            visible = key[chunk.first_key : chunk.end], value[chunk.first_key : chunk.end]
            normalizer = _forward(query[chunk.rows], *visible, mixed, _calls(chunk, documents), ctx.settings)
            normalizers.append(normalizer if sinks is None else _add_sinks(mixed.transpose(0, 1), normalizer, sinks))
        ctx.save_for_backward(query, key, value, sinks, documents, output, *normalizers)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sinks, documents, output, *normalizers = ctx.saved_tensors
        query_gradient = query.new_empty(query.shape)

        def backward(number: int, key_gradient: Tensor, value_gradient: Tensor) -> None:
            chunk = ctx.chunks[number]
            rows, keys = chunk.rows, slice(chunk.first_key, chunk.end)
            inputs = (query[rows], key[keys], value[keys], output[rows], gradient[rows])
            results = {"dq": query_gradient[rows], "dk": key_gradient, "dv": value_gradient}
            _backward(inputs, normalizers[number], results, _calls(chunk, documents), ctx.settings)

        if ctx.group is None:
            key_gradient, value_gradient = torch.empty_like(key), torch.empty_like(value)
            backward(0, key_gradient, value_gradient)
        else:
            key_gradient, value_gradient = _sum_over_ranks(backward, ctx.chunks, key, ctx.sizes, ctx.group)
        sinks_gradient = None
        if sinks is not None:
            sinks_gradient = _sinks_gradient(
                output.transpose(0, 1), gradient.transpose(0, 1), torch.cat(normalizers, dim=-1), sinks
            )
        return query_gradient, key_gradient, value_gradient, sinks_gradient, None, None, None, None


def _sum_over_ranks(
    backward: Callable[[int, Tensor, Tensor], None], local_chunks: list[Chunk], key: Tensor, sizes: list[int], group: Any
) -> tuple[Tensor, ...]:
    """Return the gradients of this rank's keys and values, summed over the ranks.

    `backward` computes the gradients for a local chunk by its number. `sizes` are the head sizes of keys and values.
    """
    first, second = local_chunks
    # The second chunk's gradients are computed first and sent to the other ranks while the first chunk's are computed.
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

    Documents are sequences of unequal length in one call. The kernels read the borders on the GPU. A document's queries in the
    chunk see the keys from the begin of the document. A document before the chunk has no queries, and its keys get zero
    gradients. A call with documents takes a single sample, because the samples are not contiguous in memory.
    """
    if documents is None:
        yield None, {}
        return
    query_borders = documents.clamp(chunk.begin, chunk.end) - chunk.begin
    key_borders = documents.clamp(chunk.first_key, chunk.end) - chunk.first_key
    longest = {"max_seqlen_q": chunk.end - chunk.begin, "max_seqlen_k": chunk.end - chunk.first_key}
    for sample, (queries, keys) in enumerate(zip(query_borders, key_borders, strict=True)):
        yield sample, {"cu_seqlens_q": queries, "cu_seqlens_k": keys, **longest}


def _select_sample(sample: int | None, tensor: Tensor) -> Tensor:
    """Return the view [b, s, ...] of `tensor` [s, b, ...], or with a `sample` number its tokens [s, ...]."""
    return tensor.transpose(0, 1) if sample is None else tensor[:, sample]


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    calls: Iterator[tuple[int | None, dict[str, Any]]],
    settings: dict[str, Any],
) -> Tensor:
    """Write `output` [s, b, heads, v], and return the normalizers [b, heads, s], in float32."""
    sequence, batch, heads, _ = query.shape
    normalizers = torch.empty(batch, heads, sequence, dtype=torch.float32, device=query.device)
    for sample, borders in calls:
        inputs = (_select_sample(sample, tensor) for tensor in (query, key, value))
        results = {"out": _select_sample(sample, output), "lse": normalizers if sample is None else normalizers[sample]}
        _flash()._flash_attn_fwd(*inputs, **results, **borders, **settings)
    return normalizers


def _backward(
    inputs: tuple[Tensor, ...],
    normalizers: Tensor,
    results: dict[str, Tensor],
    calls: Iterator[tuple[int | None, dict[str, Any]]],
    settings: dict[str, Any],
) -> None:
    """Write the gradients into `results`. `inputs` are queries, keys, values, the output and its gradient."""
    for sample, borders in calls:
        selected = [_select_sample(sample, tensor) for tensor in inputs]
        gradients = {name: _select_sample(sample, gradient) for name, gradient in results.items()}
        normalizer = normalizers if sample is None else normalizers[sample]
        _flash()._flash_attn_bwd(*selected, normalizer, **gradients, **borders, **settings)


def _add_sinks(output: Tensor, normalizers: Tensor, sinks: Tensor) -> Tensor:
    """Scale `output` [b, s, heads, d] in place by the probability that the sinks [heads] leave for the keys.

    Return the normalizers [b, heads, s] with the sinks included.
    """
    column = sinks.float()[:, None]
    output.mul_(torch.sigmoid(normalizers - column).transpose(1, 2).unsqueeze(-1))
    return torch.logaddexp(normalizers, column)


def _sinks_gradient(output: Tensor, gradient: Tensor, normalizers: Tensor, sinks: Tensor) -> Tensor:
    """Return the gradient of the sinks [heads].

    A sink has no value. So its probability adds nothing to the output, and scales the output down in proportion.
    """
    products = (output.float() * gradient.float()).sum(dim=-1).transpose(1, 2)
    probabilities = torch.exp(sinks.float()[:, None] - normalizers)
    return -(probabilities * products).sum(dim=(0, 2)).to(sinks.dtype)


def load() -> None:
    """Import flash-attn-4, which takes seconds, before the first call needs it."""
    _flash()


@functools.cache
def _flash() -> ModuleType:
    # flash-attn-4 passes arguments that its compiler warns about at every compilation.
    warnings.filterwarnings("ignore", message="Argument aux_data", category=UserWarning)
    from flash_attn.cute import interface

    return interface  # type: ignore[no-any-return]
