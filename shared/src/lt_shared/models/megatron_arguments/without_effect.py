"""Megatron's arguments that change neither the weights in a checkpoint nor the logits of the model, by the reason.

The names come from TransformerConfig, Megatron-LM's options and the forks that lt-train imports. Megatron-LM stores the
options `--no-X` and `--disable-X` under X: both names mean one argument. lt-train reads the groups down to STAGES as options
whose loss changes no result of a run. tests/shared/models/field_table.tsv has the upstream lines.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Group:
    """Arguments without effect. `names` are separated by spaces."""

    reason: str
    names: str


REPORTS = Group(
    "it says what is reported",
    "app_tag_run_name app_tag_run_version codecarbon_dir config_logger_dir disable_log_loss_scale_to_tensorboard "
    "disable_straggler_on_startup dump_param_to_param_group_map enable_one_logger log_batch_size_to_tensorboard "
    "log_device_memory_used log_energy log_interval log_learning_rate_to_tensorboard log_level log_level_replica "
    "log_loss_scale_to_tensorboard log_max_attention_logit log_memory_interval log_memory_to_tensorboard log_num_zeros_in_grad "
    "log_optimizer_states_to_tensorboard log_params_norm log_progress log_straggler log_timers_to_tensorboard "
    "log_validation_ppl_to_tensorboard log_world_size_to_tensorboard logging_level memory_snapshot_path moe_per_layer_logging "
    "moe_routing_trace_capture_hidden_states moe_routing_trace_capture_logits moe_routing_trace_dump_weights "
    "moe_routing_trace_max_training_iters moe_routing_trace_path no_barrier_with_level_1_timing "
    "no_log_learnig_rate_to_tensorboard no_log_learning_rate_to_tensorboard no_log_loss_scale_to_tensorboard no_one_logger "
    "nvtx_ranges one_logger_async one_logger_project one_logger_run_name otel_enabled otel_endpoint otel_service_name "
    "otel_span_groups profile_backward profile_ranks profile_step_end profile_step_start pytorch_profiler_collect_callstack "
    "pytorch_profiler_collect_chakra pytorch_profiler_collect_shapes record_shapes run_workload_inspector_server "
    "save_activations_interval save_dgrads_interval save_params_interval save_tokens_per_expert_interval save_wgrads_interval "
    "straggler_ctrlr_port straggler_minmax_count tensorboard_dir tensorboard_log_interval tensorboard_queue_size "
    "timing_log_level timing_log_option use_pytorch_profiler use_wandb wandb_api_key wandb_entity wandb_entity_name "
    "wandb_exp_name wandb_group wandb_group_name wandb_id wandb_key wandb_log_model wandb_logger wandb_mode wandb_name "
    "wandb_notes wandb_project wandb_resume wandb_run_id wandb_run_name wandb_save_dir wandb_tags",
)
CHECKPOINTS = Group(
    "it says how checkpoints are written and read",
    "async_ckpt_cpu_priority async_ckpt_io_priority async_ckpt_use_cpu_shm async_save async_strategy auto_detect_ckpt_format "
    "ckpt_assume_constant_structure ckpt_convert_save ckpt_convert_update_legacy_dist_opt_format "
    "ckpt_drop_redundant_extra_state ckpt_format ckpt_fully_parallel_load ckpt_fully_parallel_load_exchange_algo "
    "ckpt_fully_parallel_load_per_rank_objects ckpt_fully_parallel_load_process_group ckpt_fully_parallel_save "
    "ckpt_fully_parallel_save_process_group ckpt_pg_tensors_cache_create ckpt_pg_tensors_cache_path "
    "disable_ckpt_load_validate_sharding_integrity disable_msc disable_save_tokenizer_assets disable_stream_ckpt_dequant "
    "disable_strict_fsdp_dtensor_load dist_ckpt_format dist_ckpt_optim_fully_reshardable dist_ckpt_save_pre_mcore_014 "
    "dist_ckpt_workers distrib_optim_fully_reshardable_mem_efficient enable_msc no_ckpt_fully_parallel_save "
    "no_ckpt_load_validate_sharding_integrity no_save_optim no_save_rng no_save_tokenizer_assets no_stream_ckpt_dequant "
    "no_strict_fsdp_dtensor_load non_persistent_local_ckpt_algo non_persistent_local_ckpt_dir non_persistent_save_interval "
    "persistent_save_interval replication replication_factor replication_jump save_interval save_retain_interval use_dist_ckpt "
    "use_persistent_ckpt_worker verify_integrity",
)
TOKENIZER = Group(
    "the tokenizer belongs to the data",
    "chat_template disable_tokenizer_sentencepiece_ignore_extra_whitespaces disable_use_tokenizer_model_from_checkpoint_args "
    "legacy_tokenizer merge_file no_tokenizer_sentencepiece_ignore_extra_whitespaces no_use_tokenizer_from_checkpoint_args "
    "no_use_tokenizer_model_from_checkpoint_args special_tokens tiktoken_num_special_tokens tiktoken_pattern "
    "tiktoken_special_tokens tokenizer_hf_include_special_tokens tokenizer_hf_no_include_special_tokens "
    "tokenizer_hf_no_use_fast tokenizer_hf_use_fast tokenizer_kwargs tokenizer_metadata tokenizer_model tokenizer_name_or_path "
    "tokenizer_path tokenizer_sentencepiece_legacy tokenizer_special_tokens tokenizer_type trust_remote_code vocab_file",
)
FAULTS = Group(
    "it says what a failure does",
    "adlr_autoresume adlr_autoresume_interval calc_ft_timeouts check_weight_hash_across_dp_replicas_interval "
    "disable_flight_recorder_dump_on_timeout disable_flight_recorder_extra_dump_on_exec "
    "disable_flight_recorder_include_only_active distributed_timeout_minutes distributed_timeout_seconds_after_init "
    "enable_ft_package exit_signal_handler exit_signal_handler_for_dataloader exit_signal_handler_for_training "
    "flight_recorder_dump_path flight_recorder_include_stack_trace flight_recorder_trace_buffer_size ft_num_warmup_iters "
    "gpu_sniff_test_interval inprocess_active_world_size inprocess_barrier_timeout inprocess_completion_timeout "
    "inprocess_empty_cuda_cache inprocess_granularity inprocess_hard_timeout inprocess_heartbeat_interval "
    "inprocess_heartbeat_timeout inprocess_last_call_wait inprocess_max_iterations inprocess_monitor_process_interval "
    "inprocess_monitor_thread_interval inprocess_progress_watchdog_interval inprocess_restart inprocess_soft_timeout "
    "inprocess_termination_grace_time kill_switch_file no_flight_recorder_dump_on_timeout "
    "no_flight_recorder_extra_dump_on_exec no_flight_recorder_include_only_active trigger_path",
)
DATA_FILES = Group(
    "it says how the files of the data are read",
    "data_cache_path data_impl dataloader_defer_npy_index_mmap dataloader_fast_cache_load doc_idx_path mmap_warmup "
    "no_mmap_bin_files num_dataset_builder_threads object_storage_cache_path per_dataset_sequences_path s3_cache_path "
    "sample_idx_path shuffle_idx_path test_doc_idx_path test_idx_path test_sample_idx_path test_shuffle_idx_path "
    "train_doc_idx_path train_idx_path train_sample_idx_path train_shuffle_idx_path valid_doc_idx_path valid_idx_path "
    "valid_sample_idx_path valid_shuffle_idx_path",
)
RENDEZVOUS = Group(
    "it says how ranks find each other",
    "DDP_impl deepspeed deepspeed_mpi disable_gloo_process_groups distributed_backend enable_gloo_process_groups "
    "fake_local_rank local_rank master_addr master_port nccl_communicator_config_path no_pipeline_parallel query_gpu rank "
    "remote_device use_mpi use_tp_pp_dp_mapping world_size",
)
INFERENCE = Group(
    "inference alone reads it",
    "decode_only_cuda_graphs disable_chunked_prefill enable_chunked_prefill flash_decode "
    "inference_batch_times_seqlen_threshold inference_coordinator_port inference_cuda_graph_all_prefills "
    "inference_cuda_graph_max_tokens inference_cuda_graph_scope inference_disable_ep_consensus "
    "inference_disable_triton_nvls_kernels inference_dynamic_batching inference_dynamic_batching_async_sched_mode "
    "inference_dynamic_batching_block_size inference_dynamic_batching_buffer_guaranteed_fraction "
    "inference_dynamic_batching_buffer_overflow_factor inference_dynamic_batching_buffer_size_gb "
    "inference_dynamic_batching_chunk_size inference_dynamic_batching_cuda_graph_max_tokens "
    "inference_dynamic_batching_cuda_graph_mixed_prefill_count inference_dynamic_batching_cuda_graph_sizing_distribution "
    "inference_dynamic_batching_logprobs_mode inference_dynamic_batching_mamba_memory_ratio "
    "inference_dynamic_batching_max_requests inference_dynamic_batching_max_requests_override "
    "inference_dynamic_batching_max_tokens inference_dynamic_batching_max_tokens_override "
    "inference_dynamic_batching_num_cuda_graphs inference_dynamic_batching_paused_buffer_size_gb "
    "inference_dynamic_batching_prefix_caching inference_dynamic_batching_prefix_caching_coordinator_policy "
    "inference_dynamic_batching_prefix_caching_eviction_policy inference_dynamic_batching_prefix_caching_mamba_gb "
    "inference_dynamic_batching_prefix_caching_routing_alpha inference_dynamic_batching_sampling_backend "
    "inference_dynamic_batching_track_generated_token_events inference_dynamic_batching_track_paused_request_events "
    "inference_dynamic_batching_unified_memory_level inference_fuse_tp_communication inference_grouped_gemm_backend "
    "inference_logging_step_interval inference_max_batch_size inference_max_requests inference_max_seq_length "
    "inference_moe_disable_fused_quant_kernels inference_moe_token_dispatcher_type inference_sampling_seed inference_shards "
    "inference_text_gen_server_logging inference_use_synchronous_zmq_collectives inference_wandb_logging "
    "mamba_inference_conv_states_dtype mamba_inference_ssm_states_dtype max_tokens_to_oom mlp_chunks_for_prefill "
    "moe_pad_experts_for_cuda_graph_inference nccl_all_reduce_for_prefill no_inference_disable_ep_consensus "
    "no_inference_dynamic_batching_prefix_caching no_inference_text_gen_server_logging "
    "no_inference_use_synchronous_zmq_collectives no_inference_wandb_logging use_inference_optimized_layers "
    "use_legacy_static_engine",
)
MEMORY = Group(
    "it says how tensors are held or moved, not what they hold",
    "activation_offload_fraction activations_checkpoint_method activations_checkpoint_num_layers checkpoint_activations "
    "checkpoint_in_cpu checkpoint_num_layers contigious_checkpointing cpu_offloading cpu_offloading_activations "
    "cpu_offloading_double_buffering cpu_offloading_num_layers cpu_offloading_retain_pinned_cpu_buffers cpu_offloading_weights "
    "cpu_optimizer cpu_torch_adam data_parallel_sharding_strategy ddp_num_buckets ddp_pad_buckets_for_high_nccl_busbw "
    "deepspeed_activation_checkpointing delay_offload_until_cuda_graph delta_offload_bytes_across_pp_ranks "
    "disable_manual_gc_eval distribute_checkpointed_activations distribute_saved_activations empty_unused_memory_level "
    "enable_full_sharding_in_hsdp fine_grained_activation_offloading fine_grained_offloading_max_inflight_offloads "
    "force_ds_sequence_parallel fsdp_db_use_persist_buf_on_alloc_fail fsdp_double_buffer fsdp_manual_registration "
    "keep_fp8_transpose_cache keep_fp8_transpose_cache_when_using_custom_fsdp manual_gc manual_gc_interval "
    "megatron_fsdp_enable_fine_grained_param_gather megatron_fsdp_max_pool_double_buffer megatron_fsdp_version "
    "memory_centric_tiled_linear mhc_recompute_layer_num min_offloaded_tensor_size moe_layer_recompute moe_paged_stash "
    "moe_paged_stash_buffer_size_factor_cpu moe_paged_stash_buffer_size_factor_cuda moe_paged_stash_page_size "
    "no_contiguous_buffers_in_local_ddp no_manual_gc_eval no_pin_cpu_grads no_pin_cpu_params no_use_layer_wise_param_layout "
    "num_microbatches_with_partial_activation_checkpoints num_workers offload_modules optimizer_cpu_offload "
    "optimizer_offload_fraction outer_dp_sharding_strategy overlap_cpu_optimizer_d2h_h2d partition_activations "
    "recompute_activations recompute_granularity recompute_method recompute_modules recompute_num_layers "
    "reuse_grad_buf_for_mxfp8_param_ag synchronize_each_layer tile_factor torch_fsdp2_no_reshard_after_forward "
    "use_contiguous_buffers_in_local_ddp use_custom_fsdp use_megatron_fsdp use_pin_memory use_precision_aware_optimizer "
    "use_torch_fsdp2 use_torch_optimizer_for_cpu_offload zero_allgather_bucket_size zero_contigious_gradients "
    "zero_reduce_bucket_size zero_reduce_scatter zero_stage",
)
COLLECTIVES = Group(
    "it says how ranks communicate",
    "async_tensor_model_parallel_allreduce barrier_with_L1_time batch_p2p_comm batch_p2p_sync "
    "clone_scatter_output_in_embedding cp_comm_type create_all_gather_group ddp_bucket_size deallocate_pipeline_outputs "
    "defer_embedding_wgrad_compute delay_grad_reduce delay_param_gather delay_wgrad_compute disable_align_grad_reduce "
    "disable_async_tensor_model_parallel_allreduce disable_clone_scatter_output_in_embedding disable_symmetric_registration "
    "disable_tp_comm_bulk_dgrad disable_tp_comm_bulk_wgrad disable_tp_comm_overlap_ag disable_tp_comm_overlap_rs "
    "disable_tp_comm_split_ag disable_tp_comm_split_rs ep_overlap_early_attn_memory_release expert_gtp_weight_remat_size "
    "expert_model_parallel_size expert_tensor_parallel_num_weight_shards expert_tensor_parallel_size gtp_expert_remat_nccl_ub "
    "gtp_remat_nccl_ub gtp_remat_opt_in_modules gtp_weight_remat_size hierarchical_context_parallel_sizes "
    "high_priority_a2a_comm_stream high_priority_stream_groups microbatch_group_size_per_virtual_pipeline_stage "
    "microbatch_group_size_per_vp_stage moe_deepep_num_sms moe_enable_deepep moe_extended_tp moe_flex_dispatcher_backend "
    "moe_flex_dispatcher_num_sms moe_hybridep_num_blocks_permute moe_hybridep_num_blocks_unpermute moe_hybridep_num_sms "
    "moe_hybridep_num_sms_preprocessing moe_hybridep_pad_uneven_dispatch_inputs moe_ncclep_static_shape moe_ncclep_zero_copy "
    "moe_shared_expert_overlap moe_token_dispatcher_type no_align_grad_reduce no_align_param_gather "
    "no_async_tensor_model_parallel_allreduce no_async_tensor_parallel_allreduce no_clone_scatter_output_in_embedding "
    "no_delay_grad_reduce no_overlap_p2p_comm no_overlap_p2p_communication no_scatter_gather_tensors_in_pipeline "
    "num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage overlap_dispatch_backward_with_experts_wgrad "
    "overlap_grad_reduce overlap_moe_expert_parallel_comm overlap_p2p_comm overlap_p2p_comm_warmup_flush "
    "overlap_p2p_communication overlap_p2p_communication_warmup_flush overlap_param_gather "
    "overlap_param_gather_with_optimizer_step pipeline_model_parallel_comm_backend scatter_embedding_sequence_parallel "
    "sharp_enabled_group standalone_embedding_stage suggested_communication_unit_size symmetric_ar_type "
    "tensor_parallel_num_weight_shards tp_comm_atomic_ag tp_comm_atomic_rs tp_comm_bootstrap_backend tp_comm_bulk_dgrad "
    "tp_comm_bulk_wgrad tp_comm_overlap tp_comm_overlap_ag tp_comm_overlap_cfg tp_comm_overlap_disable_fc1 "
    "tp_comm_overlap_disable_qkv tp_comm_overlap_rs tp_comm_overlap_rs_dgrad tp_comm_split_ag tp_comm_split_rs "
    "train_sync_interval ub_tp_comm_overlap use_distributed_optimizer use_nccl_ub use_ring_exchange_p2p use_sharp "
    "wgrad_deferral_limit",
)
KERNELS = Group(
    "it chooses a kernel for the same computation",
    "apply_rope_fusion attention_backend bias_dropout_add_fusion bias_dropout_fusion cross_entropy_fusion_impl "
    "cross_entropy_loss_fusion cuda_graph_impl cuda_graph_modules cuda_graph_retain_backward_graph cuda_graph_scope "
    "cuda_graph_use_single_mempool cuda_graph_warmup_steps dense_grouped_gemm disable_mamba_mem_eff_path "
    "disable_mem_efficient_ln disable_parameter_transpose_cache enable_cuda_graph enable_zbh1_exact_semantics "
    "enable_zbh1_pipeline external_cuda_graph flash_attention_version fused_residual_rmsnorm fused_single_qkv_rope "
    "gradient_accumulation_fusion kitchen_attention_backend masked_softmax_fusion memory_efficient_layer_norm "
    "mla_down_proj_fusion mlp_chunks_for_training moe_grouped_gemm moe_ncclep_use_symm_mem moe_permute_fusion "
    "moe_permute_fusion_into_hybridep moe_router_fusion moe_single_grouped_bias moe_single_grouped_weight "
    "moe_use_grouped_tensor moe_use_legacy_grouped_gemm no_bias_dropout_fusion no_bias_swiglu_fusion "
    "no_gradient_accumulation_fusion no_gradient_reduce_div_fusion no_persist_layer_norm no_scaled_masked_softmax_fusion "
    "optimizer_cuda_graph persist_layer_norm scaled_masked_softmax_fusion scaled_upper_triang_masked_softmax_fusion "
    "te_rng_tracker transformer_impl use_flash_attn_builder use_flash_attn_triton use_flash_attn_v1 use_flash_attn_v2 "
    "use_flash_attn_v3 use_fused_weighted_squared_relu use_grouped_gemm_for_dense_mlp use_grouped_gemm_for_shared_expert "
    "use_mamba_mem_eff_path use_te_activation_func use_te_rng_tracker use_transformer_engine_op_fuser use_tutel",
)
STAGES = Group(
    "it says which pipeline rank has which layers",
    "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split decoder_first_pipeline_num_layers "
    "decoder_last_pipeline_num_layers num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank "
    "pipeline_model_parallel_layout virtual_pipeline_model_parallel_size",
)
PARALLEL = Group(
    "it says how tensors are divided over ranks; a checkpoint has whole tensors",
    "context_parallel_size encoder_pipeline_model_parallel_size encoder_tensor_model_parallel_size fake_process_group "
    "gtp_remat_reduce_scatter_with_fp32_accumulation hetereogenous_dist_checkpoint hybrid_context_parallel lazy_mpu_init "
    "make_vocab_size_divisible_by max_seqlen_per_dp_cp_rank model_parallel_size mtp_enabled mtp_standalone "
    "num_distributed_optimizer_instances pad_vocab_size parallel_output pipeline_model_parallel_size "
    "pipeline_model_parallel_split_rank sequence_parallel should_pad_vocab tensor_model_parallel_size test_mode "
    "tp_only_amax_red use_dist_ckpt_deprecated use_gloo_process_groups use_mp_args_from_checkpoint_args variable_seq_lengths "
    "wrap_with_ddp",
)
PRECISION = Group(
    "it says in which types the same is computed: only the rounding differs",
    "accumulate_allreduce_grads_in_fp32 activation_func_fp8_input_store apply_query_key_layer_scaling "
    "apply_rotary_pos_emb_in_fp32 attention_softmax_in_fp32 autocast_dtype batch_invariant_backend batch_invariant_mode bf16 "
    "ddp_param_name_patterns_for_fp32_local_accumulation ddp_reduce_scatter_with_fp32_accumulation deterministic_mode "
    "disable_bf16_reduced_precision_matmul enable_autocast exp_avg_dtype exp_avg_sq_dtype first_last_layers_bf16 fp16 "
    "fp16_lm_cross_entropy fp32_residual_connection grad_reduce_in_bf16 keep_in_fp32 logit_dtype main_grads_dtype "
    "main_params_dtype megatron_fsdp_grad_comm_dtype megatron_fsdp_main_grads_dtype megatron_fsdp_main_params_dtype "
    "mixed_precision_wrapper moe_combine_bwd_dtype moe_dispatch_fwd_dtype moe_router_dtype moe_router_padding_for_fp8 "
    "moe_router_padding_for_quantization num_layers_at_end_in_bf16 num_layers_at_start_in_bf16 params_dtype pipeline_dtype "
    "quant_recipe use_kitchen use_kitchen_attention",
)
INITIAL = Group(
    "it says with which weights a run begins",
    "data_parallel_random_init embedding_init_method embedding_init_method_std init_method init_method_xavier_uniform "
    "init_model_with_meta_device load_model_opt_format moe_upcycling_granularity moe_use_upcycling mup_width_mult "
    "output_layer_init_method perform_initialization pretrained_checkpoint seed use_cpu_initialization",
)
TRAINING = Group(
    "training alone reads it: data, optimizer, schedule, dropout and losses",
    "adam_beta1 adam_beta2 adam_eps allow_ambiguous_pad_tokens apply_wd_to_qk_layernorm attention_dropout batch_size "
    "calculate_per_token_loss check_for_large_grads check_for_nan_in_loss_and_grad check_for_spiky_loss ckpt_convert_format "
    "ckpt_fully_parallel_save_deprecated ckpt_step clip_grad create_attention_mask_in_dataloader data_args_path data_path "
    "data_sharding data_step_fn dataloader_inter_document_masking dataloader_type ddp_average_in_collective decoupled_lr "
    "decoupled_min_lr decrease_batch_size_if_needed disable_jit_fuser disable_msc_deprecated dist_ckpt_format_deprecated "
    "dist_ckpt_strictness enable_experimental end_weight_decay eod_mask_loss error_injection_rate error_injection_type "
    "eval_global_batch_size eval_interval eval_iters eval_micro_batch_size exit_duration_in_mins exit_interval "
    "exit_on_missing_checkpoint exit_signal experimental_attention_variant_loss_scale_func export_force_local_attention "
    "finalize_model_grads_func finetune finetune_data_files finetune_data_split finetune_hf_dataset forward_step_fn "
    "freeze_all_layers freeze_base_for_mtp full_validation fully_parallel_load fully_parallel_save global_batch_size "
    "grad_scale_func grad_sync_func hidden_dropout hysteresis initial_loss_scale iterations_to_skip lion_beta1 lion_beta2 load "
    "load_main_params_from_ckpt log_throughput loss_scale loss_scale_window lr lr_decay_iters lr_decay_samples lr_decay_style "
    "lr_warmup_fraction lr_warmup_init lr_warmup_iters lr_warmup_samples lr_wsd_decay_iters lr_wsd_decay_samples "
    "lr_wsd_decay_style micro_batch_size mid_level_dataset_surplus min_loss_scale min_lr mock_data moe_enable_routing_replay "
    "moe_grad_scale_func moe_pad_expert_input_to_capacity moe_router_bias_update_rate moe_router_quantile_balancing_ema "
    "moe_token_drop_policy moe_z_loss_coeff mtp_detach_heads mtp_grad_scale_func mtp_hsm mtp_loss_scaling_factor "
    "multiple_validation_sets no_load_optim no_load_rng no_sync_func no_weight_decay_cond_type non_persistent_ckpt_type "
    "non_persistent_global_ckpt_dir null_tokenizer_eod_id null_tokenizer_pad_id offset_sampling_seed_by_dp_rank optimizer "
    "override_ckpt_iteration override_opt_param_scheduler param_sync_func per_split_data_args_path phase_transition_iterations "
    "profile qk_clip qk_clip_alpha qk_clip_threshold rampup_batch_size record_memory_history renormalize_blend_weights "
    "rerun_mode reset_attention_mask reset_position_ids save sft sft_tokenizer_prompt_format sgd_momentum skip_train split "
    "start_eval_at_iter start_weight_decay step_batch_size_schedule test_data_path timers torch_fsdp2_reshard_after_forward "
    "train_data_path train_iters train_samples use_arbitrary_attention_mask use_checkpoint_args "
    "use_checkpoint_opt_param_scheduler use_gigatoken use_nsys_profiler valid_data_path validation_set_names warmup "
    "weight_decay weight_decay_incr_style",
)
ORIGIN = Group(
    "it repeats another field, or says where the model comes from",
    "add_position_embedding bos_token_id decoder_num_layers deprecated_use_mcore_models encoder_num_layers eos_token_id "
    "export_default_te_spec export_kd_cfg export_kd_finalize export_kd_teacher_ckpt_format export_kd_teacher_load "
    "export_kd_teacher_model_config export_kv_cache_quant export_legacy_megatron export_model_type export_num_eagle_layers "
    "export_num_medusa_heads export_offline_model export_quant_cfg export_real_quant_cfg export_te_mcore_model "
    "extra_checkpoint_metadata generation_config hf_model_id hf_model_revision modelopt_enabled onnx_safe pad_token_id "
    "post_wrap_hooks pre_wrap_hooks qad_train_target restore_modelopt_state transformer use_flash_attn use_legacy_models "
    "use_rotary_position_embeddings vocab_extra_ids yaml_cfg",
)
UNUSED = Group(
    "another program reads it, or a layer that is refused",
    "block_data_path cache_mla_latents classes_fraction data_per_class_fraction decoder_seq_length embedding_path "
    "encoder_seq_length evidence_data_path gdp_cutedsl_kernel gdp_num_chunk_states_to_recompute gdp_num_householder "
    "head_lr_mult img_h img_w indexer_batch_size indexer_log_interval iter_per_epoch mask_factor mask_prob mask_type "
    "metadata_path mhc_init_gating_factor mhc_num_residual_streams mhc_sinkhorn_iterations num_channels num_classes "
    "num_speculative_tokens output_bert_embeddings patch_dim perform_rl_step query_in_block_prob refit_method "
    "relative_attention_max_distance relative_attention_num_buckets result_rejected_tracker_filename retro_attention_gate "
    "retro_cyclic_train_iters retro_encoder_attention_dropout retro_encoder_hidden_dropout retro_encoder_layers "
    "retro_num_neighbors retro_num_retrieved_chunks retro_project_dir retro_verify_neighbor_count sample_rate seq_length_dec "
    "short_seq_prob swin_backbone_type titles_data_path use_one_sent_docs",
)
GROUPS = (
    *(REPORTS, CHECKPOINTS, TOKENIZER, FAULTS, DATA_FILES, RENDEZVOUS, INFERENCE, MEMORY),
    *(COLLECTIVES, KERNELS, STAGES, PARALLEL, PRECISION, INITIAL, TRAINING, ORIGIN, UNUSED),
)
# Arguments of features that belong together, in every version.
PREFIXES = (
    *("tp_comm_", "fp8", "fp4", "cuda_graph_", "inference_", "nccl_", "te_", "kitchen_", "moe_paged_stash"),
    *("moe_routing_trace", "dsa_", "mamba_", "gtp_", "_", "lt_", "bert_", "biencoder_", "dino_", "ict_"),
    *("retriever_", "vision_", "rl_", "grpo_", "langrl_", "fim_", "fault_injector_", "muon_", "logits_load_", "logits_save_"),
)
REASON_BY_NAME = {name: group.reason for group in GROUPS for name in group.names.split()}


def reason(name: str) -> str | None:
    """Return why an argument of Megatron has no effect on weights and logits, or None if it is in no group."""
    spellings = (name, f"no_{name}", f"disable_{name}")
    listed = next((REASON_BY_NAME[spelling] for spelling in spellings if spelling in REASON_BY_NAME), None)
    if listed is None and name.startswith(PREFIXES):
        return "it belongs to a feature without effect: precision, kernels, inference, or layers that are refused"
    return listed
