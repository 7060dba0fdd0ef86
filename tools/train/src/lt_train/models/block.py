"""The blocks of a decoder. In each block, a mixer and an MLP add to the residual stream [s, b, h]:

    stream = stream + mixer(norm(stream))
    stream = stream + mlp(norm(stream))

Norms are in front of mixer and MLP, behind them, or both (`Architecture.norm_placement`). Norms behind are part of the linear
layer that they follow. In models with `Architecture.mlp_layers`, a block has a mixer or an MLP alone. Parameters have the names
and checkpoint shards of megatron-core's TransformerBlock.
"""

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.utils import apply_prefix_mapping, replace_prefix_for_sharding
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import sharded_state_dict_default
from megatron.core.utils import make_viewless_tensor
from torch import Tensor

from lt_shared.models.architecture.sizes import ATTENTION, GATED_DELTA, MAMBA, MAMBA_AND_ATTENTION, SHORT_CONVOLUTION
from lt_train.models import recomputation
from lt_train.models.linear import Outputs

# The checkpoint names of norms in front of a linear layer, which TransformerEngine fuses into one module.
NORMS_OF_MIXERS = {
    ATTENTION: ("input_layernorm.", "self_attention.linear_qkv.layer_norm_"),
    **dict.fromkeys((GATED_DELTA, SHORT_CONVOLUTION), ("input_layernorm.", "self_attention.in_proj.layer_norm_")),
    MAMBA: ("input_layernorm.", "mixer.in_proj.layer_norm_"),
    MAMBA_AND_ATTENTION: ("input_layernorm.", "input_layernorm."),
}
# megatron-core's HybridModel has another name for the mixer of a Mamba layer.
OTHER_NAMES = {
    MAMBA: (("self_attention.", "mixer."),),
    MAMBA_AND_ATTENTION: (("self_attention.mamba.", "mixer."), ("self_attention.attention.", "self_attention.")),
}
NORM_OF_MLP = ("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")


class ResidualPair(NamedTuple):
    """The residual stream after a block, as two tensors [s, b, h] that the next norm adds."""

    stream: Tensor
    addend: Tensor


class Block(MegatronModule):  # type: ignore[misc]
    """Block `number` of the model, counted from 1. `norms` are identities if the norms are behind.

    A mixer or an MLP that the block lacks is an identity, as is its norm. `multiplier` scales the outputs that are added to the
    stream (Granite). `entries` maps prefixes of parameter names to prefixes in checkpoints.
    """

    def __init__(
        self,
        config: TransformerConfig,
        number: int,
        mixer: torch.nn.Module,
        mlp: torch.nn.Module,
        norms: tuple[torch.nn.Module, torch.nn.Module],
        entries: dict[str, str],
        multiplier: float = 1.0,
    ):
        super().__init__(config=config)
        self.layer_number, self.entries, self.multiplier = number, entries, multiplier
        # The attributes have the names of megatron-core's TransformerLayer, which become the parameter names in checkpoints.
        self.input_layernorm, self.self_attention = norms[0], mixer
        self.pre_mlp_layernorm, self.mlp = norms[1], mlp
        self.has_mixer, self.has_mlp = (not isinstance(part, IdentityOp) for part in (mixer, mlp))
        self.recomputes_mlp = recomputation.is_chosen(config, "mlp")

    def forward(self, stream: Tensor, documents: Tensor | None, angles: Tensor | None) -> Tensor:
        """Return the stream [s, b, h] after this block. `documents` and `angles` are arguments of the mixer."""
        if self.has_mixer:
            stream = self._add_to_stream(stream, *self.self_attention(self.input_layernorm(stream), documents, angles))
        if not self.has_mlp:
            return stream
        is_recomputed = self.recomputes_mlp and self.training
        return self._add_to_stream(stream, *recomputation.compute(self.mlp, is_recomputed, self.pre_mlp_layernorm(stream)))

    def _add_to_stream(self, stream: Tensor, output: Tensor, bias: Tensor | None) -> Tensor:
        """Add `bias` to the `output` of a linear layer, apply dropout, and add the result to the stream."""
        output, bias = self._multiply(output, bias)
        add = get_bias_dropout_add(self.training, self.config.bias_dropout_fusion)
        return add((output, bias), stream, self.config.hidden_dropout)  # type: ignore[no-any-return]

    def _multiply(self, output: Tensor, bias: Tensor | None) -> Outputs:
        """Multiply the output by `multiplier`. To fold the factor into the weights instead would not be exact."""
        if self.multiplier == 1:
            return output, bias
        return output * self.multiplier, None if bias is None else bias * self.multiplier

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        state: dict[str, Any] = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        # The keys of `state` stay, only the names in the checkpoint change.
        apply_prefix_mapping(state, {f"{prefix}{name}": f"{prefix}{entry}" for name, entry in self.entries.items()})
        return state


class ParallelBlock(Block):
    """A block whose mixer and MLP have the same input, the output of its only norm (Cohere)."""

    def forward(self, stream: Tensor, documents: Tensor | None, angles: Tensor | None) -> Tensor:
        normed = self.input_layernorm(stream)
        stream = self._add_to_stream(stream, *self.self_attention(normed, documents, angles))
        is_recomputed = self.recomputes_mlp and self.training
        return self._add_to_stream(stream, *recomputation.compute(self.mlp, is_recomputed, normed))


class FusedBlock(Block):
    """A block without dropout, whose norms also add to the stream (`SummingRMSNorm`).

    The kernel of the next norm, also of the next block's norm, computes each sum: 5 passes over the stream per block instead of
    8. With `adds`, the block returns one tensor instead of a pair, as a pipeline sends it and recomputation saves it.
    """

    def __init__(self, *parts: Any, adds: bool, **options: Any):
        super().__init__(*parts, **options)
        self.adds = adds

    def forward(  # type: ignore[override]
        self, stream: Tensor | ResidualPair, documents: Tensor | None, angles: Tensor | None
    ) -> Tensor | ResidualPair:
        pair = pair_of(stream)
        if self.has_mixer:
            normed, residual = self.input_layernorm(*pair)
            pair = residual, self._output(*self.self_attention(normed, documents, angles))
        if self.has_mlp:
            normed, residual = self.pre_mlp_layernorm(*pair)
            pair = residual, self._output(*self.mlp(normed))
        residual, output = pair
        assert output is not None, "a block has a mixer or an MLP"
        return residual + output if self.adds else ResidualPair(residual, output)

    def _output(self, output: Tensor, bias: Tensor | None) -> Tensor:
        output, bias = self._multiply(output, bias)
        return output if bias is None else output + bias


def pair_of(stream: Tensor | ResidualPair) -> tuple[Tensor, Tensor | None]:
    return stream if isinstance(stream, ResidualPair) else (stream, None)


class Blocks(MegatronModule):  # type: ignore[misc]
    """The blocks of a pipeline stage and, on the last stage, the last norm.

    `has_one_kind`: all blocks of the model have the same tensors, so checkpoints store one tensor for all layers.
    """

    def __init__(
        self,
        config: TransformerConfig,
        blocks: Sequence[Block],
        last_norm: torch.nn.Module | None,
        is_first: bool,
        has_one_kind: bool,
    ):
        super().__init__(config=config)
        self.is_first, self.has_one_kind = is_first, has_one_kind
        self.layers = torch.nn.ModuleList(blocks)
        self.final_layernorm = last_norm
        self.input_tensor: Tensor | None = None
        tracker = tensor_parallel.get_cuda_rng_tracker()
        self.dropout_generator = tracker.fork if config.sequence_parallel else contextlib.nullcontext

    def set_input_tensor(self, input_tensor: Tensor | None) -> None:
        """Set the input of the next forward pass, received from the previous stage."""
        self.input_tensor = input_tensor

    def forward(self, stream: Tensor | None, documents: Tensor | None, angles: Tensor | None) -> Tensor:
        """Return the stream [s, b, h] after the blocks, normalized on the last stage.

        The first stage gets embeddings as `stream`.
        """
        # The pipeline frees the storage of outputs, which therefore must not be views.
        stream = make_viewless_tensor(stream if self.is_first else self.input_tensor, requires_grad=True, keep_graph=True)
        received = stream
        # Sequence-parallel ranks hold different tokens, so each draws its dropout from a different random state.
        with self.dropout_generator():
            for numbers, is_recomputed in self._groups():
                stream = recomputation.compute(partial(self._run, numbers), is_recomputed, stream, documents, angles)
        if self.final_layernorm is not None:
            stream = make_viewless_tensor(self.final_layernorm(stream), requires_grad=True, keep_graph=True)
        # A stage without blocks must not return the tensor that it received, because the pipeline frees outputs after sending.
        return stream.clone() if stream is received and not self.is_first else stream

    def _groups(self) -> list[tuple[range, bool]]:
        """Return groups of blocks, each with whether the backward pass recomputes the group."""
        config, count = self.config, len(self.layers)
        if config.recompute_granularity != "full" or not self.training:
            return [(range(count), False)]
        size = config.recompute_num_layers
        # "uniform": groups of `size` layers save one input each. "block": the first `size` layers are recomputed, one by one.
        if config.recompute_method == "uniform":
            return [(range(first, min(first + size, count)), True) for first in range(0, count, size)]
        return [(range(number, number + 1), number < size) for number in range(count)]

    def _run(self, numbers: range, stream: Any, documents: Tensor | None, angles: Tensor | None) -> Any:
        for number in numbers:
            stream = self.layers[number](stream, documents, angles)
        return stream

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the sharded state of megatron-core's checkpoints: one tensor for all layers, or one per layer."""
        state: dict[str, Any] = {}
        block: Any
        for place, block in enumerate(self.layers):
            number = block.layer_number - 1
            # megatron-core stores equal layers as one tensor [layers, ...], and has a shard for this layer at offset `number`.
            if self.has_one_kind:
                stored, offsets = f"{prefix}layers.", [(0, number, self.config.num_layers)]
            else:
                stored, offsets = f"{prefix}layers.{number}.", []
            local_prefix = f"{prefix}layers.{place}."
            entries = block.sharded_state_dict(local_prefix, offsets, metadata)
            replace_prefix_for_sharding(entries, local_prefix, stored)
            state |= entries
        if self.final_layernorm is not None:
            group = parallel_state.get_tensor_model_parallel_group()
            state |= sharded_state_dict_default(self.final_layernorm, f"{prefix}final_layernorm.", (), metadata, group)
        return state
