"""Puts the kernels of `lt_train.kernels` into megatron-core's layers and loss.

What a kernel fuses spans modules of megatron-core: the sum that one module or layer ends with and the norm that the next begins
with, a projection's split and the rotation behind it. The modules stay, with their weights, their checkpoints and their hooks
(those of --overlap-param-gather wait for a module's weights when it is called); only how they call each other is ours.

A layer that a kernel does not fit (LayerNorm, biases, dropout, norms of queries and keys, partly rotated heads) keeps
megatron-core's way in that part. TransformerEngine's layers have their norms in its linear layers, and keep those.
"""

import functools
from functools import partial
from typing import Any, NamedTuple

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.mlp import MLP
from torch import Tensor

from lt_train.config.run_config import RunConfig
from lt_train.config.settings import memory, swiglu
from lt_train.config.settings.layers import PRODUCTS
from lt_train.config.settings.memory import SWIGLU
from lt_train.config.settings.swiglu import HOPPER, MULTIPLE
from lt_train.kernels.cross_entropy import cross_entropy
from lt_train.kernels.gemm_epilogues import COLUMNS
from lt_train.kernels.rms_norm import rms_norm
from lt_train.kernels.rotary import split_and_rotate
from lt_train.kernels.swiglu import swiglu as swiglu_kernel
from lt_train.models.attention import CausalAttention
from lt_train.ops import embedding
from lt_train.ops.fused_linear_cross_entropy import output_losses
from lt_train.ops.fused_swiglu_mlp import gated_mlp
from lt_train.runtime.device import CUDA


class Unmultiplied(NamedTuple):
    """What the output layer would multiply: hidden states [s, b, h] and its weight [V, h]."""

    hidden_states: Tensor
    weight: Tensor


class Unsummed(NamedTuple):
    """The residual stream behind a layer, as two tensors [s, b, h] that the next norm adds."""

    stream: Tensor
    addend: Tensor


def fuse(model: GPTModel, plan: RunConfig) -> None:
    """Let `model`'s layers use the kernels that fit them, and its loss too when no other rank has part of the logits."""
    layers = model.decoder.layers
    for number, layer in enumerate(layers, 1):
        is_before_norm = number < len(layers) or model.post_process
        _fuse_layer(layer, plan, sums=not is_before_norm or _keeps_layer_inputs(plan))
    if model.post_process and plan.architecture.family == "llama" and not plan.layers.transformer_engine:
        model.decoder.final_layernorm.forward = partial(_norm, model.decoder.final_layernorm)
    has_whole_table = plan.parallelism.tensor == 1 and not plan.precision.deterministic
    if model.pre_process and has_whole_table and model.config.gradient_accumulation_fusion:
        embedding.accumulate(model)
    if model.post_process and plan.parallelism.tensor == 1:
        model.compute_language_model_loss = _losses
        if _loses_in_product(plan):
            model.output_layer.forward = partial(_unmultiplied, model.output_layer)
            model.compute_language_model_loss = _output_losses


def _keeps_layer_inputs(plan: RunConfig) -> bool:
    """Whether megatron-core handles what goes from layer to layer, and needs a tensor."""
    recompute = plan.memory.recompute
    return plan.memory.offloaded_layers > 0 or (recompute is not None and recompute.granularity == "full")


def _fuse_layer(layer: Any, plan: RunConfig, sums: bool) -> None:
    architecture, recomputed = plan.architecture, plan.memory.recomputed_modules
    in_parts = {"layernorm", "mlp"} & set(recomputed)
    has_own_norms = architecture.family == "llama" and not plan.layers.transformer_engine
    if has_own_norms and not plan.layers.hidden_dropout and not in_parts:
        for norm in (layer.input_layernorm, layer.pre_mlp_layernorm):
            norm.forward = partial(_sum_and_norm, norm)
        layer.forward = partial(_layer, layer, sums)
    # What is offloaded, megatron-core's SwiGLU marks.
    if architecture.family == "llama" and type(layer.mlp) is MLP and not plan.memory.offloaded_layers:
        layer.mlp.forward = partial(_mlp, layer.mlp)
        if _gates_in_products(plan):
            layer.mlp.forward = partial(_gated_mlp, layer.mlp, keeps_activation=SWIGLU not in recomputed)
    rotates_all = architecture.family == "llama" and architecture.rotary_channels == architecture.kv_channels
    if rotates_all and not architecture.qk_layernorm and isinstance(layer.self_attention.core_attention, CausalAttention):
        layer.self_attention.forward = partial(_attention, layer.self_attention)


def _layer(
    layer: Any,
    sums: bool,
    hidden_states: Tensor | Unsummed,
    attention_mask: Tensor | None = None,
    rotary_pos_emb: Any = None,
    **unused: Any,
) -> tuple[Tensor | Unsummed, None]:
    """A transformer layer over the residual stream [s, b, h]; megatron-core's layers also return a context, here None."""
    normed, stream = layer.input_layernorm(*_parts(hidden_states))
    attended, _ = layer.self_attention(normed, attention_mask=attention_mask, rotary_pos_emb=rotary_pos_emb)
    normed, stream = layer.pre_mlp_layernorm(stream, attended)
    output, _ = layer.mlp(normed)
    return stream + output if sums else Unsummed(stream, output), None


def _parts(stream: Tensor | Unsummed) -> tuple[Tensor, Tensor | None]:
    return stream if isinstance(stream, Unsummed) else (stream, None)


def _sum_and_norm(norm: torch.nn.RMSNorm, stream: Tensor, addend: Tensor | None) -> tuple[Tensor, Tensor]:
    assert norm.eps is not None
    return rms_norm(stream, addend, norm.weight, norm.eps)


def _norm(norm: torch.nn.RMSNorm, stream: Tensor | Unsummed) -> Tensor:
    return _sum_and_norm(norm, *_parts(stream))[0]


def _attention(attention: Any, hidden_states: Tensor, attention_mask: Any, rotary_pos_emb: Any, **unused: Any) -> Any:
    mixed, _ = attention.linear_qkv(hidden_states)
    angles = rotary_pos_emb[0] if isinstance(rotary_pos_emb, tuple) else rotary_pos_emb
    query, key, value = split_and_rotate(
        mixed, *_sines(angles), attention.num_query_groups_per_partition, attention.hidden_size_per_attention_head
    )
    if attention.checkpoint_core_attention and attention.training:
        mixed = attention._checkpointed_attention_forward(
            query, key, value, attention_mask, attn_mask_type=attention.attn_mask_type
        )
    else:
        mixed = attention.core_attention(query, key, value, attention_mask)
    return attention.linear_proj(mixed)


@functools.lru_cache(maxsize=1)
def _sines(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines, float32 [s, size / 2], of megatron-core's `angles` [s, 1, 1, size], the same tensor for every layer."""
    half = angles[:, 0, 0, : angles.shape[-1] // 2].float()
    return half.cos().contiguous(), half.sin().contiguous()


def _loses_in_product(plan: RunConfig) -> bool:
    """Whether the output layer's product, of a rank that has all of it, can end with the loss.

    Padding would be in its sums, and the z-loss wants logits.
    """
    architecture, columns = plan.architecture, plan.padded_vocab_size
    rows = plan.batches.micro_batch_size * plan.batches.seq_length // plan.parallelism.context
    fits = columns == architecture.vocab_size and columns % COLUMNS == 0
    fits &= architecture.hidden_size % MULTIPLE == 0 and rows % MULTIPLE == 0
    trains = plan.precision.bf16 and not plan.memory.fully_sharded and not plan.optimization.z_loss_coeff
    asked = plan.layers.loss_in == PRODUCTS and plan.parallelism.device == CUDA
    return asked and fits and trains and _is_hopper()


def _gates_in_products(plan: RunConfig) -> bool:
    """Raises BadConfig when the GPU cannot and a recomputation was asked for that only the products have."""
    if swiglu.obstacle(plan.layers, plan.architecture, plan.precision, plan.parallelism, plan.memory.fully_sharded):
        return False
    for problem in memory.check_capability(torch.cuda.get_device_capability(), plan.memory, plan.precision):
        raise problem
    return _is_hopper()


def _is_hopper() -> bool:
    return torch.cuda.get_device_capability()[0] == HOPPER


def _gated_mlp(mlp: Any, hidden_states: Tensor, *unused: Any, keeps_activation: bool, **options: Any) -> tuple[Tensor, None]:
    for linear in (mlp.linear_fc1, mlp.linear_fc2):
        # Those of --overlap-param-gather, which would run if the module were called.
        for wait in linear._forward_pre_hooks.values():
            wait(linear, ())
    weights = mlp.linear_fc1.weight, mlp.linear_fc2.weight
    return gated_mlp(hidden_states, *weights, keeps_activation=keeps_activation), None


def _mlp(mlp: Any, hidden_states: Tensor, *unused: Any, **options: Any) -> Any:
    halves, _ = mlp.linear_fc1(hidden_states)
    return mlp.linear_fc2(swiglu_kernel(halves))


def _unmultiplied(layer: Any, hidden_states: Tensor, weight: Tensor | None = None, **unused: Any) -> tuple[Unmultiplied, None]:
    """`weight` is that of the embedding where it is the layer's, too."""
    return Unmultiplied(hidden_states, layer.weight if weight is None else weight), None


def _output_losses(labels: Tensor, logits: Unmultiplied) -> Tensor:
    """The loss of every token, float32 [b, s], of `labels` [b, s]."""
    samples, length = labels.shape
    rows = logits.hidden_states.reshape(length * samples, -1).contiguous()
    losses = output_losses(rows, logits.weight, labels.t().reshape(-1).contiguous())
    return losses.view(length, samples).t().contiguous()


def _losses(labels: Tensor, logits: Tensor) -> Tensor:
    """The loss of every token, float32 [b, s], of `labels` [b, s] and `logits` [s, b, columns]."""
    losses = cross_entropy(logits.view(-1, logits.shape[-1]), labels.t().reshape(-1).contiguous())
    return losses.view(logits.shape[:2]).t().contiguous()
