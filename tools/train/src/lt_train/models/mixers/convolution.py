"""A causal convolution of single channels, and parameters that tensor-parallel ranks divide.

A convolution of a few taps mixes each channel with its own past, so tensor-parallel ranks divide the channels. Several layer
kinds have one in front of their state or in its place.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor
from torch.nn.functional import pad, silu

from lt_train.models.norms import compiled
from lt_train.parallel.head_exchange import Part, local_rows


class Convolution(torch.nn.Module):
    """The weight [channels of this rank, 1, taps] of a causal convolution; the last tap is the token's own.

    `bias` is None or a bias for each channel. With `has_silu`, the output goes through SiLU.
    """

    def __init__(self, config: TransformerConfig, channels: int, taps: int, *, has_silu: bool, has_bias: bool = False):
        super().__init__()
        self.has_silu = has_silu
        self.weight = sharded_parameter(config, channels, 1, taps)
        self.bias = sharded_parameter(config, channels) if has_bias else None

    def forward(self, channels: Tensor, numbers: Tensor | None, parts: Sequence[Part]) -> Tensor:
        """Return the convolution of `channels` [s, b, c]; `parts` are the channels of a tensor-parallel rank.

        With context parallelism, `channels` are this rank's share of the `parts` (`parallel.head_exchange`).
        """
        bias = None if self.bias is None else local_rows(self.bias, parts)
        return compiled(convolve)(channels, local_rows(self.weight, parts), numbers, self.has_silu, bias)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        state = self.state_dict(prefix="", keep_vars=True)
        sharded: dict[str, Any] = make_sharded_tensors_for_checkpoint(state, prefix, dict.fromkeys(state, 0), sharded_offsets)
        return sharded


def sharded_parameter(config: TransformerConfig, *shape: int) -> torch.nn.Parameter:
    """Create a parameter whose first dimension the tensor-parallel ranks divide."""
    local_shape = (shape[0] // config.tensor_model_parallel_size, *shape[1:])
    parameter = torch.nn.Parameter(torch.zeros(local_shape, dtype=config.params_dtype, device=torch.cuda.current_device()))
    set_tensor_model_parallel_attributes(parameter, is_parallel=True, dim=0, stride=1)
    return parameter


def convolve(channels: Tensor, weight: Tensor, numbers: Tensor | None, has_silu: bool, bias: Tensor | None = None) -> Tensor:
    """Return the convolution of `channels` [s, b, c] with `weight` [c, 1, taps], plus `bias` [c] if there is one, or its SiLU.

    A tap that reaches into an earlier document counts as zero; `numbers` [s, b] are document numbers.
    """
    length, taps = len(channels), weight.shape[-1]
    output = channels * weight[:, 0, -1]
    padded = pad(channels, (0, 0, 0, 0, taps - 1, 0))
    earlier = None if numbers is None else pad(numbers, (0, 0, taps - 1, 0), value=-1)
    for tap in range(taps - 1):
        shifted = padded[tap : tap + length]
        if numbers is not None and earlier is not None:
            shifted = shifted.masked_fill((earlier[tap : tap + length] != numbers).unsqueeze(-1), 0)
        output = output + shifted * weight[:, 0, tap]
    output = output if bias is None else output + bias
    return silu(output) if has_silu else output


def split_rows(whole: ShardedTensor, rows: Mapping[str, int]) -> ShardedTensorFactory:
    """Store the consecutive `rows` of this rank's shard of `whole` as tensors of their own, under its key with their names.

    Every part is divided among the ranks alike, so a checkpoint does not depend on their number.
    """
    layer_axes = whole.prepend_axis_num
    rank, ranks = whole.global_offset[layer_axes] // whole.local_shape[0], whole.axis_fragmentations[layer_axes]

    @torch.no_grad()
    def build(key: str, tensor: Tensor, replica_id: Any, flattened_range: slice | None) -> list[ShardedTensor]:
        assert flattened_range is None, "flat shards have no rows"
        parts = zip(rows, torch.split(tensor, list(rows.values())), strict=True)
        return [
            ShardedTensor.from_rank_offsets(f"{key}.{name}", part, (0, rank, ranks), replica_id=replica_id)
            for name, part in parts
        ]

    return ShardedTensorFactory(whole.key, whole.data, build, torch.cat, whole.replica_id)
