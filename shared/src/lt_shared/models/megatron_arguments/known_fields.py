"""All fields of megatron-core's TransformerConfig and MLATransformerConfig, 0.16 to 0.19, and Megatron-LM's model arguments.

A field is read (`READ`); or changes the model's output or the meaning of stored weights, and must be off (`check`); or changes
neither (`WITHOUT_EFFECT`). Some fields change only a training step's logits, because they drop tokens or add noise
(`TRAINING_ONLY`). A field in no list was added by a later version: `remarks` names it when it is set.
"""

import re
from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadConfig

# Fields that `arguments` and `rope` turn into an architecture, under the names of TransformerConfig and of Megatron-LM.
_READ_TEXT = """
num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups group_query_attention kv_channels vocab_size
padded_vocab_size max_position_embeddings seq_length norm_epsilon layernorm_epsilon normalization apply_layernorm_1p
layernorm_zero_centered_gamma add_bias_linear add_qkv_bias qk_layernorm untie_embeddings_and_output_weights
share_embeddings_and_output_weights init_method_std window_size window_attn_skip_freq softmax_scale softmax_type swiglu
quick_geglu openai_gelu gated_linear_unit activation_func glu_linear_offset activation_func_clamp_value bias_gelu_fusion
bias_activation_fusion mtp_num_layers num_experts num_moe_experts moe_ffn_hidden_size moe_layer_freq moe_router_topk
moe_router_load_balancing_type moe_aux_loss_coeff moe_shared_expert_intermediate_size moe_router_pre_softmax
moe_router_score_function moe_router_enable_expert_bias moe_router_num_groups moe_router_group_topk
moe_router_topk_scaling_factor position_embedding_type rotary_base rotary_percent use_rope_scaling rope_scaling
rope_scaling_factor scale_factor low_freq_factor high_freq_factor old_context_len rope_type rotary_scaling_factor
original_max_position_embeddings beta_fast beta_slow mscale mscale_all_dim yarn_rotary_scaling_factor
yarn_original_max_position_embeddings yarn_beta_fast yarn_beta_slow yarn_mscale yarn_mscale_all_dim
yarn_correction_range_round_to_int multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim
use_mup mup_base_hidden_size mup_embedding_mult mup_output_mult mup_base_head_dim mup_attn_scale_power
"""
READ = frozenset(_READ_TEXT.split())

_INTERLEAVED = "gate and up rows of its weights alternate in blocks, an order that is not read"
_ROUTER = "the router chooses or weighs experts in a way that no other format has"
_POSITIONS = "it rotates positions in a way that no other format has"
_LAYERS = "its layers differ in a way that no other format has"
_SCALES = "it scales activations in a way that no other format has"
_ABSENT = (None, False, 0, "", ())
_NO_FACTOR = (*_ABSENT, 1)
# Fields that change the model: the values that turn the feature off, and the effect of other values.
_OFF: Mapping[str, tuple[tuple[Any, ...], str]] = {
    **dict.fromkeys(("moe_mlp_glu_interleave_size", "moe_shared_expert_glu_interleave_size"), (_ABSENT, _INTERLEAVED)),
    "moe_router_topk_limited_devices": (_ABSENT, f"{_ROUTER}: it depends on the number of devices of the run"),
    **dict.fromkeys(("moe_router_force_load_balancing", "moe_router_force_biased"), (_ABSENT, "the router adds random numbers")),
    "moe_apply_probs_on_input": (_ABSENT, _ROUTER),
    "moe_shared_expert_gate": (_ABSENT, "the shared expert has a gate, which is not supported"),
    "moe_latent_size": (_ABSENT, "its experts work on a projection of the hidden states, which is not supported"),
    **dict.fromkeys(("rotary_interleaved", "no_rope_freq", "mrope_section", "rotary_base_per_layer"), (_ABSENT, _POSITIONS)),
    **dict.fromkeys(("rotary_seq_len_interpolation_factor", "seq_len_interpolation_factor"), (_NO_FACTOR, _POSITIONS)),
    **dict.fromkeys(("qk_l2_norm", "attention_output_gate", "attention_value_scale", "head_wise_attn_gate"), (_ABSENT, _LAYERS)),
    **dict.fromkeys(("apply_residual_connection_post_layernorm", "enable_hyper_connections"), (_ABSENT, _LAYERS)),
    **dict.fromkeys(("squared_relu", "swiglu_limits"), (_ABSENT, "its activation is another one")),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"), (_ABSENT, _SCALES)),
    **dict.fromkeys(("heterogeneous_block_specs", "heterogeneous_layers_config_path"), (_ABSENT, _LAYERS)),
    "heterogeneous_layers_config_encoded_json": (_ABSENT, _LAYERS),
    "retro_add_retriever": (_ABSENT, "it retrieves text (Retro), which is not supported"),
    "mtp_use_repeated_layer": (_ABSENT, "all its prediction layers are one, which no other format has"),
    "mtp_hybrid_override_pattern": (_ABSENT, "its prediction layers are of another kind"),
}
# Functions that build the layers, as Megatron-LM (`--spec MODULE FUNCTION`) and Megatron-Bridge name them: a stranger's can build
# any layers, and no field says which.
_SPECS = ("spec", "transformer_layer_spec")
_SPEC_MODULES = ("megatron.core.", "megatron.bridge.", "nemo.collections.llm.", "transformer_engine.", "torch.")
_SPEC_NAMES = ("local", "default_layer_spec")
_HYBRID = "would need a scan or an indexer, and is not supported"
_HYBRIDS = {
    "hybrid_override_pattern": "a state-space layer (Mamba)",
    "hybrid_layer_pattern": "a state-space layer (Mamba)",
    "is_hybrid_model": "a state-space layer (Mamba)",
    "linear_attention_freq": "linear attention",
    "experimental_attention_variant": "linear or sparse attention",
}
# Kinds of load balancing that leave the choice of experts to the scores.
_BALANCING = ("aux_loss", "seq_aux_loss", "global_aux_loss", "none", None)
_BALANCING_FIELD = "moe_router_load_balancing_type"

# megatron-core drops tokens or adds noise in evaluation too; exported models never have either.
TRAINING_ONLY = frozenset(
    ["moe_expert_capacity_factor", "moe_expert_rank_capacity_factor", "moe_token_dropping", "moe_input_jitter_eps"]
)

# Parallel sizes, precision, kernels, memory, communication, initial values, losses and inference.
_WITHOUT_EFFECT_TEXT = """
tensor_model_parallel_size tensor_parallel_num_weight_shards gtp_weight_remat_size pipeline_model_parallel_comm_backend
pipeline_model_parallel_size virtual_pipeline_model_parallel_size sequence_parallel context_parallel_size
hierarchical_context_parallel_sizes max_seqlen_per_dp_cp_rank hybrid_context_parallel expert_model_parallel_size
expert_tensor_parallel_size expert_tensor_parallel_num_weight_shards expert_gtp_weight_remat_size perform_initialization
use_cpu_initialization fp16 bf16 params_dtype timers finalize_model_grads_func grad_scale_func moe_grad_scale_func
mtp_grad_scale_func no_sync_func grad_sync_func param_sync_func deterministic_mode enable_autocast autocast_dtype
num_microbatches_with_partial_activation_checkpoints gradient_accumulation_fusion async_tensor_model_parallel_allreduce
use_te_rng_tracker cross_entropy_loss_fusion cross_entropy_fusion_impl overlap_moe_expert_parallel_comm delay_wgrad_compute
overlap_dispatch_backward_with_experts_wgrad ep_overlap_early_attn_memory_release pipeline_dtype variable_seq_lengths
overlap_p2p_comm batch_p2p_comm batch_p2p_sync use_ring_exchange_p2p deallocate_pipeline_outputs defer_embedding_wgrad_compute
wgrad_deferral_limit overlap_p2p_comm_warmup_flush microbatch_group_size_per_vp_stage mtp_standalone cpu_offloading
cpu_offloading_num_layers _cpu_offloading_context cpu_offloading_activations cpu_offloading_weights
cpu_offloading_double_buffering cpu_offloading_retain_pinned_cpu_buffers barrier_with_L1_time mtp_loss_scaling_factor
mtp_detach_heads mtp_enabled num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage
pipeline_model_parallel_layout account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split attention_backend
flash_attention_version hidden_dropout attention_dropout fp32_residual_connection activation_func_fp8_input_store qk_clip
qk_clip_alpha qk_clip_threshold log_max_attention_logit test_mode calculate_per_token_loss
experimental_attention_variant_loss_scale_func linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim
linear_num_key_heads linear_num_value_heads init_method output_layer_init_method embedding_init_method
embedding_init_method_std init_model_with_meta_device mup_width_mult apply_query_key_layer_scaling attention_softmax_in_fp32
disable_bf16_reduced_precision_matmul masked_softmax_fusion persist_layer_norm memory_efficient_layer_norm bias_dropout_fusion
apply_rope_fusion use_fused_weighted_squared_relu fused_single_qkv_rope fused_residual_rmsnorm use_transformer_engine_op_fuser
recompute_granularity recompute_method recompute_num_layers distribute_saved_activations recompute_modules
first_last_layers_bf16 num_layers_at_start_in_bf16 num_layers_at_end_in_bf16 use_kitchen use_kitchen_attention
kitchen_attention_backend high_priority_a2a_comm_stream moe_shared_expert_overlap use_grouped_gemm_for_shared_expert
use_grouped_gemm_for_dense_mlp dense_grouped_gemm moe_enable_routing_replay moe_router_padding_for_quantization
moe_router_padding_for_fp8 moe_router_dtype moe_router_bias_update_rate moe_router_quantile_balancing_ema moe_grouped_gemm
moe_single_grouped_weight moe_single_grouped_bias moe_use_legacy_grouped_gemm moe_z_loss_coeff moe_token_dispatcher_type
moe_enable_deepep moe_flex_dispatcher_backend moe_permute_fusion_into_hybridep moe_hybridep_pad_uneven_dispatch_inputs
moe_per_layer_logging moe_pad_expert_input_to_capacity moe_pad_experts_for_cuda_graph_inference moe_token_drop_policy
moe_layer_recompute moe_permute_fusion moe_router_fusion moe_flex_dispatcher_num_sms moe_deepep_num_sms moe_hybridep_num_sms
moe_hybridep_num_blocks_permute moe_hybridep_num_blocks_unpermute moe_hybridep_num_sms_preprocessing moe_ncclep_static_shape
moe_ncclep_zero_copy moe_extended_tp cp_comm_type enable_cuda_graph external_cuda_graph clone_scatter_output_in_embedding
disable_parameter_transpose_cache config_logger_dir flash_decode batch_invariant_mode use_te_activation_func symmetric_ar_type
nccl_all_reduce_for_prefill use_inference_optimized_layers use_mamba_mem_eff_path mlp_chunks_for_prefill
mlp_chunks_for_training hetereogenous_dist_checkpoint quant_recipe transformer_impl fine_grained_activation_offloading
offload_modules min_offloaded_tensor_size delay_offload_until_cuda_graph delta_offload_bytes_across_pp_ranks
activation_offload_fraction fine_grained_offloading_max_inflight_offloads cache_mla_latents mla_down_proj_fusion
tp_only_amax_red fp16_lm_cross_entropy logit_dtype parallel_output make_vocab_size_divisible_by
scatter_embedding_sequence_parallel should_pad_vocab use_transformer_engine_full_layer_spec hf_model_id
hf_model_revision restore_modelopt_state use_arbitrary_attention_mask apply_rotary_pos_emb_in_fp32 keep_in_fp32 wrap_with_ddp
mixed_precision_wrapper generation_config add_position_embedding use_rotary_position_embeddings trust_remote_code
forward_step_fn data_step_fn data_parallel_random_init use_custom_fsdp use_megatron_fsdp use_torch_fsdp2
"""
WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT_TEXT.split())
# Prefixes of further fields without effect, in every version: layers that `_HYBRIDS` refuses, precision, kernels, training loop.
WITHOUT_EFFECT_PREFIXES = (
    *("tp_comm_", "fp8", "fp4", "cuda_graph_", "inference_", "nccl_", "te_", "kitchen_", "moe_paged_stash", "moe_routing_trace"),
    *("dsa_", "mamba_", "gtp_", "_"),
    "lt_",
)
# Names that resemble TransformerConfig's model fields, and such names in the training loop that do not.
_OF_THE_MODEL = re.compile(
    r"(moe|mtp|rope|rotary|yarn|attention|attn|qk|q|kv|v|mlp|glu|activation|norm|layernorm|residual|embedding|softmax|window|"
    r"linear|head|router|experts?|shared|latent|mla|mup|scale|logits?|hyper|gated?|sliding|full|global|layer|interleaved)_.*|"
    r".*_(interleave_size|interleaved|softcapping|multipliers?|scale|freq|pattern|rank|gate|norm)"
)
_OF_THE_LOOP = re.compile(
    r"(logits_(save|load)|moe_(use_upcycling|upcycling)|head_lr|embedding_path|attention_mask|query_in_block|"
    r"global_batch|layer_wise|scheduler|kv_cache|norm_clip|loss_scale|initial_loss_scale|min_loss_scale|expert_parallel)\w*|"
    r"(loss|initial_loss|min_loss|grad|muon)_\w*"
)


def check(arguments: Mapping[str, Any], name: str) -> None:
    """Raises BadConfig for a field that changes the model in a way that no other format can say."""
    for field, layers in _HYBRIDS.items():
        if arguments.get(field):
            raise BadConfig(f"{name}: {field} is {arguments[field]!r:.80}: {layers} {_HYBRID}")
    has_experts = bool(arguments.get("num_experts"))
    for field, (accepted, reason) in _OFF.items():
        value = arguments.get(field)
        value = tuple(value) if isinstance(value, list) else value
        if value not in accepted and (has_experts or not field.startswith("moe_")):
            raise BadConfig(f"{name}: {field} is {value!r:.80}: {reason}", "export it with the program that wrote it")
    for field in _SPECS:
        for function in _function_names(arguments.get(field)):
            if function not in _SPEC_NAMES and not function.startswith(_SPEC_MODULES):
                raise BadConfig(
                    f"{name}: {field} is {function!r:.80}: a function outside of megatron-core builds its layers",
                    "export it with the program that wrote it",
                )
    balancing = arguments.get(_BALANCING_FIELD)
    kinds = balancing if isinstance(balancing, list | tuple) else [balancing]
    unknown = [kind for kind in kinds if kind not in _BALANCING]
    if has_experts and unknown:
        raise BadConfig(
            f"{name}: {_BALANCING_FIELD} is {unknown[0]!r:.80}: {_ROUTER}",
            "known are aux_loss, seq_aux_loss, global_aux_loss and none",
        )


def _function_names(value: Any) -> list[str]:
    """The dotted names of functions and classes in `[MODULE, FUNCTION]`, or in an object of YAML, at any depth."""
    if isinstance(value, Mapping):
        target = [str(value["_target_"])] if "_target_" in value else []
        return target + [name for child in value.values() if isinstance(child, Mapping | list) for name in _function_names(child)]
    if isinstance(value, list | tuple) and all(isinstance(child, str) for child in value):
        return [".".join(value)] if value else []
    if isinstance(value, list | tuple):
        return [name for child in value for name in _function_names(child)]
    return [str(value)] if value else []


def is_known(field: str) -> bool:
    """Return whether the field, or its prefix, is in one of the lists."""
    listed = any(field in fields for fields in (READ, _OFF, _HYBRIDS, _SPECS, WITHOUT_EFFECT, TRAINING_ONLY))
    return listed or field.startswith(WITHOUT_EFFECT_PREFIXES)


def remarks(arguments: Mapping[str, Any], all_describe_model: bool = False) -> list[str]:
    """Return a sentence for every set field that changes training steps alone, and for every set field that is not known.

    Of the hundreds of arguments of a training program, unknown ones count if their name is like a model's. If
    `all_describe_model`, every unknown field counts.
    """
    set_fields = {field: value for field, value in arguments.items() if _is_set(value)}
    dropped = [f"{field} {set_fields[field]!r:.40}" for field in sorted(TRAINING_ONLY & set(set_fields))]
    if not arguments.get("num_experts"):
        dropped = []
    unknown = [f"{field} {value!r:.40}" for field, value in sorted(set_fields.items()) if _is_unknown(field, all_describe_model)]
    return [
        *(f"{text}: Megatron drops tokens or adds noise with it, and no other program does" for text in dropped),
        *(f"{text}: not known here, and taken to change nothing" for text in unknown),
    ]


def _is_set(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | list | tuple | Mapping) and bool(value)


def _is_unknown(field: str, all_describe_model: bool) -> bool:
    is_model = bool(_OF_THE_MODEL.fullmatch(field)) and not _OF_THE_LOOP.fullmatch(field)
    return not is_known(field) and (all_describe_model or is_model)
