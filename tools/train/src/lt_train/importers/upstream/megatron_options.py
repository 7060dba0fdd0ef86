"""Options of Megatron-LM and its forks that lt-train does not have, and what their loss changes.

Read against megatron/training of core_v0.16.1 and core_v0.19.0, Megatron-DeepSpeed and FlagScale. An option that stands in no row
may change the result.
"""

from lt_shared.models.megatron_arguments import mup
from lt_train.importers.effects import Effect
from lt_train.importers.upstream.rows import rows

TOKENIZER = "the tokenizer belongs to the data: lt-preprocess --tokenizer"
CHECKPOINTS = "it says how checkpoints are written; lt-train writes torch_dist in its own way"
REPORTS = "lt-train reports in its own way"
FAULTS = "lt-train has its own restarts and time-outs"
INFERENCE = "inference alone reads it"
MEMORY = "it says how tensors are held or moved, not what they hold"
COLLECTIVES = "it says how ranks communicate"
KERNELS = "it chooses a kernel for the same computation"
STAGES = "it says which pipeline rank has which layers"
SCALES_CANCEL = "attention scores are divided by the layer's number and multiplied again: only the rounding differs"
OTHER_PROGRAM = "the command does not train so: lt-train would"

ROWS = rows(
    (
        Effect.NONE,
        REPORTS,
        "app_tag_run_name app_tag_run_version codecarbon_dir config_logger_dir disable_log_loss_scale_to_tensorboard"
        " disable_straggler_on_startup dump_param_to_param_group_map enable_one_logger log_batch_size_to_tensorboard"
        " log_device_memory_used log_energy log_learning_rate_to_tensorboard log_level log_level_replica"
        " log_loss_scale_to_tensorboard log_max_attention_logit log_memory_interval log_memory_to_tensorboard"
        " log_num_zeros_in_grad log_optimizer_states_to_tensorboard log_params_norm log_progress log_straggler"
        " log_timers_to_tensorboard log_validation_ppl_to_tensorboard log_world_size_to_tensorboard logging_level"
        " memory_snapshot_path moe_per_layer_logging no_log_learnig_rate_to_tensorboard"
        " no_log_learning_rate_to_tensorboard no_log_loss_scale_to_tensorboard no_one_logger nvtx_ranges"
        " one_logger_async one_logger_project one_logger_run_name pytorch_profiler_collect_callstack"
        " pytorch_profiler_collect_chakra pytorch_profiler_collect_shapes record_shapes run_workload_inspector_server"
        " save_activations_interval save_dgrads_interval save_params_interval save_tokens_per_expert_interval"
        " otel_enabled otel_service_name otel_span_groups save_wgrads_interval"
        " straggler_ctrlr_port straggler_minmax_count tensorboard_log_interval"
        " tensorboard_queue_size timing_log_level timing_log_option use_pytorch_profiler use_wandb wandb_api_key"
        " wandb_entity wandb_entity_name wandb_group wandb_group_name wandb_id wandb_name wandb_key wandb_log_model"
        " wandb_logger wandb_mode wandb_notes wandb_resume wandb_run_id wandb_run_name wandb_tags"
        " moe_routing_trace_capture_hidden_states moe_routing_trace_capture_logits moe_routing_trace_dump_weights"
        " moe_routing_trace_max_training_iters moe_routing_trace_path otel_endpoint no_barrier_with_level_1_timing"
        " profile_backward log_interval tensorboard_dir profile_ranks profile_step_start profile_step_end wandb_project"
        " wandb_exp_name wandb_save_dir",
    ),
    (
        Effect.NONE,
        CHECKPOINTS,
        "async_ckpt_cpu_priority async_ckpt_io_priority async_ckpt_use_cpu_shm async_strategy auto_detect_ckpt_format"
        " ckpt_assume_constant_structure ckpt_convert_save ckpt_convert_update_legacy_dist_opt_format ckpt_format"
        " ckpt_fully_parallel_load ckpt_fully_parallel_load_exchange_algo ckpt_fully_parallel_load_process_group"
        " ckpt_fully_parallel_save ckpt_fully_parallel_save_process_group disable_ckpt_load_validate_sharding_integrity"
        " disable_stream_ckpt_dequant disable_strict_fsdp_dtensor_load dist_ckpt_format"
        " dist_ckpt_optim_fully_reshardable dist_ckpt_save_pre_mcore_014 dist_ckpt_workers"
        " distrib_optim_fully_reshardable_mem_efficient enable_msc disable_msc no_ckpt_fully_parallel_save"
        " no_ckpt_load_validate_sharding_integrity no_stream_ckpt_dequant no_strict_fsdp_dtensor_load"
        " non_persistent_local_ckpt_algo"
        " persistent_save_interval replication replication_factor replication_jump save_retain_interval use_dist_ckpt"
        " use_persistent_ckpt_worker verify_integrity no_save_optim no_save_rng async_save save_interval"
        " non_persistent_save_interval non_persistent_local_ckpt_dir ckpt_drop_redundant_extra_state"
        " ckpt_fully_parallel_load_per_rank_objects ckpt_pg_tensors_cache_create ckpt_pg_tensors_cache_path"
        " disable_save_tokenizer_assets no_save_tokenizer_assets",
    ),
    (
        Effect.NONE,
        TOKENIZER,
        "disable_tokenizer_sentencepiece_ignore_extra_whitespaces disable_use_tokenizer_model_from_checkpoint_args"
        " legacy_tokenizer merge_file no_tokenizer_sentencepiece_ignore_extra_whitespaces"
        " no_use_tokenizer_from_checkpoint_args no_use_tokenizer_model_from_checkpoint_args"
        " tiktoken_num_special_tokens tiktoken_pattern tiktoken_special_tokens"
        " tokenizer_hf_include_special_tokens tokenizer_hf_no_include_special_tokens tokenizer_hf_no_use_fast"
        " tokenizer_hf_use_fast tokenizer_metadata tokenizer_model tokenizer_name_or_path tokenizer_path"
        " tokenizer_sentencepiece_legacy tokenizer_special_tokens special_tokens tokenizer_type tokenizer_kwargs"
        " trust_remote_code vocab_file chat_template",
    ),
    (
        Effect.NONE,
        FAULTS,
        "adlr_autoresume adlr_autoresume_interval calc_ft_timeouts enable_ft_package exit_signal_handler_for_dataloader"
        " exit_signal_handler_for_training flight_recorder_dump_path flight_recorder_include_stack_trace"
        " flight_recorder_trace_buffer_size ft_num_warmup_iters gpu_sniff_test_interval inprocess_active_world_size"
        " inprocess_barrier_timeout inprocess_completion_timeout inprocess_empty_cuda_cache inprocess_granularity"
        " inprocess_hard_timeout inprocess_heartbeat_interval inprocess_heartbeat_timeout inprocess_last_call_wait"
        " inprocess_max_iterations inprocess_monitor_process_interval inprocess_monitor_thread_interval"
        " inprocess_progress_watchdog_interval inprocess_restart inprocess_soft_timeout inprocess_termination_grace_time"
        " kill_switch_file trigger_path no_flight_recorder_dump_on_timeout no_flight_recorder_extra_dump_on_exec"
        " no_flight_recorder_include_only_active disable_flight_recorder_dump_on_timeout"
        " disable_flight_recorder_extra_dump_on_exec disable_flight_recorder_include_only_active"
        " check_weight_hash_across_dp_replicas_interval distributed_timeout_minutes"
        " distributed_timeout_seconds_after_init exit_signal_handler",
    ),
    (
        Effect.NONE,
        "data is Megatron's mmap format, and is read so in any case",
        "data_impl dataloader_defer_npy_index_mmap dataloader_fast_cache_load data_cache_path mmap_warmup"
        " no_mmap_bin_files num_dataset_builder_threads per_dataset_sequences_path train_doc_idx_path valid_doc_idx_path"
        " test_doc_idx_path train_sample_idx_path valid_sample_idx_path test_sample_idx_path train_shuffle_idx_path"
        " valid_shuffle_idx_path test_shuffle_idx_path train_idx_path valid_idx_path test_idx_path doc_idx_path"
        " sample_idx_path shuffle_idx_path object_storage_cache_path s3_cache_path",
    ),
    (
        Effect.NONE,
        "it says how ranks find each other, which lt-train does by itself",
        "DDP_impl distributed_backend fake_local_rank local_rank master_addr master_port"
        " nccl_communicator_config_path rank remote_device use_mpi use_tp_pp_dp_mapping world_size"
        " disable_gloo_process_groups enable_gloo_process_groups deepspeed deepspeed_mpi no_pipeline_parallel"
        " query_gpu",
    ),
    (Effect.RESULT, "lt-train draws other numbers of the same distribution", "init_model_with_meta_device"),
    (
        Effect.RESULT,
        "lt-train skips a step whose gradients are not finite: --max-nan-steps",
        "no_check_for_nan_in_loss_and_grad check_for_nan_in_loss_and_grad rerun_mode",
    ),
    (
        Effect.NONE,
        "the loss of an evaluation is a mean over its samples, whatever the micro batches",
        "eval_micro_batch_size",
    ),
    (
        Effect.RESULT,
        "the scale of fp8 is computed anew for each GEMM, not from earlier steps",
        "fp8_amax_history_len fp8_amax_compute_algo fp8_interval fp8_margin",
    ),
    (Effect.RESULT, "lt-train casts the 16-bit weights to fp8, not the 32-bit ones", "fp8_param_gather"),
    (Effect.RESULT, "lt-train's router computes its logits in float32", "moe_router_dtype"),
    (
        Effect.RESULT,
        SCALES_CANCEL,
        "apply_query_key_layer_scaling",
    ),
    (Effect.NONE, "pipelines and sequence parallelism have one batch", "ds_sequence_parallel_size"),
    (Effect.RESULT, "lt-train takes the command line, and does not read DeepSpeed's file", "deepspeed_config"),
    (
        Effect.RUN,
        "lt-train masks the loss of no token of the data but with --eod-mask-loss",
        "allow_ambiguous_pad_tokens null_tokenizer_pad_id null_tokenizer_eod_id",
    ),
    (
        Effect.NONE,
        "lt-train computes so in any case",
        "attention_softmax_in_fp32 create_moe_param_group ds_inference enable_experimental no_query_key_layer_scaling"
        " no_create_attention_mask_in_dataloader disable_jit_fuser ds_fused_adam",
    ),
    (Effect.NONE, "the models of ModelOpt alone read it", "export_force_local_attention"),
    (
        Effect.NONE,
        INFERENCE,
        "decode_only_cuda_graphs disable_chunked_prefill enable_chunked_prefill flash_decode"
        " inference_batch_times_seqlen_threshold inference_coordinator_port inference_cuda_graph_all_prefills"
        " inference_cuda_graph_max_tokens inference_cuda_graph_scope inference_disable_ep_consensus"
        " inference_disable_triton_nvls_kernels inference_dynamic_batching inference_dynamic_batching_async_sched_mode"
        " inference_dynamic_batching_block_size inference_dynamic_batching_buffer_size_gb"
        " inference_dynamic_batching_cuda_graph_max_tokens inference_dynamic_batching_cuda_graph_mixed_prefill_count"
        " inference_dynamic_batching_cuda_graph_sizing_distribution inference_dynamic_batching_logprobs_mode"
        " inference_dynamic_batching_mamba_memory_ratio inference_dynamic_batching_max_requests"
        " inference_dynamic_batching_max_tokens inference_dynamic_batching_num_cuda_graphs"
        " inference_dynamic_batching_paused_buffer_size_gb inference_dynamic_batching_prefix_caching"
        " inference_dynamic_batching_prefix_caching_coordinator_policy"
        " inference_dynamic_batching_prefix_caching_eviction_policy inference_dynamic_batching_prefix_caching_mamba_gb"
        " inference_dynamic_batching_prefix_caching_routing_alpha inference_dynamic_batching_sampling_backend"
        " inference_dynamic_batching_track_generated_token_events inference_dynamic_batching_track_paused_request_events"
        " inference_dynamic_batching_unified_memory_level inference_fuse_tp_communication inference_grouped_gemm_backend"
        " inference_logging_step_interval inference_max_batch_size inference_max_requests inference_max_seq_length"
        " inference_moe_disable_fused_quant_kernels inference_moe_token_dispatcher_type"
        " inference_shards inference_text_gen_server_logging inference_use_synchronous_zmq_collectives"
        " inference_wandb_logging mamba_inference_conv_states_dtype mamba_inference_ssm_states_dtype max_tokens_to_oom"
        " mlp_chunks_for_prefill moe_pad_experts_for_cuda_graph_inference nccl_all_reduce_for_prefill"
        " use_legacy_static_engine no_inference_disable_ep_consensus no_inference_dynamic_batching_prefix_caching"
        " inference_dynamic_batching_buffer_guaranteed_fraction inference_dynamic_batching_buffer_overflow_factor"
        " inference_dynamic_batching_chunk_size inference_dynamic_batching_max_requests_override"
        " inference_dynamic_batching_max_tokens_override"
        " no_inference_text_gen_server_logging no_inference_use_synchronous_zmq_collectives no_inference_wandb_logging",
    ),
    (
        Effect.SPEED,
        MEMORY,
        "activations_checkpoint_method activations_checkpoint_num_layers checkpoint_activations"
        " activation_offload_fraction checkpoint_in_cpu checkpoint_num_layers"
        " contigious_checkpointing cpu_optimizer cpu_torch_adam cpu_offloading_retain_pinned_cpu_buffers"
        " cpu_offloading_num_layers ddp_num_buckets ddp_pad_buckets_for_high_nccl_busbw"
        " deepspeed_activation_checkpointing delay_offload_until_cuda_graph delta_offload_bytes_across_pp_ranks"
        " distribute_checkpointed_activations distribute_saved_activations empty_unused_memory_level"
        " fine_grained_activation_offloading fine_grained_offloading_max_inflight_offloads force_ds_sequence_parallel"
        " fsdp_db_use_persist_buf_on_alloc_fail fsdp_double_buffer fsdp_manual_registration manual_gc manual_gc_interval"
        " disable_manual_gc_eval no_manual_gc_eval megatron_fsdp_enable_fine_grained_param_gather"
        " megatron_fsdp_max_pool_double_buffer memory_centric_tiled_linear min_offloaded_tensor_size moe_layer_recompute"
        " moe_paged_stash moe_paged_stash_buffer_size_factor_cpu moe_paged_stash_buffer_size_factor_cuda"
        " moe_paged_stash_page_size no_contiguous_buffers_in_local_ddp"
        " use_contiguous_buffers_in_local_ddp no_pin_cpu_grads no_pin_cpu_params"
        " offload_modules optimizer_cpu_offload optimizer_offload_fraction overlap_cpu_optimizer_d2h_h2d"
        " partition_activations recompute_granularity recompute_method recompute_modules recompute_num_layers"
        " recompute_activations synchronize_each_layer tile_factor use_pin_memory use_torch_optimizer_for_cpu_offload"
        " use_precision_aware_optimizer"
        " zero_contigious_gradients zero_reduce_bucket_size zero_reduce_scatter zero_stage zero_allgather_bucket_size"
        " data_parallel_sharding_strategy outer_dp_sharding_strategy use_megatron_fsdp use_torch_fsdp2"
        " enable_full_sharding_in_hsdp torch_fsdp2_no_reshard_after_forward no_use_layer_wise_param_layout num_workers"
        " reuse_grad_buf_for_mxfp8_param_ag keep_fp8_transpose_cache use_custom_fsdp megatron_fsdp_version"
        " keep_fp8_transpose_cache_when_using_custom_fsdp mhc_recompute_layer_num",
    ),
    (
        Effect.SPEED,
        COLLECTIVES,
        "create_all_gather_group cp_comm_type ddp_bucket_size defer_embedding_wgrad_compute delay_wgrad_compute"
        " disable_align_grad_reduce disable_async_tensor_model_parallel_allreduce disable_symmetric_registration"
        " disable_tp_comm_bulk_dgrad disable_tp_comm_bulk_wgrad disable_tp_comm_overlap_ag disable_tp_comm_overlap_rs"
        " disable_tp_comm_split_ag disable_tp_comm_split_rs ep_overlap_early_attn_memory_release"
        " hierarchical_context_parallel_sizes high_priority_a2a_comm_stream high_priority_stream_groups"
        " microbatch_group_size_per_virtual_pipeline_stage moe_deepep_num_sms moe_enable_deepep"
        " moe_flex_dispatcher_backend moe_flex_dispatcher_num_sms moe_hybridep_num_blocks_permute"
        " moe_hybridep_num_blocks_unpermute moe_hybridep_num_sms moe_hybridep_num_sms_preprocessing"
        " moe_hybridep_pad_uneven_dispatch_inputs moe_ncclep_static_shape moe_ncclep_zero_copy moe_shared_expert_overlap"
        " moe_token_dispatcher_type no_align_grad_reduce no_align_param_gather no_async_tensor_model_parallel_allreduce"
        " no_async_tensor_parallel_allreduce no_clone_scatter_output_in_embedding"
        " disable_clone_scatter_output_in_embedding no_overlap_p2p_communication no_scatter_gather_tensors_in_pipeline"
        " overlap_dispatch_backward_with_experts_wgrad overlap_grad_reduce overlap_moe_expert_parallel_comm"
        " overlap_p2p_communication overlap_p2p_communication_warmup_flush overlap_param_gather"
        " overlap_param_gather_with_optimizer_step pipeline_model_parallel_comm_backend sharp_enabled_group"
        " standalone_embedding_stage suggested_communication_unit_size symmetric_ar_type tp_comm_bootstrap_backend"
        " tp_comm_overlap tp_comm_overlap_cfg tp_comm_overlap_rs_dgrad train_sync_interval use_nccl_ub"
        " use_ring_exchange_p2p use_sharp wgrad_deferral_limit moe_extended_tp no_overlap_p2p_comm"
        " use_distributed_optimizer delay_grad_reduce no_delay_grad_reduce delay_param_gather ub_tp_comm_overlap"
        " async_tensor_model_parallel_allreduce gtp_expert_remat_nccl_ub gtp_remat_nccl_ub gtp_remat_opt_in_modules"
        " expert_tensor_parallel_size expert_model_parallel_size",
    ),
    (
        Effect.SPEED,
        KERNELS,
        "attention_backend cross_entropy_fusion_impl cross_entropy_loss_fusion cuda_graph_impl cuda_graph_modules"
        " cuda_graph_scope cuda_graph_warmup_steps disable_mamba_mem_eff_path disable_mem_efficient_ln enable_cuda_graph"
        " enable_zbh1_exact_semantics enable_zbh1_pipeline external_cuda_graph flash_attention_version"
        " fused_residual_rmsnorm kitchen_attention_backend mla_down_proj_fusion mlp_chunks_for_training moe_grouped_gemm"
        " moe_permute_fusion moe_permute_fusion_into_hybridep moe_router_fusion moe_use_legacy_grouped_gemm"
        " bias_dropout_fusion bias_gelu_fusion scaled_masked_softmax_fusion scaled_upper_triang_masked_softmax_fusion"
        " no_scaled_masked_softmax_fusion no_bias_dropout_fusion no_bias_swiglu_fusion no_gradient_accumulation_fusion"
        " no_gradient_reduce_div_fusion"
        " no_persist_layer_norm optimizer_cuda_graph te_rng_tracker transformer_impl use_flash_attn_builder"
        " use_flash_attn_triton use_flash_attn_v1 use_flash_attn_v2 use_flash_attn_v3 use_fused_weighted_squared_relu"
        " use_grouped_gemm_for_dense_mlp use_grouped_gemm_for_shared_expert use_te_activation_func"
        " use_transformer_engine_op_fuser use_tutel moe_single_grouped_bias moe_single_grouped_weight",
    ),
    (
        Effect.SPEED,
        STAGES,
        "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split pipeline_model_parallel_layout"
        " decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers num_layers_per_virtual_pipeline_stage"
        " num_virtual_stages_per_pipeline_rank",
    ),
    (
        Effect.RUN,
        "Megatron-LM draws weights and dropout of all tensor parallel ranks from one stream then",
        "inference_rng_tracker",
    ),
    (Effect.NONE, "megatron-core computes it from --hidden-size and --mup-base-hidden-size", "mup_width_mult"),
    (
        Effect.RUN,
        OTHER_PROGRAM,
        "ckpt_convert_format fake_process_group perform_rl_step skip_train sft fim_data yaml_cfg freeze_all_layers inference",
    ),
    (
        Effect.RUN,
        "lt-train would start with other weights or another state",
        "pretrained_checkpoint moe_use_upcycling bert_load ict_load",
    ),
    (
        Effect.RUN,
        "lt-train has AdamW and Muon, and the schedules of --lr-decay-style",
        "optimizer lr_decay_style",
    ),
)
# Options of the step and the schedule that a checkpoint has.
OF_SCHEDULE = (
    "use_checkpoint_opt_param_scheduler",
    "use_checkpoint_lr_scheduler",
    "reset_iteration",
    "override_ckpt_iteration",
    "no_load_lr_state",
)
# Options that are read beside --load alone.
AT_LOADING = rows(
    (
        Effect.RUN,
        "lt-train takes the schedule from the command line and the step from the checkpoint",
        " ".join(OF_SCHEDULE),
    ),
    (
        Effect.RUN,
        "lt-train compares the model with the checkpoint's, and takes what the command line says, dropout too",
        "use_checkpoint_args",
    ),
    (
        Effect.RUN,
        "lt-train reads the newest checkpoint of a torch_dist run, or the one that --load names",
        "load_tag universal_checkpoint ckpt_step",
    ),
    (
        Effect.RUN,
        "lt-train takes float32 weights from the optimizer's state",
        "load_main_params_from_ckpt",
    ),
    (Effect.RUN, "lt-train refuses a checkpoint that lacks a tensor", "dist_ckpt_strictness"),
    (Effect.NONE, "lt-train's checkpoints load at any parallel sizes", "use_mp_args_from_checkpoint_args"),
    (
        Effect.NONE,
        "lt-train takes the schedule from the command line in any case",
        "override_opt_param_scheduler override_lr_scheduler",
    ),
    (Effect.NONE, "lt-train ends when --load has no checkpoint", "exit_on_missing_checkpoint"),
)
# Options of reinforcement learning, which --perform-rl-step switches on.
OF_REINFORCEMENT = ("rl_", "no_rl_", "grpo_", "langrl_", "no_langrl_", "refit_method")
# Options that another option switches on; without that option nothing reads them.
SWITCHES = {
    "no_data_sharding": ("dataloader_type", "cyclic"),
    **dict.fromkeys(mup.DEFAULTS, ("use_mup", None)),
    "sft_tokenizer_prompt_format": ("sft", None),
    "exit_signal": ("exit_signal_handler", None),
    "null_tokenizer_pad_id": ("tokenizer_type", "NullTokenizer"),
    "null_tokenizer_eod_id": ("tokenizer_type", "NullTokenizer"),
}
