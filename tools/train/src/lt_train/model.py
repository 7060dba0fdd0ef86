"""megatron-core's GPTModel for an `Architecture`, on this rank's share of the layers and heads."""

from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module

from lt_shared.architecture import Architecture, RopeScaling
from lt_shared.console import BadConfig
from lt_train.device import CPU
from lt_train.initialization import initialize, tensors_of
from lt_train.layers import block_spec, exclude_padding
from lt_train.plan import Plan
from lt_train.z_loss import add_z_loss


def transformer_config(plan: Plan, device: torch.device) -> TransformerConfig:
    """megatron-core's configuration. Fusions that need apex or TransformerEngine are off."""
    architecture = plan.architecture
    llama = architecture.family == "llama"
    dtype = getattr(torch, plan.precision.dtype)
    on_cpu = device.type == CPU
    return TransformerConfig(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        ffn_hidden_size=architecture.ffn_hidden_size,
        num_attention_heads=architecture.num_attention_heads,
        num_query_groups=architecture.num_query_groups,
        kv_channels=architecture.kv_channels,
        normalization="RMSNorm" if llama else "LayerNorm",
        layernorm_epsilon=architecture.norm_epsilon,
        gated_linear_unit=llama,
        activation_func=torch.nn.functional.silu if llama else torch.nn.functional.gelu,
        add_bias_linear=not llama,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=plan.parallelism.tensor,
        pipeline_model_parallel_size=plan.parallelism.pipeline,
        virtual_pipeline_model_parallel_size=plan.parallelism.interleaving,
        num_layers_in_first_pipeline_stage=plan.parallelism.first_stage_layers,
        num_layers_in_last_pipeline_stage=plan.parallelism.last_stage_layers,
        context_parallel_size=plan.parallelism.context,
        # With interleaved stages and two pipeline ranks, the neighbour before and the one behind are the same rank. Batched
        # messages between two ranks are matched by their order alone: an activation and a gradient change places, they have one
        # shape, and the model trains on without an error. One message at a time, each direction has its own communicator.
        overlap_p2p_comm=plan.parallelism.interleaving is not None,
        batch_p2p_comm=plan.parallelism.interleaving is None,
        sequence_parallel=plan.parallelism.sequence,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=plan.precision.bf16,
        fp16=plan.precision.fp16,
        deterministic_mode=plan.precision.deterministic,
        use_cpu_initialization=on_cpu,
        # perform_initialization=False would also leave out the attributes that mark a weight as split among tensor-parallel
        # ranks; the gradient norm then counts one rank's share of it only, and clipping differs from the single-rank run.
        init_method=_leave,
        output_layer_init_method=_leave,
        embedding_init_method=_leave,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=not on_cpu,
        bias_dropout_fusion=not on_cpu,
        masked_softmax_fusion=False,
        cross_entropy_loss_fusion=False,
        persist_layer_norm=False,
        deallocate_pipeline_outputs=True,
    )


def _leave(weight: torch.Tensor) -> torch.Tensor:
    """In place of megatron-core's initialisation: `initialize` does it afterwards."""
    return weight


def build(plan: Plan, device: torch.device) -> list[DistributedDataParallel]:
    """The model of this rank, initialised, wrapped for data parallelism: a chunk for each of its pipeline stages."""
    config = transformer_config(plan, device)
    if plan.parallelism.interleaving is None:
        return [_build_chunk(plan, config, device, None)]
    return [_build_chunk(plan, config, device, stage) for stage in range(plan.parallelism.interleaving)]


def _build_chunk(
    plan: Plan, config: TransformerConfig, device: torch.device, virtual_stage: int | None
) -> DistributedDataParallel:
    architecture = plan.architecture
    model = GPTModel(
        config=config,
        transformer_layer_spec=block_spec(config, virtual_stage),
        vocab_size=plan.padded_vocab_size,
        max_sequence_length=architecture.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=virtual_stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=virtual_stage),
        share_embeddings_and_output_weights=architecture.tie_embeddings,
        position_embedding_type="rope" if architecture.family == "llama" else "learned_absolute",
        rotary_base=int(architecture.rotary_base),
        rope_scaling=architecture.rope_scaling is not None,
        rope_scaling_factor=_rope_factor(architecture),
        vp_stage=virtual_stage,
    )
    if model.post_process:
        model.output_layer.register_forward_hook(partial(_without_padding, plan))
        if plan.optimization.z_loss_coeff:
            add_z_loss(model, plan.optimization.z_loss_coeff)
    model.to(device)
    initialize(tensors_of(model), architecture, plan.seed)
    wrapped = Float16Module(config, model) if plan.precision.half else model
    data_parallel = DistributedDataParallelConfig(
        use_distributed_optimizer=plan.parallelism.distributed_optimizer,
        check_for_nan_in_grad=False,
        overlap_grad_reduce=False,
    )
    return DistributedDataParallel(config=config, ddp_config=data_parallel, module=wrapped)


def _without_padding(
    plan: Plan, layer: torch.nn.Module, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, Any]
) -> tuple[torch.Tensor, Any]:
    logits, bias = outputs
    first = parallel_state.get_tensor_model_parallel_rank() * logits.shape[-1]
    return exclude_padding(logits, first, plan.architecture.vocab_size), bias


def unwrapped(model: DistributedDataParallel) -> GPTModel:
    """The GPTModel inside its wrappers."""
    inner = model.module
    return inner.module if isinstance(inner, Float16Module) else inner


def _rope_factor(architecture: Architecture) -> float:
    """The factor for megatron-core, whose other three scaling numbers are constants. Raises BadConfig when they differ."""
    scaling = architecture.rope_scaling
    if scaling is None:
        return 1.0
    if scaling != RopeScaling(factor=scaling.factor):
        raise BadConfig(f"{architecture.name}: megatron-core has no setting for this rope scaling: {scaling}")
    return scaling.factor
