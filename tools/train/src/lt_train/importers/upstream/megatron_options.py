"""Options of Megatron-LM and its forks that lt-train does not have, and what their loss changes.

Read against megatron/training of core_v0.16.1 and core_v0.19.0, Megatron-DeepSpeed and FlagScale. An option that stands in no row
may change the result.
"""

from lt_shared.models.megatron_arguments import mup, without_effect
from lt_train.importers.effects import Effect
from lt_train.importers.upstream.rows import rows

TOKENIZER = "the tokenizer belongs to the data: lt-preprocess --tokenizer"
CHECKPOINTS = "it says how checkpoints are written; lt-train writes torch_dist in its own way"
REPORTS = "lt-train reports in its own way"
FAULTS = "lt-train has its own restarts and time-outs"
INFERENCE = without_effect.INFERENCE.reason
MEMORY = without_effect.MEMORY.reason
COLLECTIVES = without_effect.COLLECTIVES.reason
KERNELS = without_effect.KERNELS.reason
STAGES = without_effect.STAGES.reason
FP8_SCALES = "the scale of fp8 is computed anew for each GEMM, not from earlier steps"
SCALES_CANCEL = "attention scores are divided by the layer's number and multiplied again: only the rounding differs"
OTHER_PROGRAM = "the command does not train so: lt-train would"

ROWS = rows(
    (
        Effect.NONE,
        REPORTS,
        without_effect.REPORTS.names,
    ),
    (
        Effect.NONE,
        CHECKPOINTS,
        without_effect.CHECKPOINTS.names,
    ),
    (
        Effect.NONE,
        TOKENIZER,
        without_effect.TOKENIZER.names,
    ),
    (
        Effect.NONE,
        FAULTS,
        without_effect.FAULTS.names,
    ),
    (
        Effect.NONE,
        "data is Megatron's mmap format, and is read so in any case",
        without_effect.DATA_FILES.names,
    ),
    (
        Effect.NONE,
        "it says how ranks find each other, which lt-train does by itself",
        without_effect.RENDEZVOUS.names,
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
        FP8_SCALES,
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
        without_effect.INFERENCE.names,
    ),
    (
        Effect.SPEED,
        MEMORY,
        without_effect.MEMORY.names,
    ),
    (
        Effect.SPEED,
        COLLECTIVES,
        without_effect.COLLECTIVES.names,
    ),
    (
        Effect.SPEED,
        KERNELS,
        without_effect.KERNELS.names + " bias_gelu_fusion",
    ),
    (
        Effect.SPEED,
        STAGES,
        without_effect.STAGES.names,
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
