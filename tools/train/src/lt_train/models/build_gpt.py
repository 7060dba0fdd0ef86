"""The decoder for an `Architecture`, on this rank's share of the layers and heads."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module

from lt_shared.architecture import CLAMPED_SWIGLU_LIMIT, Architecture
from lt_train.config.kernels import GROUPED_BY_QUACK, GROUPED_FP8, PEER_MEMORY, Kernels, exchanges_whole_tokens
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.memory import SWIGLU
from lt_train.models.decoder import Decoder, Stage
from lt_train.models.embedding import Embedding
from lt_train.models.fp8_linear import Fp8Linears
from lt_train.models.linear import Linears, OverlappedLinears
from lt_train.models.mixers import rope
from lt_train.models.multi_token_prediction import PredictionLayers
from lt_train.models.output import OutputLayer
from lt_train.models.pattern import ExpertKernels, Pattern
from lt_train.ops import expert_rows, wgrad_accumulation
from lt_train.ops.expert_mlp import Operations
from lt_train.ops.fp8_grouped_gemm import Fp8GroupedGemms
from lt_train.ops.grouped_gemm import QuackGroupedGemms, TorchGroupedGemms
from lt_train.ops.row_exchange import Exchange
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
    return TransformerConfig(
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
        pipeline_dtype=dtype,
        params_dtype=torch.float32 if run_config.memory.fully_sharded else dtype,
        bf16=run_config.precision.bf16,
        fp16=run_config.precision.fp16,
        deterministic_mode=run_config.precision.deterministic,
        # Without it megatron-core's layers allocate on the GPU whatever torch's default device.
        use_cpu_initialization=on_cpu or run_config.memory.fully_sharded,
        init_model_with_meta_device=run_config.memory.fully_sharded,
        # perform_initialization=False would also leave out the attributes that mark a weight as split among tensor-parallel
        # ranks; the gradient norm then counts one rank's share of it only, and clipping differs from the single-rank run.
        init_method=_leave,
        output_layer_init_method=_leave,
        embedding_init_method=_leave,
        gradient_accumulation_fusion=_accumulates_in_gemms(run_config),
        bias_dropout_fusion=not on_cpu,
        masked_softmax_fusion=False,
        cross_entropy_loss_fusion=False,
        persist_layer_norm=False,
        **_saved_activations(run_config),
    )


def _accumulates_in_gemms(run_config: RunConfig) -> bool:
    """Whether GEMMs add to gradient buffers. FSDP has no buffers. Without 16 bits nothing is gained by it.

    Only these GEMMs can be deferred, and they add each use of a weight by itself, where autograd first sums the uses of a micro
    batch: the schedules of a pipeline would differ in the last bits of a weight that multi-token prediction uses twice.
    """
    half_or_pipeline = run_config.precision.half or run_config.parallelism.pipeline > 1
    return half_or_pipeline and not run_config.memory.fully_sharded


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
        "expert_model_parallel_size": run_config.parallelism.expert,
        "expert_tensor_parallel_size": run_config.expert_tensor_parallel,
    }


def _unless_one(factor: float) -> float | None:
    return None if factor == 1 else factor


def _saved_activations(run_config: RunConfig) -> dict[str, Any]:
    """What is kept of the forward pass for the backward pass."""
    recompute = run_config.memory.recompute
    if recompute is None or set(recompute.modules) == {SWIGLU}:
        return {}
    return {
        "recompute_granularity": recompute.granularity,
        "recompute_method": recompute.method,
        "recompute_num_layers": recompute.layers,
        "recompute_modules": [module for module in recompute.modules if module != SWIGLU] or None,
    }


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
    pattern = _pattern(run_config, kernels, config, device)
    interleaving = run_config.parallelism.interleaving
    chunks = []
    for number in [None] if interleaving is None else range(interleaving):
        with building(run_config):
            model = _decoder(run_config, kernels, pattern, Stage.of_rank(number))
        chunks.append(wrap(run_config, config, model, device, _shard_collectives(run_config, kernels)))
    return chunks


def _pattern(run_config: RunConfig, kernels: Kernels, config: TransformerConfig, device: torch.device) -> Pattern:
    recompute, exchange = run_config.memory.recompute, exchange_of(run_config, kernels)
    by_triton = run_config.layers.triton
    return Pattern(
        config,
        run_config.architecture,
        kernels,
        ExpertKernels(
            operations=_expert_operations(run_config, kernels) if kernels.groups_experts else None,
            exchanges=exchanges_whole_tokens(run_config),
            routes_in_bfloat16=run_config.precision.bf16 and device.type == CUDA,
            routes_by_kernel=kernels.groups_experts and by_triton,
        ),
        _linears(run_config, kernels, config, exchange),
        exchange,
        _angles(run_config, device),
        _local_angles(run_config.architecture, device),
        by_triton,
        passes_tensors=recompute is not None and recompute.granularity == "full",
    )


def _linears(run_config: RunConfig, kernels: Kernels, config: TransformerConfig, exchange: Exchange) -> Linears:
    if run_config.precision.fp8_format:
        return Fp8Linears(config, run_config.precision, kernels, exchange)
    return _linears_of_16_bits(kernels, config, exchange)


def _linears_of_16_bits(kernels: Kernels, config: TransformerConfig, exchange: Exchange) -> Linears:
    return OverlappedLinears(config, exchange) if _overlaps(kernels, config) else Linears(config)


def _overlaps(kernels: Kernels, config: TransformerConfig) -> bool:
    return kernels.collectives == PEER_MEMORY and config.tensor_model_parallel_size > 1


def _decoder(run_config: RunConfig, kernels: Kernels, pattern: Pattern, stage: Stage) -> Decoder:
    architecture, vocab_size = run_config.architecture, run_config.padded_vocab_size
    config, exchange = pattern.config, pattern.exchange
    blocks = pattern.blocks(stage)
    embedding, output_layer, predictions = None, None, None
    has_table = stage.is_first or (stage.is_last and bool(architecture.mtp_num_layers))
    is_tied = architecture.tie_embeddings and has_table and stage.is_last
    if has_table:
        adds_gradient = stage.is_first and _adds_embedding_gradient(run_config, config)
        embedding = Embedding(config, architecture, vocab_size, adds_gradient, is_tied)
    if stage.is_last:
        z_loss_coeff, overlaps = run_config.optimization.z_loss_coeff, _overlaps(kernels, config)
        output_layer = OutputLayer(
            config, architecture, vocab_size, not is_tied, kernels.cross_entropy, z_loss_coeff, exchange, overlaps
        )
        if architecture.mtp_num_layers:
            # In 16 bits also where the model's blocks multiply in fp8.
            linears = _linears_of_16_bits(kernels, config, exchange) if not run_config.precision.fp8_format else Linears(config)
            numbers = range(architecture.num_layers + 1, architecture.num_layers + 1 + architecture.mtp_num_layers)
            predictions = PredictionLayers(config, [pattern.prediction_block(number, linears) for number in numbers])
    return Decoder(config, architecture, blocks, stage, embedding, output_layer, predictions, pattern.angles)


def _angles(run_config: RunConfig, device: torch.device) -> rope.Angles | None:
    """Those of RoPE. Latent attention rotates a part of each head, and has the angles itself."""
    architecture = run_config.architecture
    if architecture.family != "llama" or architecture.latent_attention:
        return None
    return rope.Angles(rope.inverse_frequencies(architecture, run_config.batches.seq_length).to(device))


def _local_angles(architecture: Architecture, device: torch.device) -> rope.Angles | None:
    if not architecture.local_rotary_base:
        return None
    return rope.Angles(rope.local_inverse_frequencies(architecture).to(device))


def _adds_embedding_gradient(run_config: RunConfig, config: TransformerConfig) -> bool:
    """Whether a kernel adds the embedding's gradient where it belongs; the order of its sums is not repeatable."""
    if not run_config.layers.triton or run_config.precision.deterministic:
        return False
    is_sharded = run_config.memory.fully_sharded and run_config.precision.half
    return is_sharded or bool(config.gradient_accumulation_fusion)


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


def unwrapped(model: Chunk) -> Decoder:
    """The Decoder inside its wrappers."""
    inner: Decoder = model.module
    return inner.module if isinstance(inner, Float16Module) else inner


def checkpointed(model: Chunk) -> Decoder | FullySharded:
    """What has the weights of this rank for a checkpoint, and takes them from one."""
    return model if isinstance(model, FullySharded) else unwrapped(model)
