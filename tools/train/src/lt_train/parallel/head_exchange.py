"""Context-parallel ranks exchange tokens for heads, for mixers whose state passes from token to token.

Each rank holds two chunks of a sample (`core_attention.sequence_share`). Before such a mixer, one all-to-all gives every rank all
tokens of a part of the heads; after it, a second one gives back all heads of the rank's tokens. Megatron-LM does the same for
Mamba and gated delta layers. The two exchanges move as many numbers as the mixer's projection has, whatever the number of ranks.

`parts` are consecutive channels, each with its number of groups. If the ranks are more than the groups of a part, several ranks
get the same group, as Mamba's heads of a group need the same B and C.
"""

from collections.abc import Sequence

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import all_to_all
from torch import Tensor

# Channels and groups of a part.
Part = tuple[int, int]


def rank_count() -> int:
    """Return the number of context-parallel ranks."""
    # megatron-core counts 0 without process groups.
    return max(1, int(parallel_state.get_context_parallel_world_size()))


def heads_of_all_tokens(channels: Tensor, parts: Sequence[Part]) -> Tensor:
    """Return this rank's share [s, b, c / N] of the `parts` of all tokens, for all channels [s / N, b, c] of its own tokens."""
    ranks = rank_count()
    if ranks == 1:
        return channels
    sent = torch.cat([share for rank in range(ranks) for share in _shares(channels, parts, rank, ranks, -1)], dim=-1)
    sent = sent.reshape(*sent.shape[:2], ranks, -1).permute(2, 0, 1, 3).flatten(0, 1)
    chunks = all_to_all(parallel_state.get_context_parallel_group(), sent).chunk(2 * ranks)
    # Rank r sent the chunks r and 2N - 1 - r.
    ordered = [chunks[2 * number if number < ranks else 4 * ranks - 1 - 2 * number] for number in range(2 * ranks)]
    return torch.cat(ordered)


def tokens_of_all_heads(channels: Tensor) -> Tensor:
    """Return all channels [s / N, b, c] of this rank's tokens, for this rank's share [s, b, c / N] of the channels."""
    ranks = rank_count()
    if ranks == 1:
        return channels
    chunks = channels.chunk(2 * ranks)
    sent = torch.cat([chunks[number] for rank in range(ranks) for number in (rank, 2 * ranks - 1 - rank)])
    received = all_to_all(parallel_state.get_context_parallel_group(), sent)
    shares: Tensor = received.unflatten(0, (ranks, -1)).permute(1, 2, 0, 3).flatten(2)
    return shares


def local_rows(parameter: Tensor, parts: Sequence[Part]) -> Tensor:
    """Return the rows of `parameter` for this rank's share of the `parts`. Gradients are summed as those of other parameters."""
    ranks = rank_count()
    if ranks == 1:
        return parameter
    return torch.cat(_shares(parameter, parts, parallel_state.get_context_parallel_rank(), ranks, 0))


def _shares(channels: Tensor, parts: Sequence[Part], rank: int, ranks: int, dimension: int) -> list[Tensor]:
    """Return one piece of each of the `parts` for `rank`."""
    counts = [min(groups, ranks) for _, groups in parts]
    sizes = [size // count for (size, _), count in zip(parts, counts, strict=True) for _ in range(count)]
    pieces = torch.split(channels, sizes, dimension)
    shares, first = [], 0
    for count in counts:
        shares.append(pieces[first + rank * count // ranks])
        first += count
    return shares
