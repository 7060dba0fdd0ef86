"""TorchTitan's TOML, as it was until February 2026, and the keys that guides have invented for it."""

import os
import re
from collections.abc import Iterable
from typing import Any

from lt_train.importers import torchtitan_precision, torchtitan_validation
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger, Translation
from lt_train.importers.upstream.rows import options as upstream_options
from lt_train.importers.upstream.torchtitan_keys import INVENTED, MOVED, ROWS, SPEED_SECTIONS

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
# Sections of a configuration in Python: lt-train's options of its model, parts of it that lt-train has not, and no pretraining.
SIZES, PARTS, OTHER_PROGRAM = "sizes", "model_spec", "program"
LATENT_EPSILON = "latent_norm_eps"
OF_LATENTS = "lt-train's norms of latents have 1e-6, as all models of DeepSeek"
IN_BFLOAT16 = "TorchTitan multiplies experts in bfloat16 beside float32 layers, lt-train in float32"
OF_PARTS = {
    "load_balance_coeff": "biases that balance experts need sigmoid scores in lt-train, as in megatron-core",
    "route_norm": "lt-train divides sigmoids by their sum over the chosen experts, as megatron-core, and no softmax of groups",
    "num_limited_groups": "lt-train scores a group by its best topk / groups experts, as megatron-core; TorchTitan by two",
    "max_seq_len": "until 2026-08-11 the length of training decided whether TorchTitan scaled by YaRN",
}
LIKE_LLAMA = {"position_embedding_type": "rope", "normalization": "RMSNorm", "swiglu": True, "disable_bias_linear": True}
FIRST_WEIGHTS = "it draws layers narrower by their depth, and embeddings by another deviation; lt-train all by --init-method-std"
PERHAPS_SCALED = (
    "since 2025-10-08 TorchTitan scales its rotary positions as Llama 3.1 does, before it did not; the keys do not show which,"
    " and scaled ones are taken"
)
ROWS_OF_BATCH = "lt-train's rows have --seq-length tokens each, and a document that crosses two rows is cut there"
REPLICATED = "data-parallel ranks hold copies of the weights, as without --use-torch-fsdp2"
OWN = "a run continues from its own --save; lt-convert makes a checkpoint for --load of another"
NO_START = "it names no first weights"
STARTS = "lt-convert FROM --to megatron-dist -o START makes a checkpoint of it for --load START --finetune"
ONE_OF_EACH_RANK = "-1 is one micro batch on each data-parallel rank, as without --global-batch-size"
BATCHES = {"seq_len": "seq_length", "local_batch_size": "micro_batch_size", "global_batch_size": "global_batch_size"}
STEPS = {"steps": "train_iters", "max_norm": "clip_grad", "seed": "seed"}
STYLES = {"linear": "linear", "cosine": "cosine", "sqrt": "minus_sqrt"}


def translate(values: dict[str, Any]) -> Translation:
    """Translate `values`, whose keys are dotted paths."""
    moved: dict[str, Any] = {}
    written: dict[str, str] = {}
    for key, value in values.items():
        name = (MOVED | INVENTED).get(key, key)
        name = key if name in values or name in moved else name
        moved[name], written[name] = value, key
    ledger = Ledger(SOURCE, moved, written, ROWS.get, upstream_options("torchtitan"))
    _model(ledger, values)
    _batches(ledger)
    _parallelism(ledger)
    _optimizer(ledger)
    torchtitan_precision.translate(ledger)
    _checkpoints(ledger)
    _reports(ledger)
    for prefix, reason in SPEED_SECTIONS.items():
        for key in [key for key in ledger.remaining_keys() if key.startswith(prefix)]:
            ledger.drop(key, reason, Effect.SPEED)
    _fault_tolerance(ledger)
    ledger.drop_known()
    for key, name in (MOVED | INVENTED).items():
        ledger.drop(key, f"{name} stands beside it")
    return ledger.close("not a key that TorchTitan had, nor one that is known from guides")


def _model(ledger: Ledger, written: Iterable[str]) -> None:
    name, flavor = ledger.take("model.name"), ledger.take("model.flavor")
    if "rmsnorm" not in str(ledger.peek("model.norm_type") or "rmsnorm"):
        ledger.drop("model.norm_type", "lt-train has TorchTitan's models with RMSNorm alone", Effect.MODEL)
    for key in [key for key in ledger.remaining_keys() if key.startswith(f"{OTHER_PROGRAM}.")]:
        ledger.drop(key, "lt-train pretrains decoders on texts, by its own code", Effect.RUN)
    absent_parts = [key for key in ledger.remaining_keys() if key.startswith(f"{PARTS}.")]
    for key in absent_parts:
        ledger.drop(key, OF_PARTS.get(key.rpartition(".")[2], "lt-train has no such part of a model"), Effect.MODEL)
    sizes = [key for key in ledger.remaining_keys() if key.startswith(f"model.{SIZES}.")]
    if sizes:
        # gpt-oss is a published model with other sizes.
        preset = ledger.take(f"model.{SIZES}.model")
        for option, value in ({"model": preset} if preset else LIKE_LLAMA).items():
            ledger.set(option, value, "model.name", "model.flavor", f"model.{SIZES}.model")
        for key in sizes:
            ledger.carry(key, key.rpartition(".")[2])
        ledger.drop_value("model.param_init", "that of TorchTitan", FIRST_WEIGHTS, Effect.RESULT)
        ledger.drop(f"model.{LATENT_EPSILON}", OF_LATENTS, Effect.RESULT)
        if ledger.get("num_experts") and ledger.peek("training.mixed_precision_param") == "float32":
            ledger.drop_value("model.experts", "bfloat16", IN_BFLOAT16, Effect.RESULT)
        return
    if name is None:
        return
    preset = None if absent_parts else MODELS.get((str(name).lower(), str(flavor).lower()))
    if preset:
        # Primus changes the depth of a flavor so.
        ledger.carry("model.n_layers", "num_layers")
    if preset and preset.startswith("llama3.1"):
        _llama3(ledger, preset, str(flavor).lower(), written)
    elif preset:
        ledger.set("model", preset, "model.name", "model.flavor")
    else:
        for key, value in (("model.name", name), ("model.flavor", flavor)):
            ledger.drop_value(key, value, "lt-train has no such model; give its sizes (--num-layers ...)", Effect.MODEL)


def _llama3(ledger: Ledger, preset: str, flavor: str, written: Iterable[str]) -> None:
    """Select the preset with or without scaled rotary positions, by the version of TorchTitan that has the keys in `written`."""
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
    is_one_row = ledger.peek("training.local_batch_size") == 1
    ledger.drop("dataloader.dataset", ROWS_OF_BATCH, Effect.NONE if is_one_row else Effect.RESULT)
    if ledger.peek("training.global_batch_size") == -1:
        ledger.drop("training.global_batch_size", ONE_OF_EACH_RANK)
    ledger.carry("debug.seed", "seed")
    for name, option in (BATCHES | STEPS).items():
        ledger.carry(f"training.{name}", option)
    for section in ("debug", "training"):
        ledger.flag(f"{section}.deterministic", "deterministic")
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
    if (ledger.get("pipeline_model_parallel_size") or 1) == 1:
        ledger.drop_value("parallelism.pipeline_parallel_schedule", schedule, "there is no pipeline", Effect.NONE)
    elif schedule == "Interleaved1F1B":
        ledger.set("num_virtual_stages_per_pipeline_rank", 2, "parallelism.pipeline_parallel_schedule")
    elif schedule not in (None, "1F1B"):
        ledger.drop_value("parallelism.pipeline_parallel_schedule", schedule, "lt-train has 1F1B, interleaved or not, and ZB-H1")
    piece = ledger.take_number("parallelism.pipeline_parallel_microbatch_size")
    if piece and (ledger.get("pipeline_model_parallel_size") or 1) > 1:
        ledger.carry_value("parallelism.pipeline_parallel_microbatch_size", "micro_batch_size", piece)
    shards = ledger.take_number("parallelism.data_parallel_shard_degree") or -1
    if shards != 1:
        # lt-train has FSDP2 without pipelines and with all experts on each rank.
        sizes = [ledger.get(f"{kind}_model_parallel_size") or 1 for kind in ("pipeline", "expert")]
        option = "use_distributed_optimizer" if max(sizes) > 1 else "use_torch_fsdp2"
        ledger.set(option, True, "parallelism.data_parallel_shard_degree")
    else:
        ledger.drop_value("parallelism.data_parallel_shard_degree", shards, REPLICATED, Effect.NONE)
    key = "parallelism.data_parallel_replicate_degree"
    copies = ledger.take_number(key) or 1
    if copies > 1 and shards != 1:
        ledger.carry_value(key, "num_distributed_optimizer_instances", copies)
    elif key in ledger.original_values():
        ledger.drop_value(key, copies, REPLICATED, Effect.NONE)


def _optimizer(ledger: Ledger) -> None:
    name = ledger.take("optimizer.name")
    if name not in (None, "AdamW"):
        ledger.drop_value("optimizer.name", name, "lt-train has AdamW and Muon", Effect.RUN)
    options = {"lr": "lr", "beta1": "adam_beta1", "beta2": "adam_beta2", "eps": "adam_eps", "weight_decay": "weight_decay"}
    for key, option in options.items():
        ledger.carry(f"optimizer.{key}", option)
    key, decay = "optimizer.weight_decay", ledger.get("weight_decay")
    if decay != 0:
        reason = "TorchTitan decays the weights of norms, too; lt-train, as Megatron-LM, does not"
        ledger.drop_value(key, upstream_options("torchtitan")[key] if decay is None else decay, reason, Effect.RESULT)
    ledger.default("lr", 8e-4)
    ledger.carry("lr_scheduler.warmup_steps", "lr_warmup_iters")
    ledger.default("lr_warmup_iters", 200)
    _schedule(ledger)


def _schedule(ledger: Ledger) -> None:
    """torchtitan/components/lr_scheduler.py: a warm-up, a constant rate, and a decay over the last `decay_ratio` of the steps.

    Without `decay_ratio` the decay begins with the end of the warm-up. Where warm-up and decay exceed the steps, they are cut.
    """
    style, share = ledger.take_text("lr_scheduler.decay_type"), ledger.take_number("lr_scheduler.decay_ratio")
    if style is not None and style not in STYLES:
        reason = f"lt-train takes one of {', '.join(STYLES)} there"
        ledger.drop_value("lr_scheduler.decay_type", style, reason, Effect.RUN)
        style = None
    if share is not None and not 0 <= share <= 1:
        ledger.drop_value("lr_scheduler.decay_ratio", share, "a share from 0 to 1 is needed there", Effect.RUN)
        share = None
    steps = ledger.get("train_iters")
    total = _length_of_schedule(ledger, steps)
    warmup = ledger.get("lr_warmup_iters")
    if warmup >= total:
        ledger.set("lr_warmup_iters", total, "lr_scheduler.warmup_steps")
        warmup = total
    decay = total - warmup if share is None else min(round(share * total), total - warmup)
    keys = ("lr_scheduler.decay_type", "lr_scheduler.decay_ratio")
    if decay == 0:
        ledger.set("lr_decay_style", "constant", *keys)
        if warmup == total:
            # Megatron's schedule asks for a decay that ends after the warm-up.
            ledger.default("lr_decay_iters", total + 1)
    elif share is not None or style == "sqrt":
        ledger.set("lr_decay_style", "WSD")
        ledger.set("lr_wsd_decay_style", STYLES[style or "linear"], *keys)
        ledger.set("lr_wsd_decay_iters", decay)
    elif style is not None:
        ledger.set("lr_decay_style", STYLES[style], *keys)
    else:
        ledger.default("lr_decay_style", STYLES["linear"], *keys)
    _least_rate(ledger)


def _length_of_schedule(ledger: Ledger, steps: int) -> int:
    """`total_steps` may be longer than the run; with fewer, TorchTitan's rate falls below zero."""
    total = ledger.take_number("lr_scheduler.total_steps")
    if total is None or total == steps:
        return steps
    if total < steps:
        ledger.drop_value("lr_scheduler.total_steps", total, "the schedule ends before the run", Effect.RUN)
        return steps
    ledger.carry_value("lr_scheduler.total_steps", "lr_decay_iters", total)
    return int(total)


def _least_rate(ledger: Ledger) -> None:
    keys = [f"lr_scheduler.{key}" for key in ("min_lr_factor", "lr_min")]
    factors = {key: ledger.take_number(key) for key in keys}
    for key, factor in factors.items():
        if factor is not None and not 0 <= factor <= 1:
            ledger.drop_value(key, factor, "a share from 0 to 1 is needed there", Effect.RUN)
    usable = [factor for factor in factors.values() if factor and 0 < factor <= 1]
    ledger.default("min_lr", (usable or [0])[0] * ledger.get("lr"), *keys)


def _fault_tolerance(ledger: Ledger) -> None:
    """Replica groups of torchft are data-parallel copies that may come and go."""
    if ledger.take("fault_tolerance.enable"):
        reason = "lt-train has no replica groups that come and go"
        ledger.drop_value("fault_tolerance.enable", True, reason, Effect.RUN)
        for key in [key for key in ledger.remaining_keys() if key.startswith("fault_tolerance.")]:
            ledger.drop(key, reason, Effect.RUN)


def _checkpoints(ledger: Ledger) -> None:
    enabled = ledger.take("checkpoint.enable", False)
    dump_folder, folder = ledger.take_text("job.dump_folder"), ledger.take_text("checkpoint.folder", "checkpoint")
    for key, option in (("interval", "save_interval"), ("keep_latest_k", "keep_last")):
        value = ledger.take_number(f"checkpoint.{key}")
        # keep_latest_k = 0 keeps all checkpoints.
        if enabled and value:
            ledger.carry_value(f"checkpoint.{key}", option, value)
        elif enabled and value == 0:
            ledger.drop_value(f"checkpoint.{key}", value, "all checkpoints are kept, as without --keep-last", Effect.NONE)
        elif not enabled:
            ledger.drop_value(f"checkpoint.{key}", value, "checkpoints are not enabled", Effect.NONE)
    is_async = ledger.take("checkpoint.async_save") or ledger.take("checkpoint.async_mode", "disabled") != "disabled"
    if enabled:
        keys = ("checkpoint.enable", "checkpoint.folder", "job.dump_folder")
        ledger.set("save", os.path.join(dump_folder or "", folder), *keys)
        ledger.default("save_interval", 500)
        if is_async:
            ledger.set("async_save", True, "checkpoint.async_save", "checkpoint.async_mode")
    else:
        for key, value in (("checkpoint.enable", False), ("job.dump_folder", dump_folder)):
            ledger.drop_value(key, value, "nothing is saved: add --save", Effect.NONE)
    _start(ledger, enabled)


def _start(ledger: Ledger, enabled: bool) -> None:
    """Report an initial checkpoint or Hugging Face model. TorchTitan reads it only if checkpoints are enabled."""
    keys = [f"checkpoint.initial_load_{name}" for name in ("path", "in_hf", "in_hf_quantized", "model_only")]
    path, in_hf = ledger.peek(keys[0]), ledger.peek(keys[1])
    save_directory = os.path.normpath(str(ledger.get("save") or ""))
    is_own = isinstance(path, str) and enabled and f"{os.path.normpath(path)}{os.sep}".startswith(f"{save_directory}{os.sep}")
    is_start = enabled and bool(path or in_hf) and not is_own
    for key in keys:
        if not is_start or ledger.is_default(key, ledger.peek(key)):
            ledger.drop(key, OWN if is_own else NO_START)
        else:
            ledger.drop(key, STARTS, Effect.RUN)
    for key in ("checkpoint.load_step", "checkpoint.exclude_from_loading"):
        if not enabled:
            ledger.drop(key, "checkpoints are not enabled")


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
    torchtitan_validation.translate(ledger)
