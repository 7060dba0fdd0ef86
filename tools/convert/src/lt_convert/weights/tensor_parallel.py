"""How Megatron shards a layer's tensors for tensor parallelism, by name, and how the shards are joined again.

Column parallel linear layers (`linear_qkv`, `linear_fc1`, the output layer, projections up from a latent) and the embedding are
sharded along the rows of their weight [out, in], row parallel ones (`linear_proj`, `linear_fc2`) along its columns, sinks
(`softmax_offset`) by heads; every other tensor is replicated. Projections down to a latent are column parallel in local layers,
and replicated in TransformerEngine's.
With SwiGLU, `linear_fc1` is gate_up: all gate rows, then all up rows. Each rank's shard is its gate rows, then its up rows.
"""

import re
from collections.abc import Sequence

from lt_convert.tensors.tensor import Tensor, concatenate
from lt_shared.console import UsageError
from lt_shared.models.architecture import Architecture

_ROWS = re.compile(
    r"embedding\.word_embeddings\.weight|output_layer\.(weight|bias)|.*\.(linear_qkv|linear_fc1)\.(weight|bias)\d*"
    r"|.*\.core_attention\.softmax_offset"
    r"|.*\.(linear_q_proj|linear_q_up_proj|linear_kv_up_proj|eh_proj)\.weight"
)
_DOWN_PROJECTION = re.compile(r".*\.linear_(q|kv)_down_proj\.weight")
_COLUMNS = re.compile(r".*\.(linear_proj|linear_fc2)\.weight\d*")
_GATE_UP = re.compile(r".*\.linear_fc1\.(weight|bias)\d*")


def axis(name: str, local: bool = False) -> int | None:
    """The axis along which Megatron shards the tensor of that name, None for a replicated one; with `local`, in local layers."""
    if _ROWS.fullmatch(name) or (local and _DOWN_PROJECTION.fullmatch(name)):
        return 0
    return 1 if _COLUMNS.fullmatch(name) else None


def join(name: str, shards: Sequence[Tensor], gated: bool, local: bool = False) -> Tensor:
    """Join the ranks' shards, in the order of the ranks, into the whole tensor. `gated` says that the model has SwiGLU."""
    along = axis(name, local)
    if along is None or len(shards) == 1:
        return shards[0]
    if gated and _GATE_UP.fullmatch(name):
        pairs = [_gate_and_up(shard) for shard in shards]
        return concatenate(name, 0, [gate for gate, _ in pairs] + [up for _, up in pairs])
    return concatenate(name, along, shards)


def split(name: str, tensor: Tensor, size: int, gated: bool, local: bool = False) -> list[Tensor]:
    """The shards of a tensor for `size` ranks; `size` must divide the sharded axis."""
    along = axis(name, local)
    if along is None or size == 1:
        return [tensor] * size
    if gated and _GATE_UP.fullmatch(name):
        gates, ups = (_even_shards(part, 0, size) for part in _gate_and_up(tensor))
        return [concatenate(name, 0, pair) for pair in zip(gates, ups, strict=True)]
    return _even_shards(tensor, along, size)


def _gate_and_up(tensor: Tensor) -> tuple[Tensor, Tensor]:
    rows = tensor.shape[0]
    return tensor.take(0, range(rows // 2)), tensor.take(0, range(rows // 2, rows))


def _even_shards(tensor: Tensor, along: int, size: int) -> list[Tensor]:
    length = tensor.shape[along] // size
    return [tensor.take(along, range(rank * length, (rank + 1) * length)) for rank in range(size)]


def check_divides(architecture: Architecture, size: int) -> None:
    """Raises UsageError for a tensor parallel size into which Megatron cannot shard the model."""
    if size > 1 and architecture.num_experts and architecture.add_bias_linear:
        raise UsageError(
            f"tensor parallel size {size}: Megatron has experts with biases whole on a rank, and no legacy files of such"
            " ranks are written here",
            "use 1, or megatron-dist, which is read with any size",
        )
    latent, shared = architecture.latent_attention, architecture.moe_shared_expert_intermediate_size
    rows = {
        "attention heads": architecture.num_attention_heads,
        "channels of keys and values": 2 * architecture.kv_size,
        "feed-forward channels": architecture.ffn_hidden_size,
        **({"channels of an expert": architecture.expert_size} if architecture.num_experts else {}),
        **({"channels of the shared experts": shared} if shared else {}),
        **({"channels of the keys' latent": latent.kv_lora_rank + latent.qk_pos_emb_head_dim} if latent else {}),
        **({"channels of the queries' latent": latent.q_lora_rank} if latent and latent.q_lora_rank else {}),
    }
    for what, count in rows.items():
        if count % size:
            raise UsageError(f"tensor parallel size {size} does not divide the {count} {what}", "choose a divisor")
    groups = architecture.num_query_groups
    # Megatron shards the rows of queries, keys and values evenly even if ranks share a group.
    if groups % size and size % groups:
        raise UsageError(
            f"tensor parallel size {size} is neither a multiple nor a divisor of the {groups} query groups", "choose one"
        )
