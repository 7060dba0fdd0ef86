"""Initial weights that do not depend on how the model is sharded.

A counter-based generator (SplitMix64, then Box-Muller) computes each weight from the seed of the run, the global name and layer
of the parameter, and the index of the weight in the whole parameter. So each rank draws exactly its shard, and runs with
different tensor, pipeline, data parallel and FSDP sizes start from the same weights and have comparable losses. The cost is 20
passes over the elements: 40 ns per weight and core on a CPU; on a GPU the passes are bound by its memory, and 8 billion weights
take seconds.
"""

import hashlib
import math
from collections.abc import Iterable

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from megatron.core.transformer.module import MegatronModule

from lt_shared.models.architecture import Architecture, mlps
from lt_train.process.device import CPU

RESIDUAL_OUTPUTS = ("linear_proj.weight", "linear_fc2.weight", "out_proj.weight")
CONVOLUTION = ".conv1d.weight"
# The first time steps of Mamba's heads, as in megatron-core.
STEPS = (0.001, 0.1)
EMBEDDINGS = ("word_embeddings.weight", "output_layer.weight")
# SplitMix64's increment and multipliers, as signed 64-bit numbers.
INCREMENT, FIRST_FACTOR, SECOND_FACTOR = -7046029254386353131, -4658895280553007687, -7723592293110705685
# Elements drawn at a time: the temporaries take 60 bytes per element.
BLOCK_ELEMENTS = 1 << 18
BLOCK_ELEMENTS_ON_GPU = 1 << 25


def local_tensors(model: MegatronModule) -> list[ShardedTensor]:
    """Return the local parameters with their names and offsets in the whole model. `data` is the memory of the parameter."""
    sharded = model.sharded_state_dict()
    apply_factories(sharded)
    return [tensor for tensor in nested_values(sharded) if isinstance(tensor, ShardedTensor) and tensor.data is not None]


@torch.no_grad()
def initialize(tensors: Iterable[ShardedTensor], architecture: Architecture, seed: int, width_multiplier: float = 1.0) -> None:
    """Fill every tensor in place: normal with the architecture's deviation, divided by sqrt(2 x layers) for the matrices that
    write to the residual stream (as in GPT-2), and by sqrt(`width_multiplier`) for all matrices of layers (muP).

    Norms become one, or zero if the layer adds one. Biases and padded vocabulary rows become zero. Convolutions have the
    deviation of torch's. A layer of gated delta or Kimi Delta Attention starts as megatron-core's gated delta: its decay rates
    uniform between 1 and 16, their biases one. So does a Mamba layer, with time steps between 0.001 and 0.1, but the
    biases of its convolution are zero. The numbers of xIELU get their first values.
    """
    norm = 0.0 if architecture.layernorm_zero_centered_gamma else 1.0
    for tensor in tensors:
        layer_axes = tensor.prepend_axis_num
        shape, offset = tensor.global_shape[layer_axes:], tensor.global_offset[layer_axes:]
        constant = mlps.XIELU_NUMBERS.get(tensor.key.rpartition(".")[2])
        is_of_mamba = ".mixer." in tensor.key
        if tensor.key.endswith(".mixer.D" if is_of_mamba else (".dt_bias", ".gated_norm.weight")):
            constant = 1.0
        if constant is not None:
            tensor.data.fill_(constant)
            continue
        stream = _stream(seed, tensor.key, tensor.global_offset[:layer_axes])
        if tensor.key.endswith(".A_log"):
            tensor.data.copy_(_uniform(_index(tensor.data, shape, offset), stream).mul_(15).add_(1).log_())
            continue
        if tensor.key.endswith(".mixer.dt_bias"):
            tensor.data.copy_(_step_biases(_uniform(_index(tensor.data, shape, offset), stream)))
            continue
        if len(shape) == 1:
            tensor.data.fill_(norm if tensor.key.endswith(("norm.weight", "norm_weight")) else 0.0)
            continue
        deviation = architecture.init_std
        if tensor.key.endswith(RESIDUAL_OUTPUTS):
            deviation /= math.sqrt(2 * architecture.num_layers)
        if not tensor.key.endswith(EMBEDDINGS):
            deviation /= math.sqrt(width_multiplier)
        if CONVOLUTION in tensor.key:
            deviation = 1 / math.sqrt(3 * shape[-1])
        _fill(tensor.data, shape, offset, stream, deviation)
        if tensor.key.endswith(EMBEDDINGS):
            tensor.data[max(0, architecture.vocab_size - offset[0]) :].zero_()


@torch.no_grad()
def clear(tensors: Iterable[ShardedTensor]) -> None:
    """Zero the weights before a checkpoint is loaded, because it may lack the rows that pad the vocabulary here."""
    for tensor in tensors:
        tensor.data.zero_()


def _stream(seed: int, key: str, layer: tuple[int, ...]) -> int:
    """Return the first position of a parameter's numbers in the generator's cycle of 2^64 numbers."""
    digest = hashlib.sha256(f"{seed}/{key}/{layer}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def _fill(share: torch.Tensor, shape: tuple[int, ...], offset: tuple[int, ...], stream: int, deviation: float) -> None:
    """Fill `share`, the part at `offset` of a parameter of `shape`, in blocks of whole rows."""
    block = BLOCK_ELEMENTS if share.device.type == CPU else BLOCK_ELEMENTS_ON_GPU
    rows = max(1, block // max(1, share[0].numel())) if len(share) else 1
    for start in range(0, len(share), rows):
        part = share[start : start + rows]
        part.copy_(_normal(_index(part, shape, (offset[0] + start, *offset[1:])), stream).mul_(deviation))


def _index(part: torch.Tensor, shape: tuple[int, ...], offset: tuple[int, ...]) -> torch.Tensor:
    """Return the positions, int64, of the elements of `part`, which begins at `offset` in a parameter of `shape`."""
    index = torch.zeros((), dtype=torch.int64, device=part.device)
    for size, first, count in zip(shape, offset, part.shape, strict=True):
        index = index.unsqueeze(-1) * size + torch.arange(first, first + count, device=part.device)
    return index


def _normal(index: torch.Tensor, stream: int) -> torch.Tensor:
    """Return float64 normal numbers (mean 0, deviation 1, at most 6.7 in size) at the positions `index` (int64) of a stream.

    Vectorized logarithms may differ in the last bit with the position in a tensor. Computed in float64, this does not show in
    float32.
    """
    bits = _bits(index, stream)
    radius = (_shifted(bits, 32).double() + 1).mul_(2**-32).log_().mul_(-2).sqrt_()
    angle = (bits & 0xFFFFFFFF).double().mul_(2 * math.pi * 2**-32)
    return radius.mul_(angle.cos_())


def _uniform(index: torch.Tensor, stream: int) -> torch.Tensor:
    """Return float64 numbers, uniform between 0 and 1, at the positions `index` (int64) of a stream."""
    return _shifted(_bits(index, stream), 32).double().mul_(2**-32)


def _step_biases(uniform: torch.Tensor) -> torch.Tensor:
    """Return the biases whose softplus is between `STEPS`, uniformly on a logarithmic scale, for numbers between 0 and 1."""
    least, largest = STEPS
    steps = uniform.mul_(math.log(largest / least)).add_(math.log(least)).exp_()
    return steps + torch.log(-torch.expm1(-steps))


def _bits(index: torch.Tensor, stream: int) -> torch.Tensor:
    """Return 64 random bits, as int64, for each position, in the memory of `index`."""
    bits = index.mul_(INCREMENT).add_(stream)
    for shift, factor in ((30, FIRST_FACTOR), (27, SECOND_FACTOR), (31, 1)):
        bits = bits.bitwise_xor_(_shifted(bits, shift)).mul_(factor)
    return bits


def _shifted(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Shift `bits` right by `count` and fill with zeros. torch's shift of signed numbers would repeat the sign."""
    return (bits >> count) & ((1 << (64 - count)) - 1)
