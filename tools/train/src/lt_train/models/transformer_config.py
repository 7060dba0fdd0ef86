"""Convert the settings of a run into megatron-core's TransformerConfig.

lt-train's layers read it, and so do megatron-core's parallel layers, DDP, schedules and checkpoints. Fusions that need apex or
TransformerEngine are off.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from megatron.core.activations import squared_relu
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.transformer import TransformerConfig

from lt_shared.models.architecture import CLAMPED_SWIGLU_LIMIT, Architecture
from lt_train.config.run_config import RunConfig
from lt_train.config.settings import pipeline_layout
from lt_train.config.settings.layers import Layers
from lt_train.config.settings.memory import SWIGLU, Memory, Recompute
from lt_train.config.settings.parallelism import Parallelism
from lt_train.config.settings.precision import Precision
from lt_train.config.settings.routing import Routing
from lt_train.models.mixers import rope
from lt_train.process.device import CPU


def transformer_config(run_config: RunConfig, device: torch.device) -> TransformerConfig:
    """Return the TransformerConfig for every decoder in the run. `device` computes the layers."""
    architecture, optimization = run_config.architecture, run_config.optimization
    precision, parallelism, memory = run_config.precision, run_config.parallelism, run_config.memory
    on_cpu = device.type == CPU
    config = TransformerConfig(
        **_sizes(architecture),
        **_norms(architecture),
        **_attention(architecture, run_config.batches.seq_length),
        **_mlp(architecture, on_cpu),
        **_experts(architecture, run_config.layers, run_config.routing),
        moe_router_bias_update_rate=optimization.router_bias_update_rate,
        mtp_loss_scaling_factor=optimization.mtp_loss_scaling_factor,
        hidden_dropout=run_config.layers.hidden_dropout,
        attention_dropout=run_config.layers.attention_dropout,
        **_layout(parallelism, run_config.expert_tensor_parallel),
        **_pipeline_communication(is_interleaved=parallelism.interleaving is not None),
        **_number_formats(precision, memory),
        **_initialization(on_cpu, memory),
        **_fusions(on_cpu),
        gradient_accumulation_fusion=accumulates_in_gemms(precision, parallelism, memory),
        **_recomputation(memory.recompute),
    )
    # megatron-core's constructor refuses biases of a softmax router, which `lt_train.models.mlps.router` has (ERNIE 4.5).
    config.moe_router_enable_expert_bias = architecture.moe_router_enable_expert_bias
    # megatron-core 0.16 has no fields for sparse attention.
    config.lt_indexer_loss_coeff = optimization.indexer_loss_coeff
    config.lt_indexer_has_sparse_loss = optimization.indexer_has_sparse_loss
    return config


def _sizes(architecture: Architecture) -> dict[str, Any]:
    return {
        "num_layers": architecture.num_layers,
        "hidden_size": architecture.hidden_size,
        "ffn_hidden_size": architecture.ffn_hidden_size,
        "num_attention_heads": architecture.num_attention_heads,
        "num_query_groups": architecture.num_query_groups,
        "kv_channels": architecture.kv_channels,
    }


def _norms(architecture: Architecture) -> dict[str, Any]:
    return {
        "normalization": "LayerNorm" if architecture.has_layer_norm else "RMSNorm",
        "layernorm_epsilon": architecture.norm_epsilon,
        "layernorm_zero_centered_gamma": architecture.layernorm_zero_centered_gamma,
        "qk_layernorm": architecture.qk_layernorm,
        "persist_layer_norm": False,
    }


def _attention(architecture: Architecture, seq_length: int) -> dict[str, Any]:
    window = architecture.sliding_window
    return {
        "add_qkv_bias": architecture.add_qkv_bias,
        "softmax_scale": rope.score_scale(architecture),
        "softmax_type": "learnable" if architecture.attention_sinks else "vanilla",
        # The number of tokens that a query sees to its left and right, without its own. A window as long as the samples masks
        # none.
        "window_size": None if window is None or window >= seq_length else (window - 1, 0),
        "window_attn_skip_freq": architecture.window_attn_skip_freq,
    }


def _mlp(architecture: Architecture, on_cpu: bool) -> dict[str, Any]:
    is_gated, has_biases = architecture.is_gated, architecture.add_bias_linear or architecture.family == "gpt"
    fields = {"gated_linear_unit": is_gated, "add_bias_linear": has_biases}
    if architecture.activation == "clamped_swiglu":
        # Not fused, because megatron-core's kernel clamps before it adds the bias.
        offset_and_limit = {"glu_linear_offset": 1.0, "activation_func_clamp_value": CLAMPED_SWIGLU_LIMIT}
        return {**fields, "activation_func": quick_gelu, **offset_and_limit, "bias_activation_fusion": False}
    if architecture.activation == "relu2":
        # megatron-core has no kernel that adds a bias to it.
        return {**fields, "activation_func": squared_relu, "bias_activation_fusion": False}
    if architecture.activation == "xielu":
        # `Pattern` gives a layer its module; megatron-core's layers, which have no such activation, get none.
        return {**fields, "activation_func": _unknown_activation, "bias_activation_fusion": False}
    is_silu = is_gated and architecture.activation == "silu"
    activation = torch.nn.functional.silu if is_silu else _gelu(on_cpu)
    return {**fields, "activation_func": activation, "bias_activation_fusion": not on_cpu}


def _unknown_activation(hidden: torch.Tensor) -> torch.Tensor:
    raise AssertionError("megatron-core has no xIELU")


def _gelu(on_cpu: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return GPT's GELU, approximated by a hyperbolic tangent.

    megatron-core's fused kernel computes the approximation, too, but only if `activation_func` is the exact function.
    """
    return partial(torch.nn.functional.gelu, approximate="tanh") if on_cpu else torch.nn.functional.gelu


def _experts(architecture: Architecture, layers: Layers, routing: Routing) -> dict[str, Any]:
    if architecture.num_experts is None:
        return {}
    dense, moe_layers = architecture.moe_first_dense_layers, architecture.num_layers - architecture.moe_first_dense_layers
    scaling_factor = architecture.moe_router_topk_scaling_factor
    return {
        "num_moe_experts": architecture.num_experts,
        "moe_ffn_hidden_size": architecture.expert_size,
        "moe_shared_expert_intermediate_size": architecture.moe_shared_expert_intermediate_size,
        "moe_shared_expert_gate": architecture.moe_shared_expert_gate,
        # A list makes megatron-core store every layer under its own key.
        "moe_layer_freq": [0] * dense + [1] * moe_layers if dense else 1,
        "moe_router_topk": architecture.moe_router_topk,
        "moe_router_pre_softmax": architecture.moe_router_pre_softmax,
        "moe_router_score_function": architecture.moe_router_score_function,
        "moe_router_enable_expert_bias": (
            architecture.moe_router_enable_expert_bias and architecture.moe_router_score_function == "sigmoid"
        ),
        "moe_router_num_groups": architecture.moe_router_num_groups,
        "moe_router_group_topk": architecture.moe_router_group_topk,
        "moe_router_topk_scaling_factor": None if scaling_factor == 1 else scaling_factor,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": routing.load_balancing,
        "moe_z_loss_coeff": routing.z_loss_coeff or None,
        "moe_aux_loss_coeff": architecture.moe_aux_loss_coeff,
        "moe_token_dispatcher_type": layers.token_dispatcher,
    }


def _layout(parallelism: Parallelism, expert_tensor_parallel: int) -> dict[str, Any]:
    stage_layers = parallelism.stage_layers
    return {
        "pipeline_model_parallel_layout": stage_layers and pipeline_layout.megatron_layout(stage_layers),
        "tensor_model_parallel_size": parallelism.tensor,
        "sequence_parallel": parallelism.sequence,
        "pipeline_model_parallel_size": parallelism.pipeline,
        "virtual_pipeline_model_parallel_size": parallelism.interleaving,
        "num_layers_in_first_pipeline_stage": parallelism.first_stage_layers,
        "num_layers_in_last_pipeline_stage": parallelism.last_stage_layers,
        "context_parallel_size": parallelism.context,
        "expert_model_parallel_size": parallelism.expert,
        "expert_tensor_parallel_size": expert_tensor_parallel,
    }


def _pipeline_communication(is_interleaved: bool) -> dict[str, bool]:
    """Choose how pipeline ranks exchange activations and gradients. Two settings train an interleaved pipeline wrongly, with no
    error: `batch_p2p_comm` and `deallocate_pipeline_outputs`."""
    return {
        # With two ranks, the previous and the next rank are the same. Batched sends and receives between two ranks are matched by
        # their order alone, so a rank would take an activation for a gradient of the same shape. Single operations have a
        # communicator per direction.
        "batch_p2p_comm": not is_interleaved,
        "overlap_p2p_comm": is_interleaved,
        # megatron-core 0.16 frees an output of an interleaved stage while it is still being sent.
        "deallocate_pipeline_outputs": not is_interleaved,
    }


def _number_formats(precision: Precision, memory: Memory) -> dict[str, Any]:
    dtype = getattr(torch, precision.dtype)
    return {
        "bf16": precision.bf16,
        "fp16": precision.fp16,
        # FSDP's shards are the master weights.
        "params_dtype": torch.float32 if memory.fully_sharded else dtype,
        "pipeline_dtype": dtype,
        "deterministic_mode": precision.deterministic,
    }


def _initialization(on_cpu: bool, memory: Memory) -> dict[str, Any]:
    """Let modules allocate weights without filling them. `lt_train.parallel.initialization` fills them afterwards."""
    return {
        # Without this flag, megatron-core's layers ignore torch's default device and allocate on the GPU.
        "use_cpu_initialization": on_cpu or memory.fully_sharded,
        "init_model_with_meta_device": memory.fully_sharded,
        # With perform_initialization=False, megatron-core would not mark weights as split among tensor-parallel ranks. The
        # gradient norm would then count a single rank's share, and clipping would differ from a run on one rank.
        "init_method": _unchanged,
        "output_layer_init_method": _unchanged,
        "embedding_init_method": _unchanged,
    }


def _unchanged(weight: torch.Tensor) -> torch.Tensor:
    return weight


def _fusions(on_cpu: bool) -> dict[str, bool]:
    return {"bias_dropout_fusion": not on_cpu, "masked_softmax_fusion": False, "cross_entropy_loss_fusion": False}


def accumulates_in_gemms(precision: Precision, parallelism: Parallelism, memory: Memory) -> bool:
    """Return whether GEMMs add to gradient buffers.

    FSDP has no buffers, and in float32 the addition saves nothing. A pipeline needs it in every dtype, because only these GEMMs
    can be deferred. They also add every use of a weight separately, while autograd first sums the uses in a micro batch:
    otherwise pipeline schedules would differ in the last bits of a weight that multi-token prediction uses twice.
    """
    return (precision.half or parallelism.pipeline > 1) and not memory.fully_sharded


def _recomputation(recompute: Recompute | None) -> dict[str, Any]:
    """Choose the activations that the backward pass computes again. SwiGLU's kernels recompute SwiGLU without megatron-core."""
    if recompute is None or set(recompute.modules) == {SWIGLU}:
        return {}
    return {
        "recompute_granularity": recompute.granularity,
        "recompute_method": recompute.method,
        "recompute_num_layers": recompute.layers,
        "recompute_modules": [module for module in recompute.modules if module != SWIGLU] or None,
    }
