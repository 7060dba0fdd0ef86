"""Recipes of SageMaker HyperPod (YAML for Hydra), as they were until December 2025."""

import os
from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadData
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger, Translation
from lt_train.importers.nemo import JOB, fp8_scales, optimizer, precision, tensorboard

SOURCE = "HyperPod recipes"
FSDP = "FSDP2 does so by itself"
LAUNCHER = "a setting of the launcher: see lt-train render"
REASONS = {
    "run.time_limit": "it belongs to the job: sbatch --time",
    "run.": "a name or directory of the launcher's own; see --save",
    "trainer.devices": JOB,
    "trainer.num_nodes": JOB,
    "trainer.accelerator": "see --device",
    "trainer.": "a switch of PyTorch Lightning's",
    "exp_manager.name": "a name of the experiment: see --save and --wandb-exp-name",
    "exp_manager.auto_checkpoint.": "a run continues by itself; the interval is --save-interval",
    "exp_manager.export_full_model.": "lt-convert --to hf makes a whole model of any checkpoint",
    "exp_manager.checkpoint_callback_params.monitor": "the newest checkpoints are kept: --keep-last",
    "exp_manager.checkpoint_callback_params.mode": "the newest checkpoints are kept: --keep-last",
    "exp_manager.checkpoint_callback_params.save_last": "the last step always has a checkpoint",
    "exp_manager.": "a switch of the experiment manager",
    "use_smp_model": "the model is megatron-core's",
    "distributed_backend": "it follows from --device",
    "model.val_batch_size": "evaluation has the micro batch size",
    "model.log_reduced_training_loss": "the loss is that of all ranks in any case",
    "model.moe_all_to_all_dispatcher": "see --moe-token-dispatcher-type",
    "model.global_token_shuffle": "the router sees all tokens of a rank",
    "model.activation_loading_horizon": "lt-train has no such setting of offloading",
    "model.delayed_param": "weights are made where they stay, in any case",
    "model.forward_prefetch": FSDP,
    "model.backward_fetch_policy": FSDP,
    "model.auto_wrap_policy": FSDP,
    "model.limit_all_gathers": FSDP,
    "model.use_orig_param": FSDP,
    "model.use_flash_attention": "attention is a fused kernel in any case",
    "model.do_finetune": "lt-train pretrains; --finetune takes the weights of --load",
    "model.hf_model_name_or_path": "lt-convert makes a checkpoint for --load from Hugging Face weights",
    "model.peft.": "lt-train trains all weights",
    "model.viztracer.": "lt-train has torch's profiler: --profile",
    "model.nsys_profile.": "lt-train has torch's profiler: --profile",
    "model.data.dataset_type": "data is tokenized first: lt-preprocess, then DATA",
    "model.data.train_dir": "data is tokenized first: lt-preprocess, then DATA",
    "model.data.val_dir": "data is tokenized first: lt-preprocess, then --valid-data-path",
    "model.data.": "data is tokenized first: lt-preprocess, then DATA",
    "model.lr_decay_iters": "the decay takes the whole run",
    "model.precision": "trainer.precision says it",
    "model.": "lt-train has no such setting of the model",
    **dict.fromkeys(("defaults", "cluster_type", "instance_type", "base_results_dir", "container", "training_config"), LAUNCHER),
    **dict.fromkeys(("hydra.", "git.", "env_vars.", "cluster.", "debug", "dry_run"), LAUNCHER),
}
RENAMED = {
    "trainer.max_steps": "train_iters",
    "trainer.log_every_n_steps": "log_interval",
    "trainer.val_check_interval": "eval_interval",
    "trainer.limit_val_batches": "eval_iters",
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
    "model.vocab_size": "vocab_size",
    "model.optim.lr": "lr",
    "model.optim.weight_decay": "weight_decay",
    "model.optim.sched.warmup_steps": "lr_warmup_iters",
    "model.optim.sched.min_lr": "min_lr",
}
# Keys of HyperPod's recipes alone, and of NeMo's models alone.
OF_RECIPES = (
    *("use_smp_model", "cluster_type", "model.model_type", "model.train_batch_size"),
    *("model.tensor_model_parallel_degree", "model.num_hidden_layers", "run.model_type"),
)
OF_NEMO = {"model.encoder_seq_length", "model.micro_batch_size", "model.mcore_gpt", "model.megatron_amp_O2"}
OF_CONFIG = "--model takes the config.json of Hugging Face that it names"
DENSE, EXPERTS = ("llama", "mistral"), ("mixtral",)
LLAMA = {"position_embedding_type": "rope", "normalization": "RMSNorm", "swiglu": True, "disable_bias_linear": True}
EXPERT_KEYS = {"model.num_local_experts": "num_experts", "model.num_experts_per_tok": "moe_router_topk"}
# Of Llama 3.1's scaling only the factor is a setting, the others are Megatron's constants.
SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def is_recipe(values: Mapping[str, Any]) -> bool:
    """NeMo's launcher has a `run` section, too; its models have NeMo's keys."""
    names = {key.removeprefix("recipes.") for key in values}
    if any(name.startswith("distributed_strategy.") for name in names):
        return True
    return any(name.startswith(OF_RECIPES) for name in names) and not names & OF_NEMO


def translate(values: dict[str, Any]) -> Translation:
    """`values` are the keys with dots, references resolved. Raises BadData for a model whose shape is not in the recipe."""
    values = {key.removeprefix("recipes."): value for key, value in values.items()}
    if str(values.get("run.model_type", "")).startswith("amazon.nova"):
        raise BadData("Amazon's Nova: its shape is not public", "lt-train models lists what --model knows")
    if any(key.startswith("distributed_strategy.") for key in values):
        raise BadData("a recipe for Trainium: the model's shape is in its model_config", OF_CONFIG)
    ledger = Ledger(SOURCE, values)
    _model(ledger)
    for key, option in RENAMED.items():
        ledger.carry(key, option)
    if ledger.get("max_position_embeddings") is None and ledger.get("seq_length"):
        ledger.default("max_position_embeddings", ledger.get("seq_length"))
    precision(ledger, "trainer.precision")
    if ledger.take("model.fp8"):
        ledger.set("fp8_format", "hybrid", "model.fp8")
    if ledger.take("model.activation_checkpointing"):
        ledger.set("recompute_granularity", "full", "model.activation_checkpointing")
    if ledger.take("model.offload_activations"):
        ledger.drop_value("model.offload_activations", True, "see --cpu-offloading-num-layers")
    if (ledger.get("tensor_model_parallel_size") or 1) > 1:
        ledger.default("sequence_parallel", True)
    _sharding(ledger)
    if ledger.take("model.data.use_synthetic_data"):
        ledger.set("mock_data", True, "model.data.use_synthetic_data")
    optimizer(ledger, "model.optim")
    _saving(ledger)
    fp8_scales(ledger)
    ledger.drop_all(REASONS)
    return ledger.close("not a key of a recipe")


def _model(ledger: Ledger) -> None:
    kind = ledger.take("model.model_type")
    if kind is not None and not str(kind).startswith((*DENSE, *EXPERTS)):
        ledger.drop_value("model.model_type", kind, "lt-train has Llama, Mistral and Mixtral of those", Effect.MODEL)
    _experts(ledger)
    window = ledger.take_number("model.sliding_window")
    if window:
        ledger.set("window_size", f"{int(window)},0", "model.sliding_window")
    if ledger.has("model.num_hidden_layers"):
        for option, value in LLAMA.items():
            ledger.default(option, value, "model.model_type")
    base = ledger.take_number("model.rope_theta")
    ledger.carry_value("model.rope_theta", "rotary_base", base)
    if ledger.take("model.tie_word_embeddings", False) is False and ledger.has("model.num_hidden_layers"):
        ledger.set("untie_embeddings_and_output_weights", True, "model.tie_word_embeddings")
    kind, factor = ledger.take("model.rope_scaling.rope_type"), ledger.take_number("model.rope_scaling.factor")
    if kind == "llama3" and factor:
        ledger.set("use_rope_scaling", True, "model.rope_scaling.rope_type")
        ledger.carry_value("model.rope_scaling.factor", "rope_scaling_factor", factor)
    elif factor:
        for key, value in (("rope_type", kind), ("factor", factor)):
            ledger.drop_value(f"model.rope_scaling.{key}", value, "lt-train has Llama 3.1's scaling", Effect.MODEL)
    for key, constant in SCALING.items():
        ledger.drop(f"model.rope_scaling.{key}", f"it is {constant} in megatron-core")
    ledger.take("model.rope_scaling")


def _experts(ledger: Ledger) -> None:
    """Of a model that has any; the keys of one that has none say nothing."""
    if not ledger.take("model.moe", False):
        for key in (*EXPERT_KEYS, "model.moe_load_balancing"):
            ledger.drop(key, "the model has no experts")
        return
    for key, option in EXPERT_KEYS.items():
        ledger.carry(key, option)
    balancing = ledger.take_text("model.moe_load_balancing")
    if balancing not in (None, "aux_loss"):
        ledger.drop_value("model.moe_load_balancing", balancing, "experts are balanced by --moe-aux-loss-coeff", Effect.RESULT)


def _sharding(ledger: Ledger) -> None:
    strategy, degree = ledger.take("model.sharding_strategy"), ledger.take_number("model.shard_degree")
    if strategy in ("full_shard", "hybrid_shard"):
        ledger.set("use_torch_fsdp2", True, "model.sharding_strategy")
        machines = {key: ledger.take_number(key) for key in ("trainer.devices", "trainer.num_nodes")}
        for key, value in machines.items():
            ledger.drop_value(key, value, JOB)
        # As integers, which have no largest one.
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
