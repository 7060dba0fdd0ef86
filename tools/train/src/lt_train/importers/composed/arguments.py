"""Megatron-LM's parsed arguments, as YAML files write them, turned back into words of its command line.

An argument may bear another name than its option: `add_bias_linear: false` is --disable-bias-linear.
"""

from collections.abc import Mapping
from typing import Any

from lt_train.importers.upstream.rows import is_default, options

# Arguments that are true unless a switch turns them off, with the switch.
SWITCHED_OFF = {
    "add_bias_linear": "disable_bias_linear",
    "add_position_embedding": "no_position_embedding",
    "align_grad_reduce": "no_align_grad_reduce",
    "align_param_gather": "no_align_param_gather",
    "apply_rope_fusion": "no_rope_fusion",
    "async_tensor_model_parallel_allreduce": "no_async_tensor_model_parallel_allreduce",
    "barrier_with_L1_time": "no_barrier_with_level_1_timing",
    "bert_binary_head": "bert_no_binary_head",
    "bias_dropout_fusion": "no_bias_dropout_fusion",
    "bias_gelu_fusion": "no_bias_gelu_fusion",
    "bias_swiglu_fusion": "no_bias_swiglu_fusion",
    "check_for_nan_in_loss_and_grad": "no_check_for_nan_in_loss_and_grad",
    "ckpt_fully_parallel_save": "no_ckpt_fully_parallel_save",
    "create_attention_mask_in_dataloader": "no_create_attention_mask_in_dataloader",
    "fp8_wgrad": "no_fp8_wgrad",
    "gradient_accumulation_fusion": "no_gradient_accumulation_fusion",
    "masked_softmax_fusion": "no_masked_softmax_fusion",
    "mmap_bin_files": "no_mmap_bin_files",
    "overlap_p2p_comm": "no_overlap_p2p_communication",
    "perform_initialization": "no_initialization",
    "retro_verify_neighbor_count": "retro_no_verify_neighbor_count",
    "scatter_gather_tensors_in_pipeline": "no_scatter_gather_tensors_in_pipeline",
    "torch_fsdp2_reshard_after_forward": "torch_fsdp2_no_reshard_after_forward",
    "tp_comm_bulk_dgrad": "disable_tp_comm_bulk_dgrad",
    "tp_comm_bulk_wgrad": "disable_tp_comm_bulk_wgrad",
    "tp_comm_overlap_ag": "disable_tp_comm_overlap_ag",
    "tp_comm_overlap_rs": "disable_tp_comm_overlap_rs",
    "tp_comm_split_ag": "disable_tp_comm_split_ag",
    "tp_comm_split_rs": "disable_tp_comm_split_rs",
    "use_gloo_process_groups": "disable_gloo_process_groups",
    "use_mcore_models": "use_legacy_models",
}

# Arguments that bear other names than their options.
RENAMED = {"fp8": "fp8_format", "fp4": "fp4_format"}


def switch_of(name: str) -> str | None:
    """Return the switch that turns an argument off which is true without it, or None if it is no such argument."""
    known = options("megatron_lm")
    if name in SWITCHED_OFF or name in known:
        return SWITCHED_OFF.get(name)
    return next((f"{prefix}_{name}" for prefix in ("no", "disable") if f"{prefix}_{name}" in known), None)


def words_of(arguments: Mapping[str, Any]) -> list[str]:
    """Return the words that parse to `arguments`. Arguments with Megatron-LM's default are left out."""
    words: list[str] = []
    for name, value in arguments.items():
        switch = switch_of(name)
        if switch is not None:
            words += [] if value is not False else [f"--{switch.replace('_', '-')}"]
            continue
        if name.startswith("inference_"):
            continue
        name = RENAMED.get(name, name)
        kind, default = options("megatron_lm").get(name, ("", None))[:2]
        if value is None or value is False or value == [] or (kind and is_default(value, default)):
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words += [str(entry) for entry in (value if isinstance(value, list) else str(value).split())]
    return words
