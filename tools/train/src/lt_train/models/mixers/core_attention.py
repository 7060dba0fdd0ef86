"""Causal attention by PyTorch, with documents, sliding windows, sinks, soft caps and context parallelism.

scaled_dot_product_attention computes plain causal attention, without the matrix of scores. Documents (--reset-attention-mask), a
window and context parallelism mask more than the later tokens. One rule (`_rule`) says which keys a query sees. On a GPU,
FlexAttention compiles the rule into its kernel and skips fully masked blocks; on a CPU the rule becomes a dense mask [queries,
keys].

The sequence is cut into 2 x N equal chunks. Context-parallel rank r has chunks r and 2N-1-r, as in Megatron, so that all ranks
compute equally many pairs. Each rank all-gathers the keys and values, and reduce-scatters their gradients. A ring would hold less
but needs N sends per layer. With grouped queries, keys and values are small: 0.5 GB per layer for Llama 3 8B at 128k tokens, in
bf16, kept for the backward pass unless the layer is recomputed. This attention waits for the all-gather;
`mixers/flash_attention.py` overlaps it.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import (
    gather_from_sequence_parallel_region,
    get_cuda_rng_tracker,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention, make_sharded_tensors_for_checkpoint
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lt_train.process.device import CPU

# On an H200, cuDNN takes three quarters of the time of PyTorch's flash attention for Llama 3's heads at 8192 tokens.
FASTEST_FIRST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class CausalAttention(torch.nn.Module):
    """Attention over [sequence, batch, heads, head size]. Grouped queries share key and value heads."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int = 1,
        *,
        softmax_scale: float | None = None,
        softcap: float | None = None,
    ):
        """`layer_number` counts from 1. With a `softcap` c, scores x become c * tanh(x / c)."""
        super().__init__()
        self.softmax_scale, self.softcap = softmax_scale, softcap
        self.dropout = config.attention_dropout
        # `Blocks.forward` has already forked the random state of sequence-parallel ranks.
        self.dropout_generator = contextlib.nullcontext if config.sequence_parallel else get_cuda_rng_tracker().fork
        has_window = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        self.window = config.window_size[0] if has_window else None
        self.softmax_offset = _sinks(config) if config.softmax_type == "learnable" else None
        self.ranks = config.context_parallel_size

    def forward(self, query: Tensor, key: Tensor, value: Tensor, documents: Tensor | None = None) -> Tensor:
        """Return [s, b, heads * v] for `query` [s, b, heads, d], `key` [s, b, groups, d] and `value` [s, b, groups, v].

        `documents` [b, n + 1] are the document borders of the whole samples. This rank holds `s` tokens per sample.
        """
        sequence, batch = query.shape[:2]
        rank = 0
        if self.ranks > 1:
            rank = parallel_state.get_context_parallel_rank()
            both = torch.cat((key, value), dim=-1)
            both = gather_from_sequence_parallel_region(both, group=parallel_state.get_context_parallel_group())
            key, value = both.split((key.shape[-1], value.shape[-1]), dim=-1)
        window = self.window if self.window is not None and self.window < len(key) - 1 else None
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        if documents is None and self.ranks == 1:
            mixed = self._attend_causal(query, key, value, window)
        else:
            mixed = self._attend_masked(query, key, value, _mask(documents, window, sequence, rank, self.ranks, query.device))
        return mixed.permute(2, 0, 1, 3).reshape(sequence, batch, -1)

    def _attend_causal(self, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        """Attend with `query` [b, heads, s, d] to `key` and `value` [b, groups, s, d], within `window` keys if it is not None."""
        if window is not None or self.softcap is not None or self.softmax_offset is not None:
            return self._attend_masked(query, key, value, _mask(None, window, query.shape[2], 0, 1, query.device))
        if query.device.type == CPU or torch.are_deterministic_algorithms_enabled():
            return self._scaled_dot_product(query, key, value, is_causal=True)
        with sdpa_kernel(FASTEST_FIRST, set_priority=True):
            return self._scaled_dot_product(query, key, value, is_causal=True)

    def _attend_masked(self, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
        if query.device.type != CPU:
            return self._attend_flex(query, key, value, mask)
        if self.softcap is not None or self.softmax_offset is not None:
            return self._attend_densely(query, key, value, mask)
        return self._scaled_dot_product(query, key, value, attn_mask=mask)

    def _attend_densely(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Compute the matrix of scores, because SDPA has no soft cap and no sinks. A sink is one more column without a value."""
        batch, groups = key.shape[:2]
        queries = query.reshape(batch, groups, -1, *query.shape[2:])
        scores = (queries @ key.unsqueeze(2).transpose(-1, -2)).float() * (self.softmax_scale or query.shape[-1] ** -0.5)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        scores = scores.masked_fill(~mask.unsqueeze(-3), float("-inf"))
        if self.softmax_offset is not None:
            column = self.softmax_offset.float().view(1, groups, -1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat((scores, column), dim=-1)
        probabilities = scores.softmax(dim=-1)[..., : key.shape[2]]
        if self.dropout and self.training:
            with self.dropout_generator():
                probabilities = torch.nn.functional.dropout(probabilities, self.dropout)
        return (probabilities.to(value.dtype) @ value.unsqueeze(2)).flatten(1, 2)

    def _scaled_dot_product(self, query: Tensor, key: Tensor, value: Tensor, **masking: Any) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        with self.dropout_generator() if dropout else contextlib.nullcontext():
            return torch.nn.functional.scaled_dot_product_attention(
                query,
                key,
                value,
                dropout_p=dropout,
                scale=self.softmax_scale,
                enable_gqa=query.shape[1] != key.shape[1],
                **masking,
            )

    def _attend_flex(self, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
        settings = {"block_mask": mask, "scale": self.softmax_scale, "enable_gqa": query.shape[1] != key.shape[1]}
        if self.softcap is not None:
            settings["score_mod"] = _soft_cap(self.softcap)
        mixed: Tensor
        if self.softmax_offset is None:
            mixed = _compiled_flex()[0](query, key, value, **settings)
        else:
            mixed = _compiled_flex_with_sinks()(query, key, value, self.softmax_offset, **settings)
        return mixed

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the sharded state of megatron-core's checkpoints: each tensor-parallel rank has the sinks of its heads."""
        state = self.state_dict(prefix="", keep_vars=True)
        shards: dict[str, Any] = make_sharded_tensors_for_checkpoint(state, prefix, {"softmax_offset": 0}, sharded_offsets)
        return shards


def _sinks(config: TransformerConfig) -> torch.nn.Parameter:
    """Create the sinks: one logit per local head, which takes part in the softmax and has no value (gpt-oss)."""
    heads = config.num_attention_heads // config.tensor_model_parallel_size
    sinks = torch.nn.Parameter(torch.zeros(heads, dtype=config.params_dtype, device=torch.cuda.current_device()))
    set_tensor_model_parallel_attributes(sinks, is_parallel=True, dim=0, stride=1)
    return sinks


def sequence_share(tensor: Tensor, dimension: int, rank: int, ranks: int) -> Tensor:
    """Return the two chunks of context-parallel rank `rank` of `ranks`, from a whole sequence along `dimension`."""
    chunks = tensor.chunk(2 * ranks, dimension)
    return torch.cat((chunks[rank], chunks[-1 - rank]), dimension)


def document_numbers(borders: Tensor, length: int) -> Tensor:
    """Return every token's document number in its sample, int32 [b, length], from the borders [b, n + 1]."""
    positions = torch.arange(length, dtype=borders.dtype, device=borders.device).repeat(len(borders), 1)
    return torch.searchsorted(borders, positions, right=True, out_int32=True) - 1


@functools.lru_cache(maxsize=2)
def _mask(documents: Tensor | None, window: int | None, share: int, rank: int, ranks: int, device: torch.device) -> Any:
    """Return the mask between the `share` local queries and the gathered keys: dense on a CPU, a BlockMask on a GPU.

    The mask is cached, because all layers of a micro batch share it. The cache compares `documents` by identity.
    """
    keys = share * ranks
    positions = torch.arange(keys, device=device)
    key_positions = torch.cat([sequence_share(positions, 0, other, ranks) for other in range(ranks)])
    numbers = None if documents is None else document_numbers(documents, keys)
    rule = _rule(numbers, window, sequence_share(positions, 0, rank, ranks), key_positions)
    batch = 1 if documents is None else len(documents)
    if device.type == CPU:
        samples, queries = torch.arange(batch)[:, None, None, None], torch.arange(share)[:, None]
        return rule(samples, torch.tensor(0), queries, torch.arange(keys))
    return _compiled_flex()[1](rule, batch, None, share, keys, device=device)


def _rule(numbers: Tensor | None, window: int | None, query_positions: Tensor, key_positions: Tensor) -> Rule:
    """Return FlexAttention's mask function: whether a query sees a key, both identified by their index on this rank."""
    if numbers is not None:
        query_documents, key_documents = numbers[:, query_positions], numbers[:, key_positions]

    def sees(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = query_positions[query] - key_positions[key]
        is_visible = distance >= 0
        if window is not None:
            is_visible = is_visible & (distance <= window)
        if numbers is not None:
            is_visible = is_visible & (query_documents[sample, query] == key_documents[sample, key])
        return is_visible

    return sees


@functools.cache
def _soft_cap(cap: float) -> Callable[..., Tensor]:
    """Return the score function for FlexAttention. It is cached, because FlexAttention would compile for a new function again."""

    def capped(score: Tensor, *place: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return capped


@functools.cache
def _compiled_flex() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Compile FlexAttention and `create_block_mask`. In eager mode, both would build the whole matrix of scores."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    return torch.compile(flex_attention, dynamic=False), torch.compile(create_block_mask, dynamic=False)


@functools.cache
def _compiled_flex_with_sinks() -> Callable[..., Tensor]:
    """Compile attention with sinks: a sink scales the output of its head by sigmoid(n - sink).

    n is the logarithm of the softmax denominator, which FlexAttention returns.
    """
    from torch.nn.attention import flex_attention

    # torch 2.8 has no AuxRequest, and releases after 2.13 may lack `return_lse`.
    request = getattr(flex_attention, "AuxRequest", None)
    options = {"return_aux": request(lse=True)} if request else {"return_lse": True}

    def attend(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, **settings: Any) -> Tensor:
        mixed, statistics = flex_attention.flex_attention(query, key, value, **settings, **options)
        normalizers = statistics.lse if request else statistics
        scaled: Tensor = (mixed * torch.sigmoid(normalizers - sinks.float()[:, None]).unsqueeze(-1)).to(mixed.dtype)
        return scaled

    return torch.compile(attend, dynamic=False)
