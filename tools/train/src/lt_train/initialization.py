"""Initial weights that depend on the seed and on a weight's place in the whole model, not on how the model is split.

Every parameter of the whole model has its own generator, seeded by the run's seed and the parameter's global name and layer. A
rank draws the whole parameter and keeps its share. Runs with different tensor, pipeline and data parallel sizes so start from the
same weights, and their losses can be compared. The price: each rank also draws what it throws away, one parameter at a time, on
the CPU.
"""

import hashlib
import math

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from megatron.core.models.gpt import GPTModel

from lt_shared.architecture import Architecture

RESIDUAL_OUTPUTS = ("linear_proj.weight", "linear_fc2.weight")
EMBEDDINGS = ("word_embeddings.weight", "output_layer.weight")


@torch.no_grad()
def initialize(model: GPTModel, architecture: Architecture, seed: int) -> None:
    """Fill every parameter in place: normal with the architecture's deviation, divided by sqrt(2 x layers) for the matrices that
    write to the residual stream (as in GPT-2); norms one, biases and padded vocabulary rows zero."""
    sharded = model.sharded_state_dict()
    apply_factories(sharded)
    for tensor in nested_values(sharded):
        if isinstance(tensor, ShardedTensor) and tensor.data is not None:
            tensor.data.copy_(_share_of(tensor, architecture, seed))


def _share_of(tensor: ShardedTensor, architecture: Architecture, seed: int) -> torch.Tensor:
    """This rank's part of the parameter, of the shape of `tensor.data`."""
    layer_axes = tensor.prepend_axis_num
    shape = tensor.global_shape[layer_axes:]
    offset = tensor.global_offset[layer_axes:]
    whole = _draw(tensor.key, tensor.global_offset[:layer_axes], shape, architecture, seed)
    return whole[tuple(slice(start, start + size) for start, size in zip(offset, tensor.data.shape, strict=True))]


def _draw(key: str, layer: tuple[int, ...], shape: tuple[int, ...], architecture: Architecture, seed: int) -> torch.Tensor:
    if len(shape) == 1:
        return torch.ones(shape) if key.endswith(("norm.weight", "norm_weight")) else torch.zeros(shape)
    deviation = architecture.init_std
    if key.endswith(RESIDUAL_OUTPUTS):
        deviation /= math.sqrt(2 * architecture.num_layers)
    digest = hashlib.sha256(f"{seed}/{key}/{layer}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    if not key.endswith(EMBEDDINGS):
        return torch.empty(shape).normal_(0.0, deviation, generator=generator)
    padded = torch.zeros(shape)
    padded[: architecture.vocab_size].normal_(0.0, deviation, generator=generator)
    return padded
