"""The gated delta rule (Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464), computed in chunks by torch's matrix products.

Every head has a state S [dk, dv], zero where a document begins. A token with query q, key k, value v, decay a and strength b does

    S = a S
    S = S + b k (v - k S)
    output = q S

In Kimi Delta Attention (arXiv:2510.26692), a has a number for every row of S, so for every channel of a key.

Within a chunk, the values that the tokens write depend on each other by a unit triangular system of the keys' products; one solve
gives them for all chunks at once. Only the state passes from chunk to chunk. Everything is float32, as the published models need.
"""

import torch
from torch import Tensor

from lt_train.kernels.delta_states import SMALLEST_SIDE, delta_states
from lt_train.ops.chunks import in_chunks, visibility

CHUNK = 64
# As flash-linear-attention normalizes queries and keys.
NORM_EPSILON = 1e-6


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    strength: Tensor,
    numbers: Tensor | None = None,
    by_triton: bool = False,
) -> Tensor:
    """Return the outputs [b, s, value heads, dv] in the dtype of `value`.

    `query` and `key` are [b, s, key heads, dk], not yet normalized; consecutive value heads share a key head. `value` is [b, s,
    value heads, dv]; `log_decay`, at most 0, and `strength` are [b, s, value heads], float32, or `log_decay` [b, s, value heads,
    dk] for every channel. `numbers` [b, s] are the tokens' document numbers, None if a sample is one document.
    `by_triton`: a Triton kernel computes the states.
    """
    length, key_heads = key.shape[1:3]
    # A power of two, because products with decays for every channel halve it.
    chunk = min(CHUNK, 1 << (length - 1).bit_length())
    padding = -length % chunk
    query = _normalized(query) * query.shape[-1] ** -0.5
    # [b, chunks, key heads, 1, tokens, dk], and [b, chunks, key heads, value heads per key head, tokens, dv].
    query, key = (in_chunks(heads, chunk, padding, key_heads) for heads in (query, _normalized(key)))
    values = in_chunks(value.float(), chunk, padding, key_heads)
    by_channel = log_decay.dim() == 4
    strength = in_chunks(strength.float().unsqueeze(-1), chunk, padding, key_heads)
    # The logarithm of the decay from the chunk's beginning to each token [b, chunks, key heads, .., tokens, dk or 1].
    log_decay = log_decay.float() if by_channel else log_decay.float().unsqueeze(-1)
    decays = in_chunks(log_decay, chunk, padding, key_heads).cumsum(-2)
    visible, reads, writes, carries = visibility(numbers, chunk, padding, values.device)
    from_start = decays.exp() * reads.unsqueeze(-1)
    to_end = (decays[..., -1:, :] - decays).exp() * writes.unsqueeze(-1)
    over_chunk = decays[..., -1, :].exp() * carries.unsqueeze(-1)

    products = _products_by_channel if by_channel else _products
    system = strength * products(key, key, decays, visible)
    scores = products(query, key, decays, visible)
    sides = torch.cat((strength * values, strength * from_start * key), dim=-1)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    written, forgotten = torch.split(solved, [values.shape[-1], key.shape[-1]], dim=-1)
    queries, keys = query * from_start, key * to_end

    # [b, chunks, heads, ..]: all value heads in one axis.
    over = over_chunk.expand(*forgotten.shape[:4], key.shape[-1])
    parts = (part.flatten(2, 3) for part in (written, forgotten, keys, over))
    states, updates = (delta_states if by_triton and chunk >= SMALLEST_SIDE else states_by_torch)(*parts)
    scores = scores.expand(*written.shape[:4], chunk, chunk)
    outputs = queries.flatten(2, 3) @ states + scores.flatten(2, 3) @ updates
    # [b, chunks, value heads, tokens, dv] to [b, s, value heads, dv].
    return outputs.transpose(2, 3).reshape(value.shape[0], -1, *value.shape[2:])[:, :length].to(value.dtype)


def states_by_torch(written: Tensor, forgotten: Tensor, keys: Tensor, over: Tensor) -> tuple[Tensor, Tensor]:
    """Return as `lt_train.kernels.delta_states`, chunk after chunk by torch's operations."""
    state = written.new_zeros(*written.shape[:1], written.shape[2], keys.shape[-1], written.shape[-1])
    states, updates = [], []
    # As in mamba_scan, unbind has one gradient, where each index would have one of all chunks.
    for chunk in zip(written.unbind(1), forgotten.unbind(1), keys.unbind(1), over.unbind(1), strict=True):
        chunk_written, chunk_forgotten, chunk_keys, chunk_decay = chunk
        states.append(state)
        updates.append(chunk_written - chunk_forgotten @ state)
        state = state * chunk_decay.unsqueeze(-1) + chunk_keys.mT @ updates[-1]
    return torch.stack(states, dim=1), torch.stack(updates, dim=1)


def _normalized(heads: Tensor) -> Tensor:
    heads = heads.float()
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + NORM_EPSILON)


def _products(rows: Tensor, keys: Tensor, decays: Tensor, visible: Tensor) -> Tensor:
    """Return the products of `rows` and `keys` [.., tokens, dk], decayed from a key's token to a row's; 0 if not `visible`."""
    between = (decays - decays.transpose(-1, -2)).masked_fill(~visible, float("-inf")).exp()
    return (rows @ keys.transpose(-1, -2)) * between


def _products_by_channel(rows: Tensor, keys: Tensor, decays: Tensor, visible: Tensor) -> Tensor:
    """Return the products as `_products`, with `decays` [.., tokens, dk] for every channel.

    The lower triangle is halved again and again into a square and two triangles. Between the tokens of a square lies the border
    of its halves, so both factors of the decay, from a key's token to the border and from there to a row's, are at most 1: no
    exponential overflows, and no product of three axes is kept.
    """
    tokens = rows.shape[-2]
    # [.., triangles, 1, 1]: at first every token is a triangle, whose decay to itself is 1.
    triangles = (rows * keys).sum(-1)[..., None, None]
    size = 1
    while size < tokens:
        row_pairs, key_pairs, decay_pairs = (
            part.reshape(*part.shape[:-2], -1, 2, size, part.shape[-1]) for part in (rows, keys, decays)
        )
        first, second = decay_pairs[..., 0, :, :], decay_pairs[..., 1, :, :]
        border = first[..., -1:, :]
        square = (row_pairs[..., 1, :, :] * (second - border).exp()) @ (
            key_pairs[..., 0, :, :] * (border - first).exp()
        ).transpose(-1, -2)
        pairs = triangles.expand(*square.shape[:-3], -1, -1, -1).reshape(*square.shape[:-2], 2, size, size)
        upper = torch.cat((pairs[..., 0, :, :], torch.zeros_like(square)), dim=-1)
        triangles = torch.cat((upper, torch.cat((square, pairs[..., 1, :, :]), dim=-1)), dim=-2)
        size *= 2
    return triangles.squeeze(-3).masked_fill(~visible, 0)
