"""megatron-core's GPTModel for an `Architecture`, on this rank's share of the layers and heads."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module

from lt_shared.architecture import CLAMPED_SWIGLU_LIMIT, Architecture
from lt_train.config.kernels import GROUPED_BY_QUACK, GROUPED_FP8, PEER_MEMORY, Kernels, exchanges_whole_tokens
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.layers import FUSED_LINEAR
from lt_train.config.settings.memory import SWIGLU
from lt_train.models import multipliers, rope, rotary_tables
from lt_train.models.biased_experts import compute_biased_experts
from lt_train.models.fp8_linear import use_fp8
from lt_train.models.group_limited_router import score_groups
from lt_train.models.grouped_experts import use_bfloat16_router, use_fused_router, use_grouped_experts
from lt_train.models.layer_specs import block_spec, exclude_padding, layer_spec
from lt_train.models.multi_token_prediction import PredictingModel
from lt_train.models.parallel_linear import overlap
from lt_train.models.z_loss import add_z_loss
from lt_train.ops import expert_rows, wgrad_accumulation
from lt_train.ops.expert_mlp import Operations
from lt_train.ops.fp8_grouped_gemm import Fp8GroupedGemms
from lt_train.ops.grouped_gemm import QuackGroupedGemms, TorchGroupedGemms
from lt_train.ops.row_exchange import Exchange
from lt_train.parallel import tp_comm_overlap
from lt_train.parallel.ddp import Chunk, building, wrap
from lt_train.parallel.exchange import exchange_of
from lt_train.parallel.fsdp import FullySharded
from lt_train.parallel.peer_buffers import SymmetricBuffer
from lt_train.parallel.shard_collectives import Collectives
from lt_train.runtime.device import CPU, CUDA


def transformer_config(run_config: RunConfig, device: torch.device) -> TransformerConfig:
    """megatron-core's configuration. Fusions that need apex or TransformerEngine are off."""
    architecture = run_config.architecture
    llama = architecture.family == "llama"
    dtype = getattr(torch, run_config.precision.dtype)
    on_cpu = device.type == CPU
    config = TransformerConfig(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        ffn_hidden_size=architecture.ffn_hidden_size,
        num_attention_heads=architecture.num_attention_heads,
        num_query_groups=architecture.num_query_groups,
        kv_channels=architecture.kv_channels,
        normalization="RMSNorm" if llama else "LayerNorm",
        layernorm_epsilon=architecture.norm_epsilon,
        layernorm_zero_centered_gamma=architecture.layernorm_zero_centered_gamma,
        gated_linear_unit=llama,
        **_activation(architecture, on_cpu),
        add_bias_linear=architecture.add_bias_linear or not llama,
        add_qkv_bias=architecture.add_qkv_bias,
        qk_layernorm=architecture.qk_layernorm,
        softmax_scale=rope.score_scale(architecture),
        mtp_loss_scaling_factor=run_config.optimization.mtp_loss_scaling_factor,
        window_size=_window(run_config),
        window_attn_skip_freq=architecture.window_attn_skip_freq,
        softmax_type="learnable" if architecture.attention_sinks else "vanilla",
        hidden_dropout=run_config.layers.hidden_dropout,
        attention_dropout=run_config.layers.attention_dropout,
        **_experts(run_config),
        tensor_model_parallel_size=run_config.parallelism.tensor,
        pipeline_model_parallel_size=run_config.parallelism.pipeline,
        virtual_pipeline_model_parallel_size=run_config.parallelism.interleaving,
        num_layers_in_first_pipeline_stage=run_config.parallelism.first_stage_layers,
        num_layers_in_last_pipeline_stage=run_config.parallelism.last_stage_layers,
        context_parallel_size=run_config.parallelism.context,
        **_pipeline_communication(run_config.parallelism.interleaving is not None),
        sequence_parallel=run_config.parallelism.sequence,
        tp_comm_overlap=_overlaps_by_engine(run_config),
        pipeline_dtype=dtype,
        params_dtype=torch.float32 if run_config.memory.fully_sharded else dtype,
        bf16=run_config.precision.bf16,
        fp16=run_config.precision.fp16,
        deterministic_mode=run_config.precision.deterministic,
        # Without it megatron-core's layers allocate on the GPU whatever torch's default device; TransformerEngine's do not.
        use_cpu_initialization=on_cpu or (run_config.memory.fully_sharded and not run_config.layers.transformer_engine),
        init_model_with_meta_device=run_config.memory.fully_sharded,
        # perform_initialization=False would also leave out the attributes that mark a weight as split among tensor-parallel
        # ranks; the gradient norm then counts one rank's share of it only, and clipping differs from the single-rank run.
        init_method=_leave,
        output_layer_init_method=_leave,
        embedding_init_method=_leave,
        gradient_accumulation_fusion=_accumulates_in_gemms(run_config),
        bias_dropout_fusion=not on_cpu,
        apply_rope_fusion=run_config.layers.transformer_engine,
        masked_softmax_fusion=False,
        cross_entropy_loss_fusion=False,
        persist_layer_norm=False,
        **_saved_activations(run_config),
        **_fp8(run_config),
    )
    rope.lengthen(config, architecture)
    return config


def _accumulates_in_gemms(run_config: RunConfig) -> bool:
    """FSDP has no buffers to add to; without 16 bits nothing is gained, but only these GEMMs can be deferred."""
    half_or_deferred = run_config.precision.half or run_config.parallelism.defers_weight_gradients
    return half_or_deferred and not run_config.memory.fully_sharded


def _window(run_config: RunConfig) -> tuple[int, int] | None:
    """How far a query sees to the left and to the right, beside its own token; None if a sample is no longer than the window."""
    window = run_config.architecture.sliding_window
    return None if window is None or window >= run_config.batches.seq_length else (window - 1, 0)


def _activation(architecture: Architecture, on_cpu: bool) -> dict[str, Any]:
    if architecture.activation == "clamped_swiglu":
        # The fused kernel clamps before it adds the bias.
        offset_and_limit = {"glu_linear_offset": 1.0, "activation_func_clamp_value": CLAMPED_SWIGLU_LIMIT}
        return {"activation_func": quick_gelu, **offset_and_limit, "bias_activation_fusion": False}
    silu = architecture.family == "llama" and architecture.activation == "silu"
    activation = torch.nn.functional.silu if silu else _gelu(on_cpu)
    return {"activation_func": activation, "bias_activation_fusion": not on_cpu}


def _gelu(on_cpu: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """GPT's, by hyperbolic tangent. megatron-core's fused kernel computes it so, and wants the exact one's name for it."""
    return partial(torch.nn.functional.gelu, approximate="tanh") if on_cpu else torch.nn.functional.gelu


def _experts(run_config: RunConfig) -> dict[str, Any]:
    architecture = run_config.architecture
    if architecture.num_experts is None:
        return {}
    dense, layers = architecture.moe_first_dense_layers, architecture.num_layers
    return {
        "num_moe_experts": architecture.num_experts,
        "moe_ffn_hidden_size": architecture.expert_size,
        "moe_shared_expert_intermediate_size": architecture.moe_shared_expert_intermediate_size,
        # A list makes megatron-core store every layer under its own key.
        "moe_layer_freq": [0] * dense + [1] * (layers - dense) if dense else 1,
        "moe_router_topk": architecture.moe_router_topk,
        "moe_router_pre_softmax": architecture.moe_router_pre_softmax,
        "moe_router_score_function": architecture.moe_router_score_function,
        "moe_router_enable_expert_bias": architecture.moe_router_enable_expert_bias,
        "moe_router_num_groups": architecture.moe_router_num_groups,
        "moe_router_group_topk": architecture.moe_router_group_topk,
        "moe_router_topk_scaling_factor": _unless_one(architecture.moe_router_topk_scaling_factor),
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": architecture.moe_aux_loss_coeff,
        "moe_router_bias_update_rate": run_config.optimization.router_bias_update_rate,
        "moe_token_dispatcher_type": run_config.layers.token_dispatcher,
        "moe_grouped_gemm": run_config.layers.grouped_experts and run_config.layers.transformer_engine,
        "expert_model_parallel_size": run_config.parallelism.expert,
        "expert_tensor_parallel_size": run_config.expert_tensor_parallel,
    }


def _unless_one(factor: float) -> float | None:
    return None if factor == 1 else factor


def _saved_activations(run_config: RunConfig) -> dict[str, Any]:
    """What is kept of the forward pass for the backward pass, and where."""
    recompute, offloaded = run_config.memory.recompute, run_config.memory.offloaded_layers
    settings: dict[str, Any] = {"cpu_offloading": offloaded > 0, "cpu_offloading_num_layers": offloaded}
    if recompute is None or set(recompute.modules) == {SWIGLU}:
        return settings
    settings["recompute_granularity"] = recompute.granularity
    settings["recompute_method"] = recompute.method
    settings["recompute_num_layers"] = recompute.layers
    settings["recompute_modules"] = [module for module in recompute.modules if module != SWIGLU] or None
    return settings


def _fp8(run_config: RunConfig) -> dict[str, Any]:
    """TransformerEngine's fp8; that of the torch layers is put in later."""
    if not run_config.precision.fp8_format or not run_config.layers.transformer_engine:
        return {}
    return {"fp8": run_config.precision.fp8_format, "fp8_recipe": run_config.precision.fp8_recipe}


def _pipeline_communication(interleaved: bool) -> dict[str, bool]:
    """How pipeline ranks exchange activations and gradients. Two settings train an interleaved pipeline wrongly, with no error.

    With two ranks, the previous and the next are the same. Batched point-to-point operations between two ranks are matched by
    their order alone: what was sent forward is received as if it came from behind, and has the right shape. One by one, each
    direction has a communicator of its own. And with deallocate_pipeline_outputs megatron-core 0.16 frees an output while it is
    still being sent.
    """
    return {
        "batch_p2p_comm": not interleaved,
        "overlap_p2p_comm": interleaved,
        "deallocate_pipeline_outputs": not interleaved,
    }


def _leave(weight: torch.Tensor) -> torch.Tensor:
    """In place of megatron-core's initialisation: `initialize` does it afterwards."""
    return weight


def build(run_config: RunConfig, kernels: Kernels, device: torch.device) -> list[Chunk]:
    """The model of this rank, initialised, wrapped for data parallelism: a chunk for each of its pipeline stages."""
    config = transformer_config(run_config, device)
    if config.gradient_accumulation_fusion:
        wgrad_accumulation.accumulate_in_gemms()
    if _overlaps_by_engine(run_config):
        tp_comm_overlap.make_buffers(run_config)
    exchange = exchange_of(run_config, kernels)
    stages = [None] if run_config.parallelism.interleaving is None else range(run_config.parallelism.interleaving)
    return [_build_chunk(run_config, kernels, config, device, exchange, stage) for stage in stages]


def _overlaps_by_engine(run_config: RunConfig) -> bool:
    return run_config.parallelism.tensor_overlap is True and run_config.layers.transformer_engine


def _build_chunk(
    run_config: RunConfig,
    kernels: Kernels,
    config: TransformerConfig,
    device: torch.device,
    exchange: Exchange,
    virtual_stage: int | None,
) -> Chunk:
    architecture = run_config.architecture
    with building(run_config):
        model = _model_class(run_config, kernels, config)(
            config=config,
            transformer_layer_spec=block_spec(config, architecture, virtual_stage, kernels),
            vocab_size=run_config.padded_vocab_size,
            max_sequence_length=architecture.max_position_embeddings,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=virtual_stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=virtual_stage),
            share_embeddings_and_output_weights=architecture.tie_embeddings,
            position_embedding_type=_positions(architecture),
            rotary_base=int(architecture.rotary_base),
            rotary_percent=architecture.rotary_percent,
            vp_stage=virtual_stage,
        )
    if kernels.groups_experts:
        use_grouped_experts(model, _expert_operations(run_config, kernels), exchanges_whole_tokens(run_config))
        if run_config.precision.bf16 and device.type == CUDA:
            use_bfloat16_router(model)
        if run_config.layers.triton:
            use_fused_router(model)
    elif architecture.num_experts and architecture.add_bias_linear:
        compute_biased_experts(model)
    if architecture.moe_router_group_score_topk:
        score_groups(model, architecture.moe_router_group_score_topk)
    if architecture.num_experts:
        _separate_experts(model)
    if architecture.family == "llama" and not architecture.latent_attention:
        model.rotary_pos_emb.inv_freq = rope.inverse_frequencies(architecture, run_config.batches.seq_length).to(device)
    if architecture.local_rotary_base:
        rotary_tables.use_local_table(model, architecture, device)
    multipliers.multiply(model, architecture)
    if model.post_process and run_config.padded_vocab_size > architecture.vocab_size and kernels.cross_entropy != FUSED_LINEAR:
        model.output_layer.register_forward_hook(partial(_without_padding, run_config))
    if run_config.layers.triton:
        from lt_train.models.fused_layer import fuse

        fuse(model, run_config, kernels, exchange)
    if kernels.collectives == PEER_MEMORY and run_config.parallelism.tensor > 1:
        # In fp8 the decoder's linear layers multiply and exchange rows by `use_fp8`.
        if run_config.precision.fp8_format is None:
            overlap(model, exchange)
        elif model.post_process:
            overlap(model.output_layer, exchange)
    if model.post_process and run_config.optimization.z_loss_coeff:
        add_z_loss(model, run_config.optimization.z_loss_coeff)
    if run_config.precision.fp8_format and not run_config.layers.transformer_engine:
        use_fp8(model, run_config.precision, kernels, exchange)
    return wrap(run_config, config, model, device, _shard_collectives(run_config, kernels))


def _shard_collectives(run_config: RunConfig, kernels: Kernels) -> Collectives:
    buffer = SymmetricBuffer if kernels.collectives == PEER_MEMORY else None
    if not run_config.layers.triton:
        return Collectives(buffer=buffer)
    from lt_train.kernels.gradient_sums import sum_parts

    return Collectives(sum_parts, buffer)


def _expert_operations(run_config: RunConfig, kernels: Kernels) -> Operations:
    if not run_config.layers.triton:
        return Operations(TorchGroupedGemms(), expert_rows)
    from lt_train.kernels import expert_rows as by_triton

    gemms = QuackGroupedGemms() if kernels.experts in GROUPED_BY_QUACK else TorchGroupedGemms()
    if kernels.experts != GROUPED_FP8:
        return Operations(gemms, by_triton)
    from lt_train.kernels import fp8_rows

    return Operations(Fp8GroupedGemms(gemms, fp8_rows), by_triton)


def _model_class(run_config: RunConfig, kernels: Kernels, config: TransformerConfig) -> Callable[..., GPTModel]:
    architecture = run_config.architecture
    if not architecture.mtp_num_layers:
        plain: Callable[..., GPTModel] = GPTModel
        return plain
    layer = layer_spec(config, architecture, kernels, architecture.num_experts is not None)
    return partial(PredictingModel, layer=layer, layers=architecture.mtp_num_layers)


def _positions(architecture: Architecture) -> str:
    """megatron-core's kind of positions. Latent attention rotates a part of each head, and has the angles itself."""
    if architecture.family == "gpt":
        return "learned_absolute"
    return "none" if architecture.latent_attention else "rope"


def _separate_experts(model: GPTModel) -> None:
    """Give experts an optimizer of their own, as megatron-core does where other ranks have other experts: a checkpoint so has the
    same parts with every expert parallel size."""
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            parameter.allreduce = False


def _without_padding(
    run_config: RunConfig, layer: torch.nn.Module, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, Any]
) -> tuple[torch.Tensor, Any]:
    logits, bias = outputs
    first = parallel_state.get_tensor_model_parallel_rank() * logits.shape[-1]
    return exclude_padding(logits, first, run_config.architecture.vocab_size), bias


def unwrapped(model: Chunk) -> GPTModel:
    """The GPTModel inside its wrappers."""
    inner = model.module
    return inner.module if isinstance(inner, Float16Module) else inner


def checkpointed(model: Chunk) -> GPTModel | FullySharded:
    """What has the weights of this rank for a checkpoint, and takes them from one."""
    return model if isinstance(model, FullySharded) else unwrapped(model)
