"""Options of Megatron-LM and its forks that lt-train does not have, by what their loss does.

The names follow the argument groups of Megatron-LM (megatron/training/arguments.py and megatron/core's TransformerConfig) and of
Megatron-DeepSpeed. A name that stands in no table may be of any fork, and may change the result.
"""

import re
from collections.abc import Sequence

from lt_train.config.settings.layers import WITHOUT_EFFECT
from lt_train.importers.effects import NEUTRAL, OFF, SPEED, Effect, is_of_model
from lt_train.importers.ledger import options

MODEL = re.compile(
    r"multiple_of|hidden_dim_multiplier|language_model_type|patch_dim|img_[hw]|num_channels|wkv_.*|rwkv.*|peft_type|lora_.*"
    r"|squared_relu|openai_gelu|quick_geglu|multi_latent_attention|rotary_interleaved|is_hybrid_model|apply_residual.*|embed_layernorm"
    r"|attention_output_gate|use_mup|mup(_.*)?|experimental_attention_variant|dsa_.*|linear_(attention|conv|key|value|num)_.*|xielu"
    r"|xiprelup?|heterogeneous_.*|hetero_.*|enable_gpt_oss|enable_mhc_.*|mhc_.*|moe_shared_.*|moe_latent_size|moe_residual.*"
    r"|moe_use_residual|moe_layer_.*|moe_router_(pre_softmax|enable_expert_bias|score_function|topk_scaling_factor|.*group.*)"
    r"|qk_l2_norm|first_k_dense_replace|post_layer_norm|no_(attn|mlp|final)_layernorm|.*_multiplier|softmax_(type|scale)|activation_func.*|glu_linear_offset|alibi.*"
    r"|relative_attention_.*|mrope_section|window_attn_.*|no_rope_.*|rotary_.*|rope_.*|yarn_.*|original_max_position_embeddings"
    r"|mtp_.*|mscale.*|gdp_.*|mamba_.*|hybrid_.*|spec|retro_.*|bert_.*|vision_.*|mlp_type|expert_interval|sandwich.*|scattered_.*"
    r"|share_layers|num_shared_.*|use_bnb_optimizer_model|encoder_num_layers|decoder_num_layers|normalize_embeddings|use_emha"
)
# Values with which such an option says what holds in any case.
SAYING_NOTHING: dict[str, tuple[str, ...]] = {
    **{key: tuple(map(str, values)) for key, values in NEUTRAL.items()},
    "DDP_impl": ("local", "torch"),
    "mlp_type": ("standard",),
    "moe_router_load_balancing_type": ("aux_loss",),
    "moe_router_score_function": ("softmax",),
    "moe_router_topk_scaling_factor": ("1", "1.0"),
    "expert_interval": ("2",),
    "expert_tensor_parallel_size": ("1",),
    "ds_sequence_parallel_size": ("1",),
    "moe_expert_parallel_size": ("1",),
    "rotary_seq_len_interpolation_factor": ("1",),
    "softmax_type": ("vanilla",),
    "rope_type": ("rope",),
    "spec": ("local",),
    "zero_stage": ("0",),
}
NONE = re.compile(
    # Logging, checkpoints, tokenizers, starting and restarting.
    r"(no_)?log_.*|logging_level|timing_.*|tensorboard_.*|(use_)?wandb.*|(no_)?one_logger.*|app_tag_.*|otel_.*|profile_.*|use_pytorch_.*"
    r"|memory_snapshot_path|.*straggler.*|run_workload_.*|config_logger_dir|inprocess_.*|.*ft_.*(package|timeouts|warmup_iters)"
    r"|rerun_mode|error_injection_.*|result_rejected_.*|adlr_.*|kill_switch_file|trigger_path|exit_.*|inference_.*|flash_decode"
    r"|ckpt_.*|(use_|auto_detect_)?dist_ckpt.*|no_ckpt_.*|(non_)?persistent_.*|override_.*|use_checkpoint_.*|use_mp_args_.*|load_tag"
    r"|save_.*|no_(save|load)_.*|universal_checkpoint|reset_iteration|no_initialization|no_use_tokenizer_.*|.*tokenizer.*|tiktoken_.*"
    r"|vocab_file|merge_file|trust_remote_code|(check_for|no_check_for)_.*|check_weight_hash_.*|train_sync_interval|dump_param_.*"
    # Data in Megatron's format, however it is read.
    r"|data_impl|dataloader_(type|fast.*|defer.*)|mmap_warmup|no_mmap_.*|num_dataset_builder_threads|.*_idx_path|.*_cache_path"
    r"|no_data_sharding|repeated_dataloader|return_data_index"
    # How ranks find each other and where weights are made.
    r"|DDP_impl|distributed_backend|local_rank|rank|world_size|lazy_mpu_init|use_mpi|master_.*|use_cpu_initialization|query_gpu"
    r"|nccl_.*|use_nccl_.*|.*_nccl_ub|empty_unused_memory_level|use_ring_exchange_p2p|no_scatter_gather_.*|standalone_embedding_stage"
    r"|deepspeed|no_pipeline_parallel|ds_inference|remote_device|use_pin_memory|init_model_with_meta_device|disable_symmetric_.*"
    r"|moe_per_layer_logging|create_moe_param_group|use_tutel|enable_msc|disable_msc|export_force_local_attention|use_legacy_models"
    r"|no_query_key_layer_scaling|attention_softmax_in_fp32|deterministic_.*|use_tp_pp_dp_mapping|skip_train"
)
OF_SPEED = re.compile(
    r"zero_.*|(deepspeed_)?activation_checkpointing|deepspeed_activation_.*|partition_activations|contigious_.*|checkpoint_in_cpu"
    r"|checkpoint_num_layers|synchronize_each_layer|profile_backward|distribute_.*activations|.*_flash_attn_.*|cpu_optimizer|no_async_.*"
    r"|cpu_torch_adam|enable_zbh1_.*|use_megatron_fsdp|data_parallel_sharding_strategy|outer_dp_.*|moe_permute_.*|moe_enable_deepep"
    r"|force_ds_.*|memory_centric_.*|tile_factor|.*_cuda_graphs?.*|disable_mem_efficient_ln|moe_use_legacy_.*|moe_layer_recompute"
    r"|moe_shared_expert_overlap|no_contiguous_buffers_.*|mlp_chunks_.*|use_te_.*|te_rng_tracker|mamba_mem_eff_.*"
)
# Names of files and experiments, and what is taken from a checkpoint.
OF_PLACES = re.compile(
    r"(.*_)?data_path|.*_(path|dir)|save|load|split|config|tokenizer_.*|vocab_file|merge_file|wandb_.*|profile_ranks|finetune"
    r"|no_(load|save)_(optim|rng)|log_.*|plain|verbose|quiet|v|q|no_verify"
)


def effect_of_flag(key: str, words: Sequence[str]) -> Effect:
    """What an option that is not carried over would have changed; without words it is a switch, which is on."""
    value = " ".join(words)
    if value and value in SAYING_NOTHING.get(key, ()):
        return Effect.NONE
    if OF_SPEED.fullmatch(key):
        return Effect.SPEED
    if MODEL.fullmatch(key) or is_of_model(key):
        return Effect.NONE if words and value in OFF else Effect.MODEL
    if NONE.fullmatch(key):
        return Effect.NONE
    return Effect.SPEED if SPEED.fullmatch(key) else Effect.RESULT


def decides(key: str, words: Sequence[str]) -> bool:
    """Whether the run is another one with another value: in its model, its batches, its schedule or its layout."""
    if key in WITHOUT_EFFECT:
        return False
    if key in options():
        return not OF_PLACES.fullmatch(key)
    return effect_of_flag(key, words) is Effect.MODEL
