"""Translate Megatron-Bridge's `run_config.yaml`, which each checkpoint contains: all fields of its configuration with defaults.

Megatron-Bridge's recipes are Python programs, which the importer does not execute. The file has the result of the recipe.
"""

import re
from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadData
from lt_shared.models.presets import preset
from lt_train.config.settings.model import experts, latent_attention
from lt_train.importers import evaluation, megatron_latents, muon, routing
from lt_train.importers.bridge import data, initialization, mup, precision, providers, recipe, stages, start
from lt_train.importers.bridge.objects import drop_functions, plain
from lt_train.importers.effects import OFF, Effect
from lt_train.importers.layer_style import EVERYTHING, FUSED_GELU, SEES_EVERYTHING, complete, drop_scaling, drop_stored_otherwise
from lt_train.importers.ledger import Ledger, Translation, options
from lt_train.importers.megatron.recomputation import carry_recompute_modules
from lt_train.importers.upstream.bridge_fields import row
from lt_train.importers.upstream.rows import options as upstream_options

SOURCE = "Megatron-Bridge"
CONTAINER, MODEL = "_target_", "model._target_"
INITIALIZER_KEY = re.compile(r"model\.(output_layer_|embedding_)?init_method\.")
# NVIDIA's Llama31NemotronNano8B is a Llama 3.1.
OTHER_MODELS = re.compile(r"T5|Mamba|Hybrid|VL|Vision|Audio|Mimo|MIMO|Gemma|(?<!Llama31)Nemotron|OSS")
MEGATRONS = "megatron-core's own default, as in lt-train"
DEFAULT = "Megatron-Bridge's default, as in lt-train"
# Exactly `gelu`: quick_gelu and other variants compute another function.
GELU = re.compile(r"(^|\.)gelu$")
SCALES = ("loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis")
DEFAULTS = {"weight_decay": 0.01, "adam_beta2": 0.999, "lr_decay_style": "linear", "eval_iters": 100}
# Objects whose class changes the run, with the classes that lt-train supports.
KINDS = {
    "dataset": re.compile(r"(^|\.)(Mock)?GPTDatasetConfig$"),
    "optimizer": re.compile(r"^megatron\..*\.(Adam)?OptimizerConfig$"),
    "scheduler": re.compile(r"^megatron\..*\.SchedulerConfig$"),
    "optimizer_config_override_provider": re.compile(r"\.OptimizerConfigOverrideProvider$"),
}
# Packages whose classes the tables know. A class of another package may do anything.
KNOWN_PACKAGE = re.compile(r"(megatron|nemo|torch|nvidia_resiliency_ext|builtins|functools|pathlib|signal)\b")
SCALING = {
    "low_freq_factor": "model.low_freq_factor",
    "high_freq_factor": "model.high_freq_factor",
    "original_max_position_embeddings": "model.old_context_len",
}
# Fields with megatron-core's defaults. A field with its default is dropped.
NEUTRAL = {
    "model.mamba_head_dim": 64,
    "model.mamba_num_groups": 8,
    "model.mamba_state_dim": 128,
    "model.moe_router_score_function": "softmax",
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
        *mup.NAMES,
        *("mtp_num_layers", "mtp_loss_scaling_factor"),
        *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"),
    ),
    "train": (
        *("micro_batch_size", "global_batch_size", "train_iters", "train_samples", "rampup_batch_size"),
        *("exit_interval", "exit_duration_in_mins"),
    ),
    "optimizer": ("lr", "min_lr", "weight_decay", "clip_grad", "adam_beta1", "adam_beta2", "adam_eps"),
    "scheduler": (
        *("lr_decay_style", "lr_decay_iters", "lr_decay_samples"),
        *("lr_wsd_decay_style", "lr_wsd_decay_iters", "lr_wsd_decay_samples"),
        *("lr_warmup_iters", "lr_warmup_fraction", "lr_warmup_samples", "lr_warmup_init"),
    ),
    "checkpoint": ("save", "save_interval"),
    "dataset": ("num_workers",),
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
    "dataset.path_to_cache": "data_cache_path",
    "model.seq_length": "max_position_embeddings",
    "train.eval_iters": "eval_iters",
    "train.eval_interval": "eval_interval",
    "validation.eval_iters": "eval_iters",
    "validation.eval_interval": "eval_interval",
}
FLAGS = {
    "model.use_mup": "use_mup",
    "model.calculate_per_token_loss": "calculate_per_token_loss",
    "model.sequence_parallel": "sequence_parallel",
    "model.add_qkv_bias": "add_qkv_bias",
    "model.qk_layernorm": "qk_layernorm",
    "model.multi_latent_attention": "multi_latent_attention",
    "ddp.use_distributed_optimizer": "use_distributed_optimizer",
    "optimizer.use_distributed_optimizer": "use_distributed_optimizer",
    "optimizer.overlap_param_gather": "overlap_param_gather",
    "dist.use_torch_fsdp2": "use_torch_fsdp2",
    "dataset.reset_position_ids": "reset_position_ids",
    "dataset.eod_mask_loss": "eod_mask_loss",
    "train.exit_signal_handler": "exit_signal_handler",
    "model.deterministic_mode": "deterministic",
    "ddp.overlap_grad_reduce": "overlap_grad_reduce",
    "ddp.overlap_param_gather": "overlap_param_gather",
    "checkpoint.async_save": "async_save",
}
EXPERT_OPTIONS = (
    *(field for field in experts.FIELDS if field != "num_experts"),
    *("moe_router_bias_update_rate", "moe_token_dispatcher_type", "moe_router_load_balancing_type"),
    *("moe_z_loss_coeff", "moe_expert_capacity_factor", "moe_token_drop_policy"),
)


CARRIED = frozenset(
    {*RENAMED, *FLAGS, *(f"{section}.{name}" for section, names in SAME_NAMES.items() for name in names)}
    | {f"model.{name}" for name in EXPERT_OPTIONS}
)


def is_run_config(values: Mapping[str, Any]) -> bool:
    return str(values.get(MODEL, "")).startswith("megatron.bridge.") or str(values.get(CONTAINER, "")).startswith(
        "megatron.bridge."
    )


def translate(values: dict[str, Any], source: str = SOURCE) -> Translation:
    """Translate `values`, whose keys are dotted paths. Raises BadData for a model that is no GPT-like decoder.

    `source` is the trainer that they come from, if it is another one with the same fields.
    """
    provider = str(values.get(MODEL, "")).rpartition(".")[2]
    if OTHER_MODELS.search(provider):
        raise BadData(f"{provider}: lt-train has no such model", "lt-train models lists what it has")
    values = providers.complete(precision.resolve(plain(values)))
    ledger = Ledger(source, values, row=row, defaults=upstream_options("megatron_bridge"))
    mup.drop_derived(ledger)
    for key, value in NEUTRAL.items():
        if values.get(key) == value and providers.PRESET not in values:
            ledger.drop(key, MEGATRONS)
    _objects(ledger)
    drop_functions(ledger)
    data.take_tokenizers_vocabulary(ledger)
    precision.translate(ledger)
    if ledger.has("model.preset"):
        _preset(ledger)
    else:
        _experts(ledger)
        megatron_latents.translate(ledger, "model.")
    _optimizer(ledger)
    _schedule(ledger)
    stages.translate(ledger)
    for section, names in SAME_NAMES.items():
        for name in names:
            _carry(ledger, f"{section}.{name}", name)
    for key, option in RENAMED.items():
        _carry(ledger, key, option)
    for key, option in FLAGS.items():
        ledger.flag(key, option)
    _defaults(ledger)
    if ledger.take("dataset.mock"):
        ledger.set("mock_data", True, "dataset.mock")
        ledger.drop_value("dataset.split", ledger.get("split"), "made-up data has no parts", Effect.NONE)
    if not ledger.get("model"):
        _style(ledger)
    start.translate(ledger)
    initialization.translate(ledger)
    data.translate(ledger)
    evaluation.switch_off_without_data(ledger, "validation.eval_iters")
    if not ledger.peek("tensor_inspect.enabled"):
        for key in [key for key in ledger.remaining_keys() if key.startswith("tensor_inspect.")]:
            ledger.drop(key, "tensors are not inspected")
    drop_stored_otherwise(ledger, "model.")
    for key in ledger.remaining_keys():
        table_row = row(key)
        if ledger.is_default(key, ledger.peek(key)):
            ledger.drop(key, DEFAULT)
        elif table_row:
            ledger.drop(key, table_row.reason, table_row.effect)
    return ledger.close("lt-train has no such setting")


def _preset(ledger: Ledger) -> None:
    """Take lt-train's preset of a published model. Experts are balanced by the auxiliary loss, or not at all."""
    ledger.carry("model.preset", "model")
    _refuse_other_parts(ledger)
    if not preset(str(ledger.get("model"))).num_experts:
        for name in ("moe_aux_loss_coeff", "moe_router_load_balancing_type", "moe_token_drop_policy"):
            ledger.drop(f"model.{name}", "the model has no experts")
        return
    ledger.carry("model.moe_aux_loss_coeff", "moe_aux_loss_coeff")
    kind = ledger.peek("model.moe_router_load_balancing_type")
    if kind in ("none", "aux_loss"):
        ledger.drop("model.moe_router_load_balancing_type", "--moe-aux-loss-coeff says it")
    if kind == "none":
        ledger.set("moe_aux_loss_coeff", 0.0, "model.moe_router_load_balancing_type")


def _refuse_other_parts(ledger: Ledger) -> None:
    """Drop what differs from the published model and no option says: a part switched off, or set to the trainer's default."""
    for key in [key for key in ledger.remaining_keys() if key.startswith("model.")]:
        name, value, table_row = key.removeprefix("model."), ledger.peek(key), row(key)
        is_harmless = name in (*recipe.OF_TRAINING, *recipe.OF_LAYOUT) or (
            table_row and table_row.effect not in (Effect.MODEL, Effect.RUN)
        )
        is_carried = key in CARRIED and name not in EXPERT_OPTIONS and value not in (None, False)
        if not is_harmless and not is_carried and (value in OFF or ledger.is_default(key, value)):
            ledger.take(key)
            ledger.drop_value(
                key, str(value), f"{ledger.get('model')} has another, and lt-train no option for this", Effect.MODEL
            )


def _objects(ledger: Ledger) -> None:
    """Drop the keys that say how Python creates the objects of sections. An unknown class may change the model or the run."""
    for key in [
        key
        for key in ledger.remaining_keys()
        if (key.endswith(("._target_", "._call_", "._args_", "._partial_")) and not INITIALIZER_KEY.match(key))
        or key == CONTAINER
    ]:
        is_target, target = key.endswith("_target_"), str(ledger.peek(key))
        kind = KINDS.get(key.removesuffix("._target_")) if is_target else None
        if kind and not kind.search(target):
            ledger.drop(key, "lt-train trains on Megatron's datasets, and one optimizer for all weights", Effect.RUN)
        elif is_target and not KNOWN_PACKAGE.match(target):
            reason = f"{target.partition('.')[0]} is neither Megatron-Bridge nor megatron-core: its code is not read"
            ledger.drop(key, reason, Effect.MODEL if key == MODEL else Effect.RUN)
        else:
            ledger.drop(key, "how the object is made in Python")


def _optimizer(ledger: Ledger) -> None:
    name = str(ledger.peek("optimizer.optimizer") or "adam")
    if name == "adamw":
        ledger.drop("optimizer.optimizer", "AdamW is --optimizer adam")
    elif name not in muon.NAMES:
        _carry(ledger, "optimizer.optimizer", "optimizer")
    else:
        for key in ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"):
            ledger.drop(key, "Muon needs whole matrices")
    _drop_no_warmup(ledger)
    size = ledger.peek("model.tensor_model_parallel_size") or 1
    muon.translate(ledger, "optimizer.", name, size, {"muon_tp_mode": "blockwise"})
    for name in SCALES:
        for key in (f"optimizer.{name}", f"mixed_precision.{name}"):
            if ledger.get("fp16"):
                _carry(ledger, key, name)
            else:
                ledger.drop(key, "gradients in bfloat16 need no scale")
    style = ledger.take("scheduler.weight_decay_incr_style") or "constant"
    decay = ledger.peek("optimizer.weight_decay")
    for name in ("start_weight_decay", "end_weight_decay"):
        value = ledger.take(f"scheduler.{name}")
        if style != "constant":
            ledger.carry_value(f"scheduler.{name}", name, value)
        elif name == "end_weight_decay" and value is not None and value != decay:
            # OptimizerParamScheduler writes its own decay into the optimizer at each step, also a constant one.
            ledger.carry_value(f"scheduler.{name}", "weight_decay", value)
        else:
            ledger.drop_value(f"scheduler.{name}", value, "a constant decay is scheduler.end_weight_decay", Effect.NONE)
    if style != "constant":
        ledger.carry_value("scheduler.weight_decay_incr_style", "weight_decay_incr_style", style)


def _drop_no_warmup(ledger: Ledger) -> None:
    """Drop the units of the warm-up that are 0, their default, beside the unit that has a length."""
    keys = [f"scheduler.lr_warmup_{unit}" for unit in ("iters", "samples", "fraction")]
    has_length = any(ledger.peek(key) for key in keys)
    for key in keys[0 if has_length else 1 :]:
        if ledger.peek(key) == 0:
            ledger.drop(key, "a warm-up of no length")


def _schedule(ledger: Ledger) -> None:
    """Carry scheduler.max_steps over, which replaces lr_decay_iters, and WSD's default decay, which takes the whole schedule."""
    key = "scheduler.max_steps"
    steps, length = ledger.take_number(key), ledger.peek("train.train_iters")
    if steps is not None and ledger.peek("train.train_samples") is None:
        ledger.carry_value(key, "lr_decay_iters", steps)
        ledger.drop("scheduler.lr_decay_iters", "scheduler.max_steps says it")
    elif steps is not None:
        ledger.drop_value(key, steps, "a schedule in samples does not read it", Effect.NONE)
    unset = all(ledger.peek(f"scheduler.lr_wsd_decay_{unit}") is None for unit in ("iters", "samples"))
    if ledger.peek("scheduler.lr_decay_style") == "WSD" and unset:
        decay = ledger.get("lr_decay_iters") or ledger.peek("scheduler.lr_decay_iters") or length
        if isinstance(decay, int):
            ledger.default("lr_wsd_decay_iters", decay)


def _defaults(ledger: Ledger) -> None:
    """Set Megatron-Bridge's defaults for the optimizer, the schedule and the evaluation."""
    for option, value in DEFAULTS.items():
        ledger.default(option, value)
    if not any(ledger.get(f"lr_warmup_{unit}") is not None for unit in ("iters", "samples", "fraction")):
        ledger.default("lr_warmup_iters", 0)
    interval = ("train.eval_interval", "validation.eval_interval")
    is_asked = any(key in ledger.original_values() for key in interval)
    if is_asked and ledger.get("eval_interval") is None and ledger.get("train_iters"):
        # Without an interval, Megatron-Bridge evaluates only at the end of the run.
        ledger.default("eval_interval", ledger.get("train_iters"))


def _carry(ledger: Ledger, key: str, option: str) -> None:
    value = ledger.peek(key)
    if option == "recompute_modules" and isinstance(value, list):
        carry_recompute_modules(ledger, key, [str(word) for word in ledger.take(key)])
    elif isinstance(value, list) and option == "window_size" and ",".join(map(str, value)) == EVERYTHING:
        ledger.drop(key, SEES_EVERYTHING)
    elif isinstance(value, list) and option == "window_size":
        ledger.take(key)
        ledger.carry_value(key, option, ",".join(map(str, value)))
    elif ledger.get(option) is None:
        ledger.carry(key, option)
    else:
        ledger.drop(key, f"another key says --{option.replace('_', '-')}")


def _experts(ledger: Ledger) -> None:
    has_experts = (ledger.peek("model.num_moe_experts") or 1) > 1
    if has_experts:
        routing.translate(ledger, "model.")
    for name in EXPERT_OPTIONS:
        if has_experts and options()[name].is_flag:
            ledger.flag(f"model.{name}", name)
        elif has_experts:
            ledger.carry(f"model.{name}", name)
        else:
            ledger.drop(f"model.{name}", "the model has no experts")
    frequency = ledger.take("model.moe_layer_freq")
    if not has_experts or frequency == 1:
        ledger.drop_value("model.moe_layer_freq", frequency, "all layers are alike", Effect.NONE)
    elif frequency is not None:
        ledger.carry_value("model.moe_layer_freq", "moe_layer_freq", str(frequency).replace(" ", ""))
    if not has_experts:
        ledger.drop("model.num_moe_experts", "the model has no experts")
    elif ledger.take("model.moe_grouped_gemm"):
        if (ledger.peek("model.tensor_model_parallel_size") or 1) > 1:
            reason = "lt-train's grouped GEMM takes no tensor parallelism: a GEMM for each expert computes the same"
            ledger.drop_value("model.moe_grouped_gemm", True, reason, Effect.SPEED)
        else:
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
            ledger.withdraw(option)
    ledger.carry("model.normalization", "normalization")
    gated, function = ledger.take("model.gated_linear_unit"), str(ledger.take("model.activation_func", "gelu"))
    if gated and function.endswith((".silu", ".swish")):
        ledger.set("swiglu", True, "model.gated_linear_unit", "model.activation_func")
        ledger.drop("model.bias_activation_fusion", "it chooses a kernel for the same computation", Effect.SPEED)
    elif gated or not GELU.search(function):
        ledger.drop_value("model.activation_func", function, "lt-train has GELU and SwiGLU", Effect.MODEL)
    elif ledger.take("model.bias_activation_fusion") is not True:
        ledger.drop_value("model.bias_activation_fusion", False, FUSED_GELU, Effect.RESULT)
    elif "model.bias_activation_fusion" in ledger.original_values():
        ledger.drop_value("model.bias_activation_fusion", True, "lt-train's GELU is the fused one", Effect.NONE)
    if ledger.take("model.add_bias_linear", True) is False:
        ledger.set("disable_bias_linear", True, "model.add_bias_linear")
    if ledger.take("model.share_embeddings_and_output_weights", True) is False:
        ledger.set("untie_embeddings_and_output_weights", True, "model.share_embeddings_and_output_weights")
    factors = {key: ledger.take_number(key) for key in ("model.scale_factor", "model.rope_scaling_factor")}
    is_scaled = ledger.take("model.rope_scaling", ledger.peek("model.low_freq_factor") is not None)
    if is_scaled and position == "rope":
        ledger.set("use_rope_scaling", True, "model.rope_scaling")
        # Llama's own class has scale_factor, and megatron-core's name beside it at its default.
        stated = next((key for key, factor in factors.items() if factor), "model.scale_factor")
        ledger.carry_value(stated, "rope_scaling_factor", factors[stated])
        for key in factors.keys() - {stated}:
            ledger.drop_value(key, factors[key], f"{stated} says it", Effect.NONE)
    else:
        for key in ("model.rope_scaling", "model.scale_factor", "model.rope_scaling_factor"):
            if key in ledger.original_values():
                ledger.drop_value(key, ledger.original_values()[key], "rotary positions are not scaled", Effect.NONE)
    drop_scaling(ledger, SCALING, bool(is_scaled))
    complete(ledger, "model.add_bias_linear")
