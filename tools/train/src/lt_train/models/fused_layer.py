"""The forward pass of a transformer layer, and the loss, by the kernels of `lt_train.kernels`.

What a kernel fuses spans modules of megatron-core: the residual addition that ends one module or layer and the norm that begins
the next, a projection's split and RoPE behind it. The modules stay, with their weights, their checkpoints and their hooks (those
of --overlap-param-gather wait for a module's weights when it is called); only how they call each other is ours.

`lt_train.config.kernels` says which implementation each part has. A part whose implementation is not ours (LayerNorm, biases,
dropout, norms of queries and keys, partly rotated heads) keeps megatron-core's code. TransformerEngine's layers have their norms
in its linear layers, and keep those. Every function that is replaced here is listed in docs/megatron-core.md.
"""

import functools
from functools import partial
from typing import Any, NamedTuple

import torch
from megatron.core.models.gpt import GPTModel
from torch import Tensor
from torch.distributed import ProcessGroup

from lt_train.config.kernels import Kernels, is_plain_rms_norm
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.layers import FUSED_LINEAR, GEMM_EPILOGUE, TORCH, TRITON
from lt_train.kernels.cross_entropy import cross_entropy
from lt_train.kernels.rms_norm import rms_norm
from lt_train.kernels.rotary import HeadNorms, split_and_rotate
from lt_train.kernels.swiglu import swiglu as swiglu_kernel
from lt_train.ops import embedding
from lt_train.ops.fused_linear_cross_entropy import output_losses
from lt_train.ops.fused_swiglu_mlp import gated_mlp
from lt_train.ops.row_exchange import Exchange
from lt_train.parallel.ddp import wait_for_weights


class DeferredLogits:
    """What the output layer's GEMM would multiply: this rank's hidden states [s, b, h] and weight [V, h].

    No tuple and no dataclass: FSDP puts hooks on the tensors that it finds in a module's output. On a weight they would stay, one
    more for each micro batch.
    """

    def __init__(self, hidden_states: Tensor, weight: Tensor):
        self.hidden_states, self.weight = hidden_states, weight


class ResidualPair(NamedTuple):
    """The residual stream behind a layer, as two tensors [s, b, h] that the next norm adds."""

    stream: Tensor
    addend: Tensor


def fuse(model: GPTModel, run_config: RunConfig, kernels: Kernels, exchange: Exchange) -> None:
    """Let `model`'s layers, embedding and loss use `kernels`."""
    layers = model.decoder.layers
    for number, layer in enumerate(layers, 1):
        is_before_norm = number < len(layers) or model.post_process
        _fuse_layer(layer, kernels, exchange, adds_residual=not is_before_norm or _keeps_layer_inputs(run_config))
    if model.post_process and is_plain_rms_norm(run_config.architecture) and kernels.layers == TORCH:
        model.decoder.final_layernorm.forward = partial(_norm, model.decoder.final_layernorm)
    if model.pre_process and not run_config.precision.deterministic and _sums_embedding_gradient(model, run_config):
        embedding.accumulate(model)
    if model.post_process and kernels.cross_entropy == FUSED_LINEAR:
        model.output_layer.forward = partial(_defer_logits, model.output_layer)
        vocabulary = run_config.architecture.vocab_size
        model.compute_language_model_loss = partial(_output_losses, exchange=exchange, vocabulary=vocabulary)
    elif model.post_process and kernels.cross_entropy == TRITON:
        model.compute_language_model_loss = partial(_losses, group=exchange.group)


def _sums_embedding_gradient(model: GPTModel, run_config: RunConfig) -> bool:
    is_sharded = run_config.memory.fully_sharded and run_config.precision.half
    return is_sharded or bool(model.config.gradient_accumulation_fusion)


def _keeps_layer_inputs(run_config: RunConfig) -> bool:
    """Whether megatron-core handles what goes from layer to layer, and needs a tensor."""
    recompute = run_config.memory.recompute
    return run_config.memory.offloaded_layers > 0 or (recompute is not None and recompute.granularity == "full")


def _fuse_layer(layer: Any, kernels: Kernels, exchange: Exchange, adds_residual: bool) -> None:
    if kernels.norm == TRITON:
        for norm in (layer.input_layernorm, layer.pre_mlp_layernorm):
            norm.forward = partial(_sum_and_norm, norm)
        layer.forward = partial(_layer, layer, adds_residual)
    if kernels.swiglu == TRITON:
        layer.mlp.forward = partial(_mlp, layer.mlp)
    elif kernels.swiglu == GEMM_EPILOGUE:
        layer.mlp.forward = partial(_gated_mlp, layer.mlp, exchange, keeps_activation=not kernels.recomputes_swiglu)
    if kernels.rope == TRITON:
        layer.self_attention.forward = partial(_attention, layer.self_attention)


def _layer(
    layer: Any,
    adds_residual: bool,
    hidden_states: Tensor | ResidualPair,
    attention_mask: Tensor | None = None,
    rotary_pos_emb: Any = None,
    **unused: Any,
) -> tuple[Tensor | ResidualPair, None]:
    """A transformer layer over the residual stream [s, b, h]; megatron-core's layers also return a context, here None."""
    normed, stream = layer.input_layernorm(*_parts(hidden_states))
    attended = _with_bias(*layer.self_attention(normed, attention_mask=attention_mask, rotary_pos_emb=rotary_pos_emb))
    normed, stream = layer.pre_mlp_layernorm(stream, attended)
    output = _with_bias(*layer.mlp(normed))
    return stream + output if adds_residual else ResidualPair(stream, output), None


def _with_bias(output: Tensor, bias: Tensor | None) -> Tensor:
    """megatron-core leaves the bias of a module's last linear layer to whoever adds the residual stream."""
    return output if bias is None else output + bias


def _parts(stream: Tensor | ResidualPair) -> tuple[Tensor, Tensor | None]:
    return stream if isinstance(stream, ResidualPair) else (stream, None)


def _sum_and_norm(norm: torch.nn.RMSNorm, stream: Tensor, addend: Tensor | None) -> tuple[Tensor, Tensor]:
    assert norm.eps is not None
    return rms_norm(stream, addend, norm.weight, norm.eps)


def _norm(norm: torch.nn.RMSNorm, stream: Tensor | ResidualPair) -> Tensor:
    return _sum_and_norm(norm, *_parts(stream))[0]


def _attention(attention: Any, hidden_states: Tensor, attention_mask: Any, rotary_pos_emb: Any, **unused: Any) -> Any:
    mixed, _ = attention.linear_qkv(hidden_states)
    angles = rotary_pos_emb[0] if isinstance(rotary_pos_emb, tuple) else rotary_pos_emb
    query, key, value = split_and_rotate(
        mixed,
        *_sines(angles),
        attention.num_query_groups_per_partition,
        attention.hidden_size_per_attention_head,
        _head_norms(attention),
    )
    if attention.checkpoint_core_attention and attention.training:
        mixed = attention._checkpointed_attention_forward(
            query, key, value, attention_mask, attn_mask_type=attention.attn_mask_type
        )
    else:
        mixed = attention.core_attention(query, key, value, attention_mask)
    return attention.linear_proj(mixed)


def _head_norms(attention: Any) -> HeadNorms | None:
    if not attention.config.qk_layernorm:
        return None
    query, key = attention.q_layernorm, attention.k_layernorm
    wait_for_weights(query, key)
    return HeadNorms(query.weight, key.weight, query.eps)


@functools.lru_cache(maxsize=2)
def _sines(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines, float32 [s, size / 2], of megatron-core's `angles` [s, 1, 1, size], one or two for all layers."""
    half = angles[:, 0, 0, : angles.shape[-1] // 2].float()
    return half.cos().contiguous(), half.sin().contiguous()


def _gated_mlp(
    mlp: Any, exchange: Exchange, hidden_states: Tensor, *unused: Any, keeps_activation: bool, **options: Any
) -> tuple[Tensor, None]:
    wait_for_weights(mlp.linear_fc1, mlp.linear_fc2)
    weights = mlp.linear_fc1.weight, mlp.linear_fc2.weight
    return gated_mlp(hidden_states, *weights, exchange, keeps_activation=keeps_activation), None


def _mlp(mlp: Any, hidden_states: Tensor, *unused: Any, **options: Any) -> Any:
    gate_up, _ = mlp.linear_fc1(hidden_states)
    return mlp.linear_fc2(swiglu_kernel(gate_up))


def _defer_logits(layer: Any, hidden_states: Tensor, weight: Tensor | None = None, **unused: Any) -> tuple[DeferredLogits, None]:
    """`weight` is that of the embedding where it is the layer's, too."""
    return DeferredLogits(hidden_states, layer.weight if weight is None else weight), None


def _output_losses(labels: Tensor, logits: DeferredLogits, exchange: Exchange, vocabulary: int) -> Tensor:
    """The loss of every token, float32 [b, s], of `labels` [b, s]."""
    samples, length = labels.shape
    rows = logits.hidden_states.reshape(-1, logits.hidden_states.shape[-1]).contiguous()
    losses = output_losses(rows, logits.weight, labels.t().reshape(-1).contiguous(), exchange, vocabulary)
    return losses.view(length, samples).t().contiguous()


def _losses(labels: Tensor, logits: Tensor, group: ProcessGroup | None) -> Tensor:
    """The loss of every token, float32 [b, s], of `labels` [b, s] and this rank's `logits` [s, b, columns]."""
    losses = cross_entropy(logits.view(-1, logits.shape[-1]), labels.t().reshape(-1).contiguous(), group)
    return losses.view(logits.shape[:2]).t().contiguous()
