"""How Megatron cuts a layer's tensors for tensor parallelism: the rule for each name, and both directions of it.

Products whose outputs stay split (queries, keys and values; the first of the feed-forward part; the vocabulary) are cut by
rows, the ones that follow them by columns, everything else is the same on every rank. The first product of a gated feed-forward
part has all gates above all ups; each rank has its gates above its ups.
"""

import re
from collections.abc import Sequence

from lt_convert.tensors.tensor import Tensor, concatenate
from lt_shared.architecture import Architecture
from lt_shared.console import UsageError

_ROWS = re.compile(
    r"embedding\.word_embeddings\.weight|output_layer\.(weight|bias)|.*\.(linear_qkv|linear_fc1)\.(weight|bias)\d*"
)
_COLUMNS = re.compile(r".*\.(linear_proj|linear_fc2)\.weight\d*")
_GATED = re.compile(r".*\.linear_fc1\.(weight|bias)\d*")


def axis(name: str) -> int | None:
    """The axis along which Megatron's tensor of that name is cut, None for one that every rank has whole."""
    if _ROWS.fullmatch(name):
        return 0
    return 1 if _COLUMNS.fullmatch(name) else None


def join(name: str, pieces: Sequence[Tensor], gated: bool) -> Tensor:
    """The whole tensor of the pieces of all ranks."""
    along = axis(name)
    if along is None or len(pieces) == 1:
        return pieces[0]
    if gated and _GATED.fullmatch(name):
        halves = [_halves(piece) for piece in pieces]
        return concatenate(name, 0, [gate for gate, _ in halves] + [up for _, up in halves])
    return concatenate(name, along, pieces)


def split(name: str, tensor: Tensor, size: int, gated: bool) -> list[Tensor]:
    """The pieces of a tensor for `size` ranks, which must divide it."""
    along = axis(name)
    if along is None or size == 1:
        return [tensor] * size
    if gated and _GATED.fullmatch(name):
        gates, ups = (_even(half, 0, size) for half in _halves(tensor))
        return [concatenate(name, 0, pair) for pair in zip(gates, ups, strict=True)]
    return _even(tensor, along, size)


def _halves(tensor: Tensor) -> tuple[Tensor, Tensor]:
    rows = tensor.shape[0]
    return tensor.take(0, range(rows // 2)), tensor.take(0, range(rows // 2, rows))


def _even(tensor: Tensor, along: int, size: int) -> list[Tensor]:
    length = tensor.shape[along] // size
    return [tensor.take(along, range(rank * length, (rank + 1) * length)) for rank in range(size)]


def check_divides(architecture: Architecture, size: int) -> None:
    """Raises UsageError for a tensor parallel size that Megatron could not cut the model into."""
    for what, count in (
        ("attention heads", architecture.num_attention_heads),
        ("query groups", architecture.num_query_groups),
        ("feed-forward channels", architecture.ffn_hidden_size),
    ):
        if count % size:
            raise UsageError(f"tensor parallel size {size} does not divide the {count} {what}", "choose a divisor")
