"""Translate recipes of SageMaker HyperPod (YAML for Hydra): version 1, and pretraining of version 2."""

import os
from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadData
from lt_train.importers import evaluation
from lt_train.importers.effects import Effect
from lt_train.importers.layer_style import drop_scaling
from lt_train.importers.ledger import IS_OFF, Ledger, Translation, number
from lt_train.importers.lightning.loop import LIMIT, length, validation
from lt_train.importers.lightning.optimizer import optimizer
from lt_train.importers.nemo import UNKNOWN_EXPERTS, drop_known, fp8_scales, precision, tensorboard
from lt_train.importers.upstream.nemo_keys import START, row

SOURCE = "HyperPod recipes"
BATCH = "a step has one micro batch of each data-parallel rank: start as many ranks, or give --global-batch-size"
LAUNCHER = "a setting of the launcher: see lt-train render"
LAUNCHERS = (
    *("defaults", "cluster_type", "instance_type", "base_results_dir", "container", "training_config", "debug", "dry_run"),
    *("run.", "hydra.", "git.", "env_vars.", "cluster."),
)
PRETRAINING = "lt-train pretrains; --finetune takes the weights of --load"
RENAMED = {
    "trainer.max_steps": "train_iters",
    "trainer.log_every_n_steps": "log_interval",
    "model.train_batch_size": "micro_batch_size",
    "model.seed": "seed",
    "model.grad_clip": "clip_grad",
    "model.tensor_model_parallel_degree": "tensor_model_parallel_size",
    "model.expert_model_parallel_degree": "expert_model_parallel_size",
    "model.context_parallel_degree": "context_parallel_size",
    "model.max_context_width": "seq_length",
    "model.max_position_embeddings": "max_position_embeddings",
    "model.num_hidden_layers": "num_layers",
    "model.hidden_size": "hidden_size",
    "model.intermediate_size": "ffn_hidden_size",
    "model.num_attention_heads": "num_attention_heads",
    "model.num_key_value_heads": "num_query_groups",
    "model.initializer_range": "init_method_std",
    "model.layernorm_epsilon": "norm_epsilon",
    "model.rms_norm_eps": "norm_epsilon",
    "model.vocab_size": "vocab_size",
    "model.optim.lr": "lr",
    "model.optim.weight_decay": "weight_decay",
    "model.optim.sched.min_lr": "min_lr",
}
# Keys that only HyperPod's recipes have, and keys that only NeMo's models have.
OF_RECIPES = (
    *("use_smp_model", "cluster_type", "model.model_type", "model.train_batch_size"),
    *("model.tensor_model_parallel_degree", "model.num_hidden_layers", "run.model_type"),
)
OF_NEMO = {"model.encoder_seq_length", "model.micro_batch_size", "model.mcore_gpt", "model.megatron_amp_O2"}
OF_CONFIG = "--model takes the config.json of Hugging Face that it names"
DENSE, EXPERTS = ("llama", "mistral"), ("mixtral",)
# Defaults in the adapter's schema (conf/config_schemas.py).
DEFAULTS: Mapping[str, Any] = {
    "use_smp_model": True,
    "model.train_batch_size": 2,
    "model.max_context_width": 2048,
    "model.activation_checkpointing": True,
    "model.fp8": True,
    "model.seed": 12345,
    "model.grad_clip": 1.0,
    "model.optim.lr": 2e-4,
    "model.optim.weight_decay": 0.01,
    "model.optim.betas": [0.9, 0.98],
    "model.optim.sched.name": "CosineAnnealing",
    "model.optim.sched.warmup_steps": 500,
    "model.optim.sched.min_lr": 2e-5,
    "trainer.precision": "bf16",
    "trainer.max_steps": 50,
    "trainer.limit_val_batches": 0.0,
    "trainer.val_check_interval": -1,
}
MACHINES = ("trainer.devices", "trainer.num_nodes")
BALANCING = "sinkhorn"
LLAMA = {"position_embedding_type": "rope", "normalization": "RMSNorm", "swiglu": True, "disable_bias_linear": True}
EXPERT_KEYS = {"model.num_local_experts": "num_experts", "model.num_experts_per_tok": "moe_router_topk"}
SCALING = {
    field: f"model.rope_scaling.{field}" for field in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
}


def is_recipe(values: Mapping[str, Any]) -> bool:
    """NeMo's launcher has a `run` section, too; its models have NeMo's keys."""
    names = {key.removeprefix("recipes.") for key in values}
    if any(name.startswith("distributed_strategy.") for name in names):
        return True
    return any(name.startswith(OF_RECIPES) for name in names) and not names & OF_NEMO


def translate(values: dict[str, Any]) -> Translation:
    """Translate `values`, whose keys are dotted paths. Raises BadData if the recipe does not state the shape of the model."""
    values = {key.removeprefix("recipes."): value for key, value in values.items()}
    if str(values.get("run.model_type", "")).startswith("amazon.nova"):
        raise BadData("Amazon's Nova: its shape is not public", "lt-train models lists what --model knows")
    if str(values.get("run.model_type", "")).startswith("hyperpod_checkpointless"):
        raise BadData(
            "checkpointless training of HyperPod 2: the shape of the model is in the container's code, not in the recipe",
            "--model names a model of Llama 3; branch v1 of the recipes has its shape",
        )
    if any(key.startswith("distributed_strategy.") for key in values):
        raise BadData("a recipe for Trainium: the model's shape is in its model_config", OF_CONFIG)
    if any(key.startswith("model.") for key in values):
        values = {**DEFAULTS, **values}
    ledger = Ledger(SOURCE, values, row=row)
    _model(ledger)
    if values.get("model.layernorm_epsilon") is not None:
        is_same = number(values.get("model.rms_norm_eps")) == number(values["model.layernorm_epsilon"])
        ledger.drop("model.rms_norm_eps", "model.layernorm_epsilon says it", Effect.NONE if is_same else Effect.RUN)
    for key, option in RENAMED.items():
        ledger.carry(key, option)
    if ledger.get("max_position_embeddings") is None and ledger.get("seq_length"):
        ledger.default("max_position_embeddings", ledger.get("seq_length"))
    _precision(ledger)
    if values.get("use_smp_model") is False:
        ledger.drop("model.fp8", "the adapter computes in fp8 with use_smp_model alone")
    elif ledger.take("model.fp8"):
        ledger.set("fp8_format", "hybrid", "model.fp8")
    if ledger.take("model.activation_checkpointing"):
        ledger.set("recompute_granularity", "full", "model.activation_checkpointing")
    if ledger.take("model.offload_activations"):
        ledger.drop_value("model.offload_activations", True, "see --recompute-granularity full")
    if (ledger.get("tensor_model_parallel_size") or 1) > 1:
        ledger.default("sequence_parallel", True)
    _sharding(ledger)
    if ledger.take("model.data.use_synthetic_data"):
        ledger.set("mock_data", True, "model.data.use_synthetic_data")
    optimizer(ledger, "model.optim")
    _saving(ledger)
    fp8_scales(ledger)
    _evaluation(ledger)
    length(ledger)
    _start(ledger)
    _preferences(ledger)
    for key in MACHINES:
        ledger.drop(key, BATCH, Effect.RESULT)
    for name in LAUNCHERS:
        for key in [key for key in ledger.remaining_keys() if key == name or (name.endswith(".") and key.startswith(name))]:
            ledger.drop(key, LAUNCHER)
    drop_known(ledger)
    return ledger.close("not a key of a recipe")


def _precision(ledger: Ledger) -> None:
    """Translate the precision. Recipes set trainer.precision, and model.precision as a reference to it."""
    of_model = ledger.take("model.precision")
    if ledger.peek("trainer.precision") is None:
        ledger.drop("trainer.precision", IS_OFF)
        precision(ledger, "model.precision", of_model)
        return
    is_same = _type(of_model) == _type(ledger.peek("trainer.precision"))
    reason = "lt-train takes trainer.precision"
    ledger.drop_value("model.precision", of_model, reason, Effect.NONE if is_same else Effect.RUN)
    precision(ledger, "trainer.precision", ledger.take("trainer.precision"))


def _type(precision_of_lightning: Any) -> str:
    """Return the type without Lightning's suffix: bf16-mixed and bf16 are the same type."""
    return str(precision_of_lightning).lower().removesuffix("-mixed")


def _evaluation(ledger: Ledger) -> None:
    """Translate evaluation. A recipe evaluates only with a directory of validation data; synthetic data includes one."""
    size = ledger.take("model.val_batch_size")
    if "model.data.val_dir" in ledger.original_values() and not ledger.peek("model.data.val_dir") and not ledger.get("mock_data"):
        evaluation.switch_off(ledger)
    if LIMIT in ledger.original_values():
        validation(ledger)
    is_other = ledger.get("eval_iters") != 0 and size != ledger.get("micro_batch_size")
    reason = "lt-train evaluates with --micro-batch-size"
    ledger.drop_value("model.val_batch_size", size, reason, Effect.RUN if is_other else Effect.NONE)


def _preferences(ledger: Ledger) -> None:
    """Drop the settings of preference optimization if it is off."""
    if not ledger.peek("model.dpo.enabled"):
        for key in [key for key in ledger.remaining_keys() if key.startswith("model.dpo.")]:
            ledger.drop(key, "there is no preference optimization")


def _start(ledger: Ledger) -> None:
    """Report fine-tuning, which starts from Hugging Face weights and trains some or all of them."""
    is_tuned = ledger.take("model.do_finetune")
    if is_tuned:
        ledger.drop_value("model.do_finetune", is_tuned, PRETRAINING, Effect.RUN)
    reason = START if is_tuned else "what the recipe leaves out of the model's shape is in the config.json that it names"
    ledger.drop("model.hf_model_name_or_path", reason, Effect.RUN)
    if not ledger.peek("model.peft.peft_type"):
        for key in [key for key in ledger.remaining_keys() if key.startswith("model.peft.")]:
            ledger.drop(key, "all weights are trained")
    decay = ledger.take("model.lr_decay_iters")
    effect = Effect.NONE if decay == ledger.get("train_iters") else Effect.RUN
    ledger.drop_value("model.lr_decay_iters", decay, "the decay takes the whole run", effect)


def _model(ledger: Ledger) -> None:
    kind = ledger.take("model.model_type")
    if kind is not None and not str(kind).startswith((*DENSE, *EXPERTS)):
        ledger.drop_value("model.model_type", kind, "lt-train has Llama, Mistral and Mixtral of those", Effect.MODEL)
    _experts(ledger)
    if str(kind).startswith(EXPERTS) and not ledger.get("num_experts"):
        ledger.drop_value("model.model_type", kind, UNKNOWN_EXPERTS, Effect.MODEL)
    window = ledger.take_number("model.sliding_window")
    if window:
        # Hugging Face's window includes the current token; Megatron's counts the tokens before it.
        ledger.carry_value("model.sliding_window", "window_size", f"{int(window) - 1},0")
    if ledger.has("model.num_hidden_layers"):
        for option, value in LLAMA.items():
            ledger.default(option, value, "model.model_type")
    base = ledger.take_number("model.rope_theta")
    ledger.carry_value("model.rope_theta", "rotary_base", base)
    tied = ledger.take("model.tie_word_embeddings", False)
    if tied is False and ledger.has("model.num_hidden_layers"):
        ledger.set("untie_embeddings_and_output_weights", True, "model.tie_word_embeddings")
    elif tied is True:
        ledger.drop_value("model.tie_word_embeddings", True, "as without --untie-embeddings-and-output-weights", Effect.NONE)
    kind, factor = ledger.take("model.rope_scaling.rope_type"), ledger.take_number("model.rope_scaling.factor")
    if kind == "llama3" and factor:
        ledger.set("use_rope_scaling", True, "model.rope_scaling.rope_type")
        ledger.carry_value("model.rope_scaling.factor", "rope_scaling_factor", factor)
    elif factor:
        for key, value in (("rope_type", kind), ("factor", factor)):
            ledger.drop_value(f"model.rope_scaling.{key}", value, "lt-train has Llama 3.1's scaling", Effect.MODEL)
    drop_scaling(ledger, SCALING, kind == "llama3")
    ledger.take("model.rope_scaling")


def _experts(ledger: Ledger) -> None:
    """Translate the settings of experts, or drop them if the model has no experts."""
    if not ledger.peek("model.moe"):
        for key in ("model.moe", *EXPERT_KEYS, "model.moe_load_balancing"):
            ledger.drop(key, "the model has no experts")
        return
    ledger.take("model.moe")
    for key, option in EXPERT_KEYS.items():
        ledger.carry(key, option)
    has_experts = (ledger.get("num_experts") or 1) > 1
    reason = "model.num_local_experts says it" if has_experts else UNKNOWN_EXPERTS
    ledger.drop_value("model.moe", True, reason, Effect.NONE if has_experts else Effect.MODEL)
    balancing = ledger.take_text("model.moe_load_balancing") or BALANCING
    if balancing != "aux_loss":
        ledger.drop_value("model.moe_load_balancing", balancing, "experts are balanced by --moe-aux-loss-coeff", Effect.RUN)


def _sharding(ledger: Ledger) -> None:
    strategy, degree = ledger.take("model.sharding_strategy"), ledger.take_number("model.shard_degree")
    if strategy in ("full_shard", "hybrid_shard"):
        ledger.set("use_torch_fsdp2", True, "model.sharding_strategy")
        machines = {key: ledger.take_number(key) for key in MACHINES}
        for key, value in machines.items():
            ledger.drop_value(key, value, BATCH, Effect.RESULT)
        # Python integers cannot overflow, unlike floats.
        devices, nodes = (int(value or least) for value, least in zip(machines.values(), (0, 1), strict=True))
        data = devices * nodes // max(1, int(ledger.get("tensor_model_parallel_size") or 1))
        if strategy == "hybrid_shard" and degree and degree >= 1 and data > degree and data % degree == 0:
            ledger.carry_value("model.shard_degree", "num_distributed_optimizer_instances", data // int(degree))
            return
    elif strategy not in (None, "no_shard"):
        ledger.drop_value("model.sharding_strategy", strategy, "lt-train shards everything or the optimizer alone")
    ledger.drop_value(
        "model.shard_degree", degree, "it divides the ranks of a hybrid_shard that has more data-parallel ranks alone"
    )


def _saving(ledger: Ledger) -> None:
    callback = "exp_manager.checkpoint_callback_params"
    enabled = ledger.take("exp_manager.create_checkpoint_callback", True)
    experiment, directory = ledger.take_text("exp_manager.exp_dir"), ledger.take_text("exp_manager.checkpoint_dir")
    if directory and directory.startswith("None/"):
        # A reference to exp_dir, which is not set.
        ledger.drop_value("exp_manager.checkpoint_dir", directory, "no directory to save to", Effect.NONE)
        directory = None
    directory = directory or (experiment and os.path.join(experiment, "checkpoints"))
    count, interval = (ledger.take_number(f"{callback}.{key}") for key in ("save_top_k", "every_n_train_steps"))
    if not enabled or count == 0:
        ledger.drop_value(f"{callback}.save_top_k", count, "nothing is saved: add --save")
    elif directory:
        keys = ("exp_manager.exp_dir", "exp_manager.checkpoint_dir", "exp_manager.create_checkpoint_callback")
        ledger.set("save", directory.rstrip("/"), *keys)
        if interval:
            ledger.carry_value(f"{callback}.every_n_train_steps", "save_interval", interval)
        if count and count > 0:
            ledger.carry_value(f"{callback}.save_top_k", "keep_last", count)
        else:
            ledger.drop_value(f"{callback}.save_top_k", count, "all checkpoints are kept, as without --keep-last")
    if ledger.take("exp_manager.create_tensorboard_logger"):
        tensorboard(ledger, experiment)
    ledger.carry("exp_manager.resume_from_checkpoint", "load")
