"""Options that MindSpeed-LLM (Ascend) and Primus (AMD) add to Megatron-LM, and what their loss changes.

Read against MindSpeed-LLM of 2026-08-21 and Primus of 2026-08-22. Options that are not here count as unknown.
"""

from lt_train.importers.effects import Effect
from lt_train.importers.upstream.rows import rows

KERNELS = "it chooses a kernel of the vendor for the same computation"
OVERLAP = "it says when tensors are sent, not what is computed"
MEMORY = "it says where tensors are held or recomputed"
OF_DATA = "data is tokenized first: lt-preprocess, then DATA"

ROWS = rows(
    (
        Effect.SPEED,
        KERNELS,
        "use_fused_swiglu use_fused_rmsnorm use_fused_rotary_pos_emb gemm_gradient_accumulation_fusion mla_fa_without_pad"
        " mla_mm_split enable_mla_absorb use_fused_moe_token_permute_and_unpermute use_sparse_flash_attn use_triton_gdn"
        " no_enable_linear_qkv shape_order enable_primus_turbo use_turbo_attention use_turbo_grouped_gemm"
        " use_turbo_grouped_mlp use_turbo_rms_norm use_turbo_parallel_linear use_turbo_fused_act_with_probs"
        " use_turbo_deepep use_turbo_token_dispatcher_fp8_alltoall turbo_deepep_num_cu turbo_deepep_use_comm_stream"
        " turbo_sync_free_moe_stage moe_use_fused_router_with_aux_score",
    ),
    (
        Effect.SPEED,
        OVERLAP,
        "moe_permutation_async_comm moe_alltoall_overlap_comm moe_fb_overlap use_ascend_coc coc_fused_kernel use_ascend_mc2"
        " context_parallel_algo use_cp_send_recv_overlap use_fused_ring_attention_update disable_gloo_group moe_tp_extend_ep"
        " schedules_method num_layer_list",
    ),
    (
        Effect.SPEED,
        MEMORY,
        "reuse_fp32_param swap_optimizer swap_optimizer_times swap_attention recompute_activation_function"
        " mtp_mem_efficient_logits loss_compute_mode loss_chunk_size recompute_in_advance",
    ),
    (Effect.NONE, OF_DATA, "handler_name tokenizer_padding_side"),
    (Effect.NONE, "another program converts checkpoints", "enable_mg2hf_convert hf_cfg_dir"),
    (
        Effect.RESULT,
        "LOAD is a model of Hugging Face: lt-convert LOAD --to megatron-dist -o START, then --load START",
        "enable_hf2mg_convert",
    ),
    (Effect.NONE, "it belongs to enable_hf2mg_convert", "model_type_hf"),
    (Effect.NONE, "lt-train runs on PyTorch", "ai_framework"),
    (Effect.NONE, "lt-train finds by itself whether nodes share a file system", "no_shared_storage"),
    (
        Effect.NONE,
        "lt-train reports in its own way",
        "sink_level file_sink_level stderr_sink_level log_avg_skip_iterations log_avg_reset_interval disable_tensorboard"
        " disable_wandb disable_mlflow disable_profiler_activity_cpu dump_pp_data use_rocm_mem_info use_rocm_mem_info_iters"
        " disable_compile_dependencies mlflow_run_name mlflow_experiment_name trainable",
    ),
    (Effect.RESULT, "the vocabulary is padded to 128 x tensor parallel size", "padded_vocab_size"),
    (Effect.RESULT, "lt-train's router computes in float32", "router_gating_in_fp32 topk_softmax_in_fp32"),
    (Effect.NONE, "lt-train saves at the end of a run in any case", "disable_last_saving"),
    (Effect.NONE, "lt-train continues from its own --save", "auto_continue_train"),
)
