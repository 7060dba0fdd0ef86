"""The gated delta rule (Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464), computed in chunks by torch's matrix products.

Every head has a state S [dk, dv], zero where a document begins. A token with query q, key k, value v, decay a and strength b does

    S = a S
    S = S + b k (v - k S)
    output = q S

Within a chunk, the values that the tokens write depend on each other by a unit triangular system of the keys' products; one solve
gives them for all chunks at once. Only the state passes from chunk to chunk. Everything is float32, as the published models need.
"""

import torch
from torch import Tensor

from lt_train.ops.chunks import in_chunks, visibility

CHUNK = 64
# As flash-linear-attention normalizes queries and keys.
NORM_EPSILON = 1e-6


def gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, strength: Tensor, numbers: Tensor | None = None
) -> Tensor:
    """Return the outputs [b, s, value heads, dv] in the dtype of `value`.

    `query` and `key` are [b, s, key heads, dk], not yet normalized; consecutive value heads share a key head. `value` is [b, s,
    value heads, dv]; `log_decay`, at most 0, and `strength` are [b, s, value heads], float32. `numbers` [b, s] are the tokens'
    document numbers, None if a sample is one document.
    """
    length, key_heads = key.shape[1:3]
    chunk = min(CHUNK, length)
    padding = -length % chunk
    query = _normalized(query) * query.shape[-1] ** -0.5
    # [b, chunks, key heads, 1, tokens, dk], and [b, chunks, key heads, value heads of each, tokens, dv].
    query, key = (in_chunks(heads, chunk, padding, key_heads) for heads in (query, _normalized(key)))
    values = in_chunks(value.float(), chunk, padding, key_heads)
    log_decay, strength = (
        in_chunks(numbers.unsqueeze(-1), chunk, padding, key_heads) for numbers in (log_decay.float(), strength.float())
    )
    # The logarithm of the decay from the chunk's beginning to each token.
    decays = log_decay.squeeze(-1).cumsum(-1)
    visible, reads, writes, carries = visibility(numbers, chunk, padding, values.device)
    between = (decays.unsqueeze(-1) - decays.unsqueeze(-2)).masked_fill(~visible, float("-inf")).exp()
    from_start = (decays.exp() * reads).unsqueeze(-1)
    to_end = ((decays[..., -1:] - decays).exp() * writes).unsqueeze(-1)
    over_chunk = (decays[..., -1].exp() * carries)[..., None, None]

    system = strength * (key @ key.transpose(-1, -2)) * between
    sides = torch.cat((strength * values, strength * from_start * key), dim=-1)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    written, forgotten = torch.split(solved, [values.shape[-1], key.shape[-1]], dim=-1)
    scores = (query @ key.transpose(-1, -2)) * between
    queries, keys = query * from_start, key * to_end

    state = values.new_zeros(*values.shape[:1], *values.shape[2:4], key.shape[-1], values.shape[-1])
    outputs = []
    for index in range(values.shape[1]):
        update = written[:, index] - forgotten[:, index] @ state
        outputs.append(queries[:, index] @ state + scores[:, index] @ update)
        state = state * over_chunk[:, index] + keys[:, index].transpose(-1, -2) @ update
    # [b, chunks, key heads, value heads of each, tokens, dv] to [b, s, value heads, dv].
    stacked = torch.stack(outputs, dim=1).permute(0, 1, 4, 2, 3, 5)
    return stacked.reshape(value.shape[0], -1, *value.shape[2:])[:, :length].to(value.dtype)


def _normalized(heads: Tensor) -> Tensor:
    heads = heads.float()
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + NORM_EPSILON)
