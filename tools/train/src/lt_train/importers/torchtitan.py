"""TorchTitan's TOML, as it was until February 2026, and the keys that guides have invented for it."""

import os
import re
from collections.abc import Iterable
from typing import Any

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger, Translation

SOURCE = "TorchTitan"
MODELS = {
    ("llama3", "8b"): "llama3.1-8b",
    ("llama3", "70b"): "llama3.1-70b",
    ("llama3", "405b"): "llama3.1-405b",
    ("llama3", "1b"): "llama3.2-1b",
    ("llama3", "3b"): "llama3.2-3b",
    ("llama", "7b"): "llama2-7b",
    ("llama", "13b"): "llama2-13b",
    ("llama", "70b"): "llama2-70b",
    ("llama2", "7b"): "llama2-7b",
    ("llama2", "13b"): "llama2-13b",
    ("llama2", "70b"): "llama2-70b",
    ("qwen3", "0.6b"): "qwen3-0.6b",
    ("qwen3", "1.7b"): "qwen3-1.7b",
    ("qwen3", "4b"): "qwen3-4b",
    ("qwen3", "8b"): "qwen3-8b",
    ("qwen3", "14b"): "qwen3-14b",
    ("qwen3", "32b"): "qwen3-32b",
}
# Llama 3's rotary positions are scaled, as in Llama 3.1, since commit 5bbda42c7 of 2025-10-08.
WITHOUT_SCALING = {"8b": "llama3-8b", "70b": "llama3-70b", "405b": None}
# Keys that were gone by then, and keys that came after.
BEFORE_SCALING = re.compile(
    r"training\.(tensor_parallel_degree|data_parallel_(shard|replicate)_degree|batch_size|warmup_steps|compile|enable_float8.*|fp8.*"
    r"|enable_fsdp_float8.*|precompute_float8.*)|experimental\.(pipeline|context)_parallel_.*|experimental\.enable_async_.*"
    r"|checkpoint\.(enable_checkpoint|model_weights_only|last_save_model_weights_only)|model\.(norm_type|tokenizer_path)|float8\..*"
    r"|quantize\.dense\..*|validation\.enabled|job\.print_args|parallelism\.(enable_compiled_autograd|pipeline_parallel_split_points)"
)
SINCE_SCALING = re.compile(
    r"debug\..*|job\.(print_config|save_config_.*|custom_config_module)|lr_scheduler\.total_steps|(training|validation)\.dataloader.*"
    r"|activation_checkpoint\.(debug|determinism_check|memory_budget|preserve_rng_state|visualize_.*)|comm\.mode"
    r"|parallelism\.(context_parallel_load_balancer|expert_parallel_comm_backend|pipeline_parallel_expert_parallel_overlap)"
)
# Of the largest one lt-train has the model with scaling alone, so its sizes are written out.
SIZES_OF_405B = {
    "num_layers": 126,
    "hidden_size": 16384,
    "ffn_hidden_size": 53248,
    "num_attention_heads": 128,
    "num_query_groups": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "norm_epsilon": 1e-5,
    "position_embedding_type": "rope",
    "rotary_base": 500000,
    "normalization": "RMSNorm",
    "swiglu": True,
    "disable_bias_linear": True,
    "untie_embeddings_and_output_weights": True,
}
PERHAPS_SCALED = (
    "since 2025-10-08 TorchTitan scales its rotary positions as Llama 3.1 does, before it did not; the keys do not show which,"
    " and scaled ones are taken"
)
# Where keys of 2024 are since.
MOVED = {
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.batch_size": "training.local_batch_size",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.pipeline_parallel_split_points": "parallelism.pipeline_parallel_split_points",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "checkpoint.model_weights_only": "checkpoint.last_save_model_only",
}
# Keys that TorchTitan never had, and where its own are.
INVENTED = {
    "training.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "training.context_parallel_degree": "parallelism.context_parallel_degree",
    "training.micro_batch_size": "training.local_batch_size",
    "training.max_steps": "training.steps",
    "training.lr": "optimizer.lr",
    "training.sequence_length": "training.seq_len",
    "training.activation_checkpoint": "activation_checkpoint.mode",
    "checkpoint.checkpoint_dir": "checkpoint.folder",
    "checkpoint.checkpoint_interval": "checkpoint.interval",
    "checkpoint.resume_from_checkpoint": "checkpoint.initial_load_path",
}
TOKENIZER = "the tokenizer belongs to the data: lt-preprocess --tokenizer"
NOT_COMPILED = "lt-train does not compile the model"
REASONS = {
    "model.norm_type": "the model has its norm in any case",
    "model.tokenizer_path": TOKENIZER,
    "model.hf_assets_path": TOKENIZER,
    "training.dataset": "data is tokenized first: lt-preprocess, then DATA",
    "training.dataset_path": "data is tokenized first: lt-preprocess, then DATA",
    "training.data_parallel_degree": "it is what remains of the ranks; TorchTitan has no such key",
    "training.compile": NOT_COMPILED,
    "training.compile_mode": NOT_COMPILED + "; TorchTitan has no such key",
    "checkpoint.last_save_model_only": "the last checkpoint has all; lt-convert writes the weights alone",
    "checkpoint.last_save_in_hf": "lt-convert --to hf writes them from any checkpoint",
    "checkpoint.export_dtype": "lt-convert chooses the type of what it writes",
    "checkpoint.load_step": "a run continues from its newest checkpoint",
    "checkpoint.exclude_from_loading": "--no-load-optim and --finetune say what to leave out",
    "metrics.wandb_entity": "wandb reads it from WANDB_ENTITY",
    "metrics.disable_color_printing": "lt-train prints no colours",
    "profiling.profile_freq": "lt-train profiles one stretch of steps: --profile-step-start, --profile-step-end",
    "profiling.save_traces_folder": "traces are in SAVE/profile",
    "optimizer.implementation": "AdamW is one kernel in any case",
    "optimizer.fused": "AdamW is one kernel in any case",
    "optimizer.early_step_in_backward": "lt-train has no such step",
    "parallelism.enable_async_tensor_parallel": "torch's layers do it with --sequence-parallel",
    "parallelism.disable_loss_parallel": "the loss is parallel in any case",
    "parallelism.fsdp_reshard_after_forward": "lt-train leaves it to FSDP2",
    "parallelism.context_parallel_rotate_method": "lt-train has one kind of context parallelism",
    "parallelism.pipeline_parallel_split_points": "layers are divided evenly, or by --decoder-first-pipeline-num-layers",
    "training.enable_cpu_offload": "lt-train has no offloading of weights",
    "training.gc_freq": "Python's collector runs as usual",
    "activation_checkpoint.selective_ac_option": "lt-train chooses by module: --recompute-modules",
    "job.": "a name or directory of TorchTitan's own; see --save",
    "comm.": "time-outs and traces of communication are lt-train's own",
    "experimental.": "an extension of TorchTitan's own",
    "fault_tolerance.": "lt-train continues from checkpoints",
    "memory_estimation.": "lt-train plan estimates",
    "symm_mem.": "lt-train has no symmetric memory",
    "debug.": "lt-train has no such switch",
}


def translate(values: dict[str, Any]) -> Translation:
    """`values` are the keys with dots."""
    moved: dict[str, Any] = {}
    written: dict[str, str] = {}
    for key, value in values.items():
        name = (MOVED | INVENTED).get(key, key)
        name = key if name in values or name in moved else name
        moved[name], written[name] = value, key
    ledger = Ledger(SOURCE, moved, written)
    _model(ledger, values)
    _batches(ledger)
    _parallelism(ledger)
    _optimizer(ledger)
    _precision(ledger)
    _checkpoints(ledger)
    _reports(ledger)
    for key in [key for key in ledger.left() if key.startswith("compile.")]:
        ledger.drop_value(key, ledger.take(key), NOT_COMPILED, Effect.SPEED)
    ledger.drop_all(REASONS)
    for key, name in (MOVED | INVENTED).items():
        ledger.drop(key, f"{name} stands beside it")
    return ledger.close("not a key that TorchTitan had, nor one that is known from guides")


def _model(ledger: Ledger, written: Iterable[str]) -> None:
    name, flavor = ledger.take("model.name"), ledger.take("model.flavor")
    if name is None:
        return
    preset = MODELS.get((str(name).lower(), str(flavor).lower()))
    if preset and preset.startswith("llama3.1"):
        _llama3(ledger, preset, str(flavor).lower(), written)
    elif preset:
        ledger.set("model", preset, "model.name", "model.flavor")
    else:
        for key, value in (("model.name", name), ("model.flavor", flavor)):
            ledger.drop_value(key, value, "lt-train has no such model; give its sizes (--num-layers ...)", Effect.MODEL)


def _llama3(ledger: Ledger, preset: str, flavor: str, written: Iterable[str]) -> None:
    """With scaled rotary positions, or as TorchTitan had them before."""
    keys = list(written)
    is_of_guide = any(key in INVENTED for key in keys)
    if not is_of_guide and any(map(BEFORE_SCALING.fullmatch, keys)):
        preset_before = WITHOUT_SCALING[flavor]
        for option, value in ({"model": preset_before} if preset_before else SIZES_OF_405B).items():
            ledger.set(option, value, "model.name", "model.flavor")
        return
    ledger.set("model", preset, "model.name", "model.flavor")
    if not any(map(SINCE_SCALING.fullmatch, keys)):
        other = WITHOUT_SCALING[flavor]
        ledger.drop_value(
            "model.name", "llama3", PERHAPS_SCALED + (f": --model {other} has the others" if other else ""), Effect.RESULT
        )


def _batches(ledger: Ledger) -> None:
    ledger.carry("training.seq_len", "seq_length")
    ledger.carry("training.local_batch_size", "micro_batch_size")
    if ledger.peek("training.global_batch_size") == -1:
        ledger.drop(
            "training.global_batch_size", "-1 is one micro batch on each data-parallel rank, as without --global-batch-size"
        )
    ledger.carry("training.global_batch_size", "global_batch_size")
    ledger.carry("training.steps", "train_iters")
    ledger.carry("training.max_norm", "clip_grad")
    for key in ("debug.seed", "training.seed"):
        ledger.carry(key, "seed")
    for key in ("debug.deterministic", "training.deterministic"):
        ledger.flag(key, "deterministic")
    ledger.default("seq_length", 2048)
    ledger.default("micro_batch_size", 8)
    ledger.default("train_iters", 10000)


def _parallelism(ledger: Ledger) -> None:
    for key, option in (
        ("tensor", "tensor_model_parallel_size"),
        ("pipeline", "pipeline_model_parallel_size"),
        ("context", "context_parallel_size"),
        ("expert", "expert_model_parallel_size"),
    ):
        ledger.carry(f"parallelism.{key}_parallel_degree", option)
    if (ledger.get("tensor_model_parallel_size") or 1) > 1:
        ledger.default("sequence_parallel", True)
    schedule = ledger.take("parallelism.pipeline_parallel_schedule")
    if schedule == "Interleaved1F1B":
        ledger.set("num_virtual_stages_per_pipeline_rank", 2, "parallelism.pipeline_parallel_schedule")
    elif schedule not in (None, "1F1B"):
        ledger.drop_value("parallelism.pipeline_parallel_schedule", schedule, "lt-train has 1F1B, interleaved or not, and ZB-H1")
    piece = ledger.take_number("parallelism.pipeline_parallel_microbatch_size")
    if piece and (ledger.get("pipeline_model_parallel_size") or 1) > 1:
        ledger.carry_value("parallelism.pipeline_parallel_microbatch_size", "micro_batch_size", piece)
    shards = ledger.take_number("parallelism.data_parallel_shard_degree") or -1
    if shards != 1:
        pipelined = (ledger.get("pipeline_model_parallel_size") or 1) > 1
        option = "use_distributed_optimizer" if pipelined else "use_torch_fsdp2"
        ledger.set(option, True, "parallelism.data_parallel_shard_degree")
    copies = ledger.take_number("parallelism.data_parallel_replicate_degree") or 1
    if copies > 1 and shards != 1:
        key = "parallelism.data_parallel_replicate_degree"
        ledger.carry_value(key, "num_distributed_optimizer_instances", copies)


def _optimizer(ledger: Ledger) -> None:
    name = ledger.take("optimizer.name")
    if name not in (None, "AdamW"):
        ledger.drop_value("optimizer.name", name, "lt-train has AdamW and Muon", Effect.RESULT)
    for key, option in (
        ("lr", "lr"),
        ("beta1", "adam_beta1"),
        ("beta2", "adam_beta2"),
        ("eps", "adam_eps"),
        ("weight_decay", "weight_decay"),
    ):
        ledger.carry(f"optimizer.{key}", option)
    ledger.default("lr", 8e-4)
    ledger.carry("lr_scheduler.warmup_steps", "lr_warmup_iters")
    ledger.default("lr_warmup_iters", min(200, ledger.get("train_iters") - 1))
    style, share = ledger.take_text("lr_scheduler.decay_type"), ledger.take_number("lr_scheduler.decay_ratio")
    names = {"linear": "linear", "cosine": "cosine", "sqrt": "minus_sqrt"}
    if style is not None and style not in names:
        ledger.drop_value("lr_scheduler.decay_type", style, f"lt-train takes one of {', '.join(names)} there")
        style = None
    if share is not None and not 0 <= share <= 1:
        ledger.drop_value("lr_scheduler.decay_ratio", share, "a share from 0 to 1 is needed there")
        share = None
    if share is not None:
        ledger.set("lr_decay_style", "WSD")
        ledger.set("lr_wsd_decay_style", names[style or "linear"], "lr_scheduler.decay_type")
        steps = round(share * ledger.get("train_iters"))
        ledger.carry_value("lr_scheduler.decay_ratio", "lr_wsd_decay_iters", steps)
    elif style == "sqrt":
        ledger.drop_value("lr_scheduler.decay_type", style, "lt-train has it in WSD only: give decay_ratio")
    else:
        ledger.default("lr_decay_style", names[style or "linear"], "lr_scheduler.decay_type")
    keys = [f"lr_scheduler.{key}" for key in ("min_lr_factor", "lr_min")]
    factors = [factor for factor in map(ledger.take_number, keys) if factor and factor > 0]
    ledger.default("min_lr", (factors or [0])[0] * ledger.get("lr"), *keys)


def _precision(ledger: Ledger) -> None:
    kind = ledger.take("training.mixed_precision_param", "bfloat16")
    if kind == "bfloat16":
        ledger.default("bf16", True, "training.mixed_precision_param")
    elif kind != "float32":
        ledger.drop_value("training.mixed_precision_param", kind, "lt-train takes bfloat16 or float32 there")
    ledger.drop_all(
        {"training.mixed_precision_reduce": "gradients are summed in float32", "training.dtype": "weights are float32"}
    )
    converters = ledger.take("model.converters") or []
    converters = [str(entry) for entry in converters] if isinstance(converters, list) else [str(converters)]
    switches = ["model.converters", "training.enable_float8"]
    float8 = ledger.take("training.enable_float8") or any("float8" in entry for entry in converters)
    others = [entry for entry in converters if "float8" not in entry]
    if others:
        ledger.drop_value("model.converters", others, "lt-train has float8 alone")
    for section in ("float8", "quantize.linear.float8", "quantize.dense.float8"):
        switches.append(f"{section}.enable_float8_linear")
        float8 = ledger.take(switches[-1]) or float8
        recipe = ledger.take_text(f"{section}.recipe_name")
        if recipe and float8:
            ledger.set("fp8_recipe", "rowwise" if "rowwise" in recipe else "tensorwise", f"{section}.recipe_name")
        ledger.drop_all({f"{section}.": "lt-train chooses how weights in fp8 are gathered, and which layers have fp8"})
    if float8:
        ledger.set("fp8_format", "hybrid", *switches)
    mode = ledger.take("activation_checkpoint.mode")
    if mode in ("selective", "full"):
        ledger.set("recompute_granularity", mode, "activation_checkpoint.mode")
    elif mode not in (None, "none"):
        ledger.drop_value("activation_checkpoint.mode", mode, "lt-train takes selective, full or none there")


def _checkpoints(ledger: Ledger) -> None:
    enabled = ledger.take("checkpoint.enable", False)
    dump_folder, folder = ledger.take_text("job.dump_folder"), ledger.take_text("checkpoint.folder", "checkpoint")
    for key, option in (("interval", "save_interval"), ("keep_latest_k", "keep_last")):
        value = ledger.take_number(f"checkpoint.{key}")
        # No checkpoints to keep are all of them.
        if enabled and value:
            ledger.carry_value(f"checkpoint.{key}", option, value)
        elif not enabled:
            ledger.drop_value(f"checkpoint.{key}", value, "checkpoints are not enabled")
    is_async = ledger.take("checkpoint.async_save") or ledger.take("checkpoint.async_mode", "disabled") != "disabled"
    if enabled:
        keys = ("checkpoint.enable", "checkpoint.folder", "job.dump_folder")
        ledger.set("save", os.path.join(dump_folder or "", folder), *keys)
        ledger.default("save_interval", 500)
        if is_async:
            ledger.set("async_save", True, "checkpoint.async_save", "checkpoint.async_mode")
    else:
        ledger.drop_value("checkpoint.enable", False, "nothing is saved: add --save")
    ledger.drop("checkpoint.initial_load_path", "a checkpoint of TorchTitan: lt-convert makes one for --load of it")
    ledger.drop("checkpoint.initial_load_in_hf", "lt-convert makes a checkpoint for --load from Hugging Face weights")


def _reports(ledger: Ledger) -> None:
    ledger.carry("metrics.log_freq", "log_interval")
    folder = ledger.take_text("metrics.save_tb_folder", "tb")
    if ledger.take("metrics.enable_tensorboard"):
        keys = ("metrics.enable_tensorboard", "metrics.save_tb_folder")
        ledger.set("tensorboard_dir", os.path.join(ledger.get("save") or "", folder), *keys)
    project = ledger.take_text("metrics.wandb_project", "torchtitan")
    if ledger.take("metrics.enable_wandb"):
        ledger.set("wandb_project", project, "metrics.enable_wandb", "metrics.wandb_project")
    if ledger.get("save") or ledger.get("tensorboard_dir"):
        ledger.flag("profiling.enable_profiling", "profile")
        ledger.flag("profiling.enable_memory_snapshot", "record_memory_history")
    ledger.drop("profiling.enable_profiling", "a profile needs a directory: --save or --tensorboard-dir")
    ledger.drop("profiling.enable_memory_snapshot", "a profile needs a directory: --save or --tensorboard-dir")
    if ledger.peek("validation.enable"):
        ledger.drop("validation.enable", "lt-train evaluates in any case: --eval-iters")
        ledger.carry("validation.freq", "eval_interval")
        ledger.carry("validation.steps", "eval_iters")
    else:
        ledger.default("eval_iters", 0)
    ledger.drop_all({"validation.": "validation data is a share of DATA (--split) or --valid-data-path"})
