"""Megatron-Bridge's `run_config.yaml`, which it writes into each checkpoint: all fields of its configuration, defaults included.

Its recipes are Python and would have to be executed; the file says what they came to.
"""

import re
from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadData
from lt_train.config.settings.model import experts, latent_attention
from lt_train.importers import megatron_latents
from lt_train.importers.effects import Effect
from lt_train.importers.layer_style import ZERO_CENTERED, complete
from lt_train.importers.ledger import Ledger, Translation, options

SOURCE = "Megatron-Bridge"
CONTAINER, MODEL = "_target_", "model._target_"
OTHER_MODELS = re.compile(r"T5|Mamba|Hybrid|VL|Vision|Audio|Mimo|MIMO|Gemma|Nemotron|OSS")
MEGATRONS = "megatron-core's own default, as in lt-train"
REASONS = {
    "model.make_vocab_size_divisible_by": "the vocabulary is padded to 128 x tensor parallel size",
    "model.layernorm_zero_centered_gamma": ZERO_CENTERED,
    "model.generation_config.": "a setting of generation",
    "model.low_freq_factor": "it is 1.0 in megatron-core",
    "model.high_freq_factor": "it is 4.0 in megatron-core",
    "model.old_context_len": "it is 8192 in megatron-core",
    "dataset.random_seed": "the seed of the run orders the data",
    "dataset.split_matrix": "dataset.split says it",
    "optimizer.optimizer": "AdamW, as in lt-train",
}
# Fields with what megatron-core has where nothing is said. Of the same value they say nothing.
NEUTRAL = {
    "model.mamba_head_dim": 64,
    "model.mamba_num_groups": 8,
    "model.mamba_state_dim": 128,
    "model.moe_router_score_function": "softmax",
    "model.moe_router_load_balancing_type": "aux_loss",
    "model.mtp_loss_scaling_factor": 0.1,
    "model.softmax_type": "vanilla",
    "model.glu_linear_offset": 0.0,
}
SAME_NAMES = {
    "model": (
        *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "vocab_size"),
        *("init_method_std", "hidden_dropout", "attention_dropout", "rotary_base", "rotary_percent", "window_size"),
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size"),
        *latent_attention.SIZES,
        *("mtp_num_layers", "mtp_loss_scaling_factor"),
        *("recompute_granularity", "recompute_method", "recompute_num_layers"),
    ),
    "train": ("micro_batch_size", "global_batch_size", "train_iters", "train_samples", "rampup_batch_size"),
    "optimizer": ("lr", "min_lr", "weight_decay", "clip_grad", "adam_beta1", "adam_beta2", "adam_eps"),
    "scheduler": (
        *("lr_decay_style", "lr_decay_iters", "lr_decay_samples", "lr_wsd_decay_style", "lr_wsd_decay_iters"),
        *("lr_warmup_iters", "lr_warmup_fraction", "lr_warmup_samples"),
    ),
    "checkpoint": ("save", "save_interval"),
    "logger": ("log_interval", "tensorboard_dir", "wandb_project", "wandb_exp_name"),
    "rng": ("seed",),
    "ddp": ("num_distributed_optimizer_instances",),
}
RENAMED = {
    "model.layernorm_epsilon": "norm_epsilon",
    "model.num_moe_experts": "num_experts",
    "dataset.sequence_length": "seq_length",
    "dataset.seq_length": "seq_length",
    "dataset.split": "split",
    "model.seq_length": "max_position_embeddings",
    "train.eval_iters": "eval_iters",
    "train.eval_interval": "eval_interval",
    "validation.eval_iters": "eval_iters",
    "validation.eval_interval": "eval_interval",
}
FLAGS = {
    "model.sequence_parallel": "sequence_parallel",
    "model.add_qkv_bias": "add_qkv_bias",
    "model.qk_layernorm": "qk_layernorm",
    "model.multi_latent_attention": "multi_latent_attention",
    "ddp.use_distributed_optimizer": "use_distributed_optimizer",
    "ddp.overlap_grad_reduce": "overlap_grad_reduce",
    "ddp.overlap_param_gather": "overlap_param_gather",
    "checkpoint.async_save": "async_save",
}
OF_EXPERTS = (
    *(field for field in experts.FIELDS if field != "num_experts"),
    *("moe_router_bias_update_rate", "moe_token_dispatcher_type"),
)


def is_run_config(values: Mapping[str, Any]) -> bool:
    return str(values.get(MODEL, "")).startswith("megatron.bridge.") or str(values.get(CONTAINER, "")).startswith(
        "megatron.bridge."
    )


def translate(values: dict[str, Any]) -> Translation:
    """`values` are the keys with dots. Raises BadData for a model that is no decoder like GPT's."""
    provider = str(values.get(MODEL, "")).rpartition(".")[2]
    if OTHER_MODELS.search(provider):
        raise BadData(f"{provider}: lt-train has no such model", "lt-train models lists what it has")
    ledger = Ledger(SOURCE, values)
    for key, value in NEUTRAL.items():
        if values.get(key) == value:
            ledger.drop(key, MEGATRONS)
    for key in [key for key in values if key.endswith(("._target_", "._call_", "._args_", "._partial_")) or key == CONTAINER]:
        if key != "model.activation_func._target_":
            ledger.drop(key, "how the object is made in Python")
    _precision(ledger)
    _experts(ledger)
    megatron_latents.translate(ledger, "model.")
    for section, names in SAME_NAMES.items():
        for name in names:
            _carry(ledger, f"{section}.{name}", name)
    for key, option in RENAMED.items():
        _carry(ledger, key, option)
    for key, option in FLAGS.items():
        ledger.flag(key, option)
    if ledger.take("dataset.mock"):
        ledger.set("mock_data", True, "dataset.mock")
        ledger.drop_value("dataset.split", ledger.get("split"), "made-up data has no parts")
    _style(ledger)
    ledger.drop("checkpoint.load", "a run continues from its own --save; lt-convert makes a checkpoint for --load of another")
    ledger.drop_all(REASONS)
    return ledger.close("lt-train has no such setting")


def _carry(ledger: Ledger, key: str, option: str) -> None:
    value = ledger.peek(key)
    if isinstance(value, list) and option == "window_size":
        ledger.take(key)
        ledger.carry_value(key, option, ",".join(map(str, value)))
    elif ledger.get(option) is None:
        ledger.carry(key, option)
    else:
        ledger.drop(key, f"another key says --{option.replace('_', '-')}")


def _precision(ledger: Ledger) -> None:
    for name in ("bf16", "fp16"):
        keys = [f"{section}.{name}" for section in ("mixed_precision", "model", "optimizer")]
        given = [ledger.take(key) for key in keys]
        if any(given):
            ledger.set(name, True, *keys)
    form = ledger.take("model.fp8") or ledger.take("mixed_precision.fp8")
    if form:
        ledger.set("fp8_format", str(form), "model.fp8")
        for section in ("model", "mixed_precision"):
            _carry(ledger, f"{section}.fp8_recipe", "fp8_recipe")


def _experts(ledger: Ledger) -> None:
    has_experts = (ledger.peek("model.num_moe_experts") or 1) > 1
    for name in OF_EXPERTS:
        if has_experts and options()[name].is_flag:
            ledger.flag(f"model.{name}", name)
        elif has_experts:
            ledger.carry(f"model.{name}", name)
        else:
            ledger.drop(f"model.{name}", "the model has no experts")
    frequency = ledger.take("model.moe_layer_freq")
    if has_experts and frequency not in (None, 1):
        ledger.carry_value("model.moe_layer_freq", "moe_layer_freq", str(frequency).replace(" ", ""))
    if not has_experts:
        ledger.drop("model.num_moe_experts", "the model has no experts")
    elif ledger.take("model.moe_grouped_gemm"):
        ledger.set("moe_grouped_gemm", True, "model.moe_grouped_gemm")


def _style(ledger: Ledger) -> None:
    position = ledger.take("model.position_embedding_type", "learned_absolute")
    if position in ("rope", "learned_absolute"):
        ledger.set("position_embedding_type", position, "model.position_embedding_type")
    else:
        ledger.drop_value(
            "model.position_embedding_type", position, "lt-train takes rope or learned_absolute there", Effect.MODEL
        )
    if position != "rope":
        for option in ("rotary_base", "rotary_percent"):
            ledger.drop_value(f"model.{option}", ledger.get(option), "it belongs to rotary positions", Effect.NONE)
            ledger.leave_out(option)
    ledger.carry("model.normalization", "normalization")
    gated, function = ledger.take("model.gated_linear_unit"), str(ledger.take("model.activation_func._target_", "gelu"))
    if gated and function.endswith((".silu", ".swish")):
        ledger.set("swiglu", True, "model.gated_linear_unit", "model.activation_func._target_")
    elif gated or not function.endswith("gelu"):
        ledger.drop_value("model.activation_func", function, "lt-train has GELU and SwiGLU", Effect.MODEL)
    if ledger.take("model.add_bias_linear", True) is False:
        ledger.set("disable_bias_linear", True, "model.add_bias_linear")
    if ledger.take("model.share_embeddings_and_output_weights", True) is False:
        ledger.set("untie_embeddings_and_output_weights", True, "model.share_embeddings_and_output_weights")
    factor = ledger.take_number("model.scale_factor") or ledger.take_number("model.rope_scaling_factor")
    is_scaled = ledger.take("model.rope_scaling", ledger.peek("model.low_freq_factor") is not None)
    if is_scaled and position == "rope":
        ledger.set("use_rope_scaling", True, "model.rope_scaling")
        ledger.carry_value("model.scale_factor", "rope_scaling_factor", factor)
    complete(ledger, "model.add_bias_linear")
