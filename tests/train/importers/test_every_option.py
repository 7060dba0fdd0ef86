"""Every option of Megatron-LM, Megatron-Bridge, TorchTitan and NeMo with two values: carried, told, or harmless for a reason.

The options are those of the pinned versions, whose defaults the importers read too. Which values change a run was read in the
source of those versions.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import MagicMock

import pytest
from running import train

from lt_shared.console import BadData
from lt_train.importers import flagscale, hyperpod, megatron_bridge, megatron_lm, nemo, torchtitan
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import IS_IMPLIED, IS_OFF, NOT_SET, Dropped, Translation
from lt_train.importers.upstream import bridge_fields, megatron_options, nemo_keys, torchtitan_keys
from lt_train.importers.upstream.rows import options

SHAPE = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64"
COMMAND = ["pretrain_gpt.py", *f"{SHAPE} --micro-batch-size 1 --global-batch-size 8 --train-iters 10".split()]
BRIDGE = {
    "_target_": "megatron.bridge.training.config.ConfigContainer",
    "model._target_": "megatron.bridge.models.gpt_provider.GPTModelProvider",
    "model.num_layers": 4,
    "train.train_iters": 100,
}
TITAN = {"model.name": "llama3", "model.flavor": "8B", "checkpoint.enable": True, "training.steps": 1000}
NEMO = {"model.num_layers": 4, "trainer.max_steps": 100, "model.optim.name": "fused_adam", "model.optim.lr": 1e-4}
# Reasons that no table gives.
GENERIC = {"lt-train has no such option", "lt-train has no such setting", "not a key that NeMo's models have"}
HARMLESS = (Effect.NONE, Effect.SPEED)


def another(default: Any, choices: list[str] | None = None) -> Any:
    """A value of the same kind."""
    if choices:
        return next(choice for choice in choices if choice != default)
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return default + 1 if isinstance(default, int) else default / 2 or 0.5
    if isinstance(default, list):
        return [] if default else [7]
    return f"{default}x" if default else 3


def flags(**values: Any) -> Translation:
    words = list(COMMAND)
    for key, value in values.items():
        words.append(f"--{key.replace('_', '-')}")
        words += [] if value is True else [str(word) for word in (value if isinstance(value, list) else [value])]
    return megatron_lm.translate(words)


def file(translate: Callable[[dict[str, Any]], Translation], base: Mapping[str, Any], **values: Any) -> Translation:
    return translate({**base, **values})


bridge = functools.partial(file, megatron_bridge.translate, BRIDGE)
titan = functools.partial(file, torchtitan.translate, TITAN)
nemo_file = functools.partial(file, nemo.translate, NEMO)
# TorchTitan's own default is a batch of 8 sequences on each rank.
EVALUATED = {"validation.enable": True, "validation.steps": 5}
recipe = functools.partial(file, hyperpod.translate, {"model.model_type": "llama_v3", "model.num_hidden_layers": 4})


LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def first_weights(name: str, deviation: float) -> dict[str, Any]:
    """A function of torch's that megatron-core has filled in, as Megatron-Bridge writes it."""
    values = {"_target_": "torch.nn.init.normal_", "_partial_": True, "_args_": [], "mean": 0.0, "std": deviation}
    return {f"model.{name}.{key}": value for key, value in values.items()}


def entry(translation: Translation, key: str) -> Dropped | None:
    return next((entry for entry in translation.dropped if entry.key == key), None)


def unexplained(translation: Translation, base: Translation, key: str, value: Any) -> str | None:
    """What is wrong about the account of `key`, if anything is."""
    dropped = entry(translation, key)
    if dropped is None:
        return None if translation.options != base.options or value is True else f"{key} = {value}: neither carried nor told"
    if dropped.effect in HARMLESS and dropped.reason in GENERIC:
        return f"{key} = {value}: changes {dropped.effect} without a reason: {dropped.reason}"
    return None


def test_every_option_of_megatron_lm() -> None:
    base, problems = flags(), []
    for key, (kind, default, *choices) in options("megatron_lm").items():
        values = [True] if kind == "switch" else [another(default, *choices), default]
        for value in values:
            if value in (None, []):
                continue
            translation = flags(**{key: value})
            problems.append(unexplained(translation, base, key, True if value == default else value))
    assert not [problem for problem in problems if problem]


@pytest.mark.parametrize(
    ("trainer", "translate"),
    [("megatron_bridge", bridge), ("torchtitan", titan), ("nemo", nemo_file)],
    ids=lambda value: str(value)[:15],
)
def test_every_key_of_a_file(trainer: str, translate: Callable[..., Translation]) -> None:
    base, problems = translate(), []
    for key, default in options(trainer).items():
        for value in (another(default), default):
            if isinstance(default, dict) or value is None:
                continue
            translation = translate(**{key: value})
            problems.append(unexplained(translation, base, key, True if value == default else value))
    # What these say is what the base says.
    same = ("model.bf16", "parallelism.data_parallel_shard_degree = 0", "checkpoint.enable")
    assert not [problem for problem in problems if problem and not problem.startswith(same)]


@pytest.mark.parametrize(
    ("trainer", "translate"),
    [("megatron_bridge", bridge), ("torchtitan", titan), ("nemo", nemo_file)],
    ids=lambda value: str(value)[:15],
)
def test_a_default_changes_nothing(trainer: str, translate: Callable[..., Translation]) -> None:
    """A file that spells all defaults out is told of no loss but the defaults that lt-train does not share."""
    for key, default in options(trainer).items():
        is_reference = isinstance(default, str) and ("${" in default or default == "???")
        if default is None or isinstance(default, dict) or is_reference or key in ("model.name", "model.flavor", "defaults"):
            continue
        dropped = entry(translate(**{key: default}), key)
        assert dropped is None or dropped.effect in HARMLESS or key in DIFFERENT, (key, default, dropped)


# Defaults that lt-train does not share: they are told.
DIFFERENT = {
    "model.make_vocab_size_divisible_by",
    "dataset.random_seed",
    "optimizer.muon_momentum",
    "optimizer.weight_decay",
    "lr_scheduler.total_steps",
    "model.optim.sched.constant_steps",
    "model.optim.sched.min_lr",
    "model.optim.lr",
    "model.layernorm_epsilon",
    "model.bias_activation_fusion",
}


def test_rows_name_options() -> None:
    """A row of Megatron-LM that no version has is of a fork, which the table of the forks names."""
    assert not set(megatron_options.AT_LOADING) & set(megatron_options.ROWS)
    fields = {key.partition(".")[2] for key in options("megatron_bridge")}
    unknown = {key for key in bridge_fields.ROWS if "." in key and key not in options("megatron_bridge")}
    assert unknown <= {"model.bos_token_id", "model.eos_token_id", "model.pad_token_id"}
    assert "tp_comm_overlap" in fields
    reasons = {row.reason for table in (megatron_options.ROWS, torchtitan_keys.ROWS, nemo_keys.ROWS) for row in table.values()}
    assert not reasons & {IS_IMPLIED, IS_OFF, NOT_SET, ""}


@pytest.mark.parametrize(
    ("values", "key", "effect"),
    [
        ({"load": "/x", "use_checkpoint_opt_param_scheduler": True}, "use_checkpoint_opt_param_scheduler", Effect.RUN),
        ({"use_checkpoint_opt_param_scheduler": True}, "use_checkpoint_opt_param_scheduler", Effect.NONE),
        ({"load": "/x", "override_opt_param_scheduler": True}, "override_opt_param_scheduler", Effect.NONE),
        ({"load": "/x", "reset_iteration": True}, "reset_iteration", Effect.RUN),
        ({"load": "/x", "use_checkpoint_args": True}, "use_checkpoint_args", Effect.RUN),
        ({"load": "/x", "load_main_params_from_ckpt": True}, "load_main_params_from_ckpt", Effect.RUN),
        ({"load": "/x", "dist_ckpt_strictness": "ignore_all"}, "dist_ckpt_strictness", Effect.RUN),
        ({"save": "/x", "load": "/x", "ckpt_step": 5}, "ckpt_step", Effect.RUN),
        ({"save": "/x", "load": "/x", "finetune": True}, "finetune", Effect.RUN),
        ({"save": "/x", "load": "/x", "no_load_optim": True}, "no_load_optim", Effect.RUN),
        ({"save": "/x", "load": "/x", "no_load_rng": True}, "no_load_rng", Effect.RESULT),
        ({"load": "/x", "use_checkpoint_lr_scheduler": True}, "use_checkpoint_lr_scheduler", Effect.RUN),
        ({"save": "/x", "load": "/x", "exit_on_missing_checkpoint": True}, "exit_on_missing_checkpoint", Effect.RESULT),
        ({"load": "/x", "pretrained_checkpoint": "/p"}, "pretrained_checkpoint", Effect.RUN),
        ({"moe_use_upcycling": True}, "moe_use_upcycling", Effect.RUN),
        ({"skip_train": True}, "skip_train", Effect.RUN),
        ({"optimizer": "sgd"}, "optimizer", Effect.RUN),
        # OptimizerParamScheduler asserts that a WSD schedule has a decay.
        ({"lr_decay_style": "WSD"}, "lr_decay_style", Effect.RUN),
        ({"allow_ambiguous_pad_tokens": True}, "allow_ambiguous_pad_tokens", Effect.RUN),
        ({"tokenizer_type": "NullTokenizer", "null_tokenizer_pad_id": 0}, "null_tokenizer_pad_id", Effect.RUN),
        ({"null_tokenizer_pad_id": 0}, "null_tokenizer_pad_id", Effect.NONE),
        ({"no_position_embedding": True}, "no_position_embedding", Effect.MODEL),
        ({"init_model_with_meta_device": True}, "init_model_with_meta_device", Effect.RESULT),
        ({"save": "/x", "load": "/x", "override_ckpt_iteration": 3}, "override_ckpt_iteration", Effect.RUN),
        ({"optimizer": "lion"}, "optimizer", Effect.RUN),
        ({"optimizer": "muon"}, "muon_momentum", Effect.RUN),
        ({"optimizer": "muon", "muon_momentum": 0.95}, "muon_momentum", Effect.NONE),
        ({"optimizer": "muon", "tensor_model_parallel_size": 2}, "muon_tp_mode", Effect.RUN),
        ({"optimizer": "muon", "muon_num_ns_steps": 7}, "muon_num_ns_steps", Effect.RUN),
        ({"dataloader_type": "cyclic"}, "dataloader_type", Effect.RUN),
        ({"dataloader_type": "single"}, "dataloader_type", Effect.NONE),
        ({"dataloader_type": "cyclic", "no_data_sharding": True}, "no_data_sharding", Effect.RUN),
        ({"no_data_sharding": True}, "no_data_sharding", Effect.NONE),
        ({"exit_signal": "SIGINT"}, "exit_signal", Effect.NONE),
        ({"eval_micro_batch_size": 2}, "eval_micro_batch_size", Effect.NONE),
        ({"full_validation": True}, "full_validation", Effect.RUN),
        ({"start_eval_at_iter": 5}, "start_eval_at_iter", Effect.RUN),
        ({"result_rejected_tracker_filename": "/x"}, "result_rejected_tracker_filename", Effect.RUN),
        ({"no_check_for_nan_in_loss_and_grad": True}, "no_check_for_nan_in_loss_and_grad", Effect.RESULT),
        ({"no_initialization": True}, "no_initialization", Effect.RUN),
        ({"use_cpu_initialization": True}, "use_cpu_initialization", Effect.RESULT),
        ({"no_bias_gelu_fusion": True}, "no_bias_gelu_fusion", Effect.RESULT),
        ({"swiglu": True, "no_bias_gelu_fusion": True}, "no_bias_gelu_fusion", Effect.NONE),
        ({"no_create_attention_mask_in_dataloader": True}, "no_create_attention_mask_in_dataloader", Effect.NONE),
        (
            {"no_create_attention_mask_in_dataloader": True, "reset_attention_mask": True},
            "no_create_attention_mask_in_dataloader",
            Effect.NONE,
        ),
        ({"fp8_format": "hybrid", "no_fp8_wgrad": True}, "no_fp8_wgrad", Effect.RUN),
        ({"megatron_fsdp_main_params_dtype": "bf16"}, "megatron_fsdp_main_params_dtype", Effect.RUN),
        ({"train_sync_interval": 5}, "train_sync_interval", Effect.SPEED),
        ({"moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss"]}, "moe_router_load_balancing_type", Effect.NONE),
        ({"perform_rl_step": True, "grpo_iterations": 3}, "grpo_iterations", Effect.RUN),
        ({"log_never_heard_of": True}, "log_never_heard_of", Effect.RUN),
        ({"save_never_heard_of": 1}, "save_never_heard_of", Effect.RUN),
        ({"position_embedding_type": "none"}, "position_embedding_type", Effect.MODEL),
        ({"num_experts": 8, "expert_interval": 2}, "expert_interval", Effect.MODEL),
        ({"num_experts": 8, "expert_interval": 1}, "expert_interval", Effect.NONE),
        ({"expert_interval": 2}, "expert_interval", Effect.NONE),
        ({"inference_rng_tracker": True}, "inference_rng_tracker", Effect.RUN),
        ({"window_size": ["(-1,", "-1)"]}, "window_size", Effect.NONE),
        # Until 0.17 its vocabulary has a token more than --vocab-size.
        ({"tokenizer_type": "NullTokenizer", "vocab_size": 32000}, "tokenizer_type", Effect.RESULT),
        ({"tokenizer_type": "NullTokenizer", "vocab_size": 50257}, "tokenizer_type", Effect.NONE),
        ({"save": "/x", "load": "/x", "use_checkpoint_lr_scheduler": True}, "use_checkpoint_lr_scheduler", Effect.RESULT),
        ({"save": "/x", "load": "/x", "use_checkpoint_args": True}, "use_checkpoint_args", Effect.RESULT),
        ({"lazy_mpu_init": True}, "lazy_mpu_init", Effect.RESULT),
        ({"load": "/x", "lazy_mpu_init": True}, "lazy_mpu_init", Effect.NONE),
        # megatron/core/rerun_state_machine.py: a loss that is no number ends the run at once, or after a second try.
        ({"rerun_mode": "disabled"}, "rerun_mode", Effect.RESULT),
        # megatron/training/checkpointing.py: a copy between the saves is loaded if it is newer.
        ({"load": "/x", "non_persistent_ckpt_type": "global"}, "non_persistent_ckpt_type", Effect.RESULT),
        ({"save": "/x", "load": "/x", "non_persistent_ckpt_type": "global"}, "non_persistent_ckpt_type", Effect.RESULT),
        ({"load": "/x", "non_persistent_global_ckpt_dir": "/c"}, "non_persistent_global_ckpt_dir", Effect.RESULT),
        ({"non_persistent_ckpt_type": "global"}, "non_persistent_ckpt_type", Effect.NONE),
        ({"load": "/x", "non_persistent_ckpt_type": "local"}, "non_persistent_ckpt_type", Effect.NONE),
        # Megatron-FSDP's gradients have the type of the weights unless another one is given.
        ({"bf16": True, "use_megatron_fsdp": True}, "use_megatron_fsdp", Effect.RESULT),
        ({"use_megatron_fsdp": True}, "use_megatron_fsdp", Effect.SPEED),
        (
            {"bf16": True, "use_megatron_fsdp": True, "megatron_fsdp_main_grads_dtype": "fp32"},
            "use_megatron_fsdp",
            Effect.SPEED,
        ),
        ({"megatron_fsdp_main_grads_dtype": "bf16"}, "megatron_fsdp_main_grads_dtype", Effect.RUN),
        # Transformer Engine takes the mask for causal; so does the fused softmax, which takes 16 bits alone.
        ({"reset_attention_mask": True}, "reset_attention_mask", Effect.RESULT),
        ({"reset_attention_mask": True, "transformer_impl": "local", "bf16": True}, "reset_attention_mask", Effect.RESULT),
        # megatron/training/training.py: --train-iters and an evaluation count in the default batch size.
        ({"step_batch_size_schedule": "0:2 1K:4"}, "step_batch_size_schedule train_iters", Effect.RUN),
        ({"step_batch_size_schedule": "0:2 1K:4"}, "eval_global_batch_size", Effect.RESULT),
    ],
)
def test_options_of_megatron_lm(values: dict[str, Any], key: str, effect: Effect) -> None:
    dropped = entry(flags(**values), key)
    assert dropped is not None and dropped.effect is effect


@pytest.mark.parametrize(
    ("values", "carried"),
    [
        # megatron/training/checkpointing.py: get_checkpoint_name writes seven digits.
        ({"load": "/x", "ckpt_step": 5000}, {"load": "/x/iter_0005000"}),
        ({"load": "/x/", "ckpt_step": 0}, {"load": "/x/"}),
        # load_checkpoint takes the weights alone of it, and begins at step 0.
        ({"pretrained_checkpoint": "/p", "save": "/s"}, {"load": "/p", "finetune": True, "save": "/s"}),
        ({"pretrained_checkpoint": "/p", "save": "/s", "load": "/s"}, {"load": "/p", "finetune": True, "save": "/s"}),
        ({"load": "/x", "no_load_optim": True, "no_load_rng": True}, {"load": "/x", "no_load_optim": True, "no_load_rng": True}),
        ({"recompute_modules": ["core_attn", "mlp"]}, {"recompute_modules": "core_attn mlp"}),
        ({"recompute_modules": ["core_attn", "moe_act", "mlp"]}, {"recompute_modules": "core_attn mlp"}),
        ({"recompute_modules": ["core_attn", "mlp", "moe"], "num_experts": 4}, {"recompute_modules": "core_attn moe"}),
        ({"num_experts": 4, "moe_layer_freq": ["([0]*1", "+", "[1]*3)"]}, {"moe_layer_freq": "([0]*1+[1]*3)"}),
        ({"window_size": "(127,0)"}, {"window_size": "127,0"}),
        ({"window_size": ["127,", "0"]}, {"window_size": "127,0"}),
        ({"profile_ranks": [0, 8]}, {"profile_ranks": "0,8"}),
        ({"exit_duration_in_mins": 5}, {"exit_duration_in_mins": 5.0}),
        ({"exit_interval": 5}, {"exit_interval": 5}),
        ({"reset_attention_mask": True}, {"reset_attention_mask": True}),
        ({"no_create_attention_mask_in_dataloader": True, "reset_attention_mask": True}, {"reset_attention_mask": None}),
        # Megatron-DeepSpeed's schedule in tokens: of 64 tokens a sample, of 8 samples a step.
        ({"lr_decay_tokens": 2560, "lr_warmup_tokens": 512}, {"lr_decay_iters": 5, "lr_warmup_iters": 1}),
        ({"use_z_loss": True}, {"z_loss_coeff": 1e-4}),
        ({"use_mup": True, "mup_base_hidden_size": 32, "mup_width_mult": 3}, {"use_mup": True, "mup_base_hidden_size": 32}),
        ({"mup_base_hidden_size": 32}, {"mup_base_hidden_size": None}),
        ({"glu_activation": "swiglu"}, {"swiglu": True}),
        ({"rampup_batch_size": [2, 2, 8]}, {"rampup_batch_size": [2, 2, 8]}),
        ({"step_batch_size_schedule": "0:384 200B:768"}, {"step_batch_size_schedule": "0:384 200B:768"}),
        ({"lr_warmup_init": 1e-6}, {"lr_warmup_init": 1e-6}),
        ({"optimizer": "dist_muon", "use_distributed_optimizer": True}, {"optimizer": "muon"}),
        ({"split": "100,0,0"}, {"eval_iters": 0}),
        # Switches of Megatron-LM until 2023.
        ({"fp8_hybrid": True}, {"fp8_format": "hybrid", "fp8_recipe": "tensorwise"}),
        (
            {"transformer_impl": "local", "cpu_offloading_num_layers": 2},
            {"transformer_impl": None, "cpu_offloading_num_layers": None},
        ),
        ({"recompute_modules": ["core_attn", "layernorm"], "transformer_impl": "te"}, {"recompute_modules": "core_attn"}),
        ({"fp8_e4m3": True, "fp8_margin": 0}, {"fp8_format": "e4m3"}),
        # argparse takes abbreviations.
        ({"tensor_model_parallel": 2, "seq_len": 32}, {"tensor_model_parallel_size": 2, "seq_length": 32}),
        ({"split": "1"}, {"eval_iters": 0}),
        ({"train_data_path": ["a"], "eval_iters": 5}, {"eval_iters": 0}),
        ({"train_data_path": ["a"], "valid_data_path": ["b"], "eval_iters": 5}, {"eval_iters": 5}),
    ],
)
def test_carried_options_of_megatron_lm(values: dict[str, Any], carried: dict[str, Any]) -> None:
    found = flags(**values).options
    assert {name: found.get(name) for name in carried} == carried
    assert ("use_distributed_optimizer" in found) is ("use_distributed_optimizer" in carried)


@pytest.mark.parametrize(
    ("translate", "values", "key", "effect"),
    [
        (bridge, {"optimizer.optimizer": "sgd"}, "optimizer.optimizer", Effect.RUN),
        (bridge, {"optimizer.decoupled_weight_decay": False}, "optimizer.decoupled_weight_decay", Effect.RUN),
        (bridge, {"validation.skip_train": True}, "validation.skip_train", Effect.RUN),
        (bridge, {"checkpoint.load": "/l", "checkpoint.use_checkpoint_args": True}, "checkpoint.use_checkpoint_args", Effect.RUN),
        (
            bridge,
            {"checkpoint.load": "/l", "scheduler.use_checkpoint_opt_param_scheduler": True},
            "scheduler.use_checkpoint_opt_param_scheduler",
            Effect.RUN,
        ),
        (
            bridge,
            {"checkpoint.save": "/s", "checkpoint.load": "/s", "checkpoint.finetune": True},
            "checkpoint.finetune",
            Effect.RUN,
        ),
        (bridge, {"dataset.dataloader_load": "/d"}, "dataset.dataloader_load", Effect.RUN),
        (bridge, {"checkpoint.custom_manager_class": "mine.Manager"}, "checkpoint.custom_manager_class", Effect.RUN),
        (bridge, {"model.params_dtype": "torch.bfloat16"}, "model.params_dtype", Effect.RUN),
        (bridge, {"model.params_dtype": "torch.bfloat16", "model.bf16": True}, "model.params_dtype", Effect.NONE),
        (bridge, {"model.bf16": True, "mixed_precision.grad_reduce_in_fp32": True}, "model.bf16", Effect.RUN),
        (bridge, {"model.fp8": "hybrid"}, "model.fp8_recipe", Effect.RESULT),
        (bridge, {"model.tp_only_amax_red": True}, "model.tp_only_amax_red", Effect.RESULT),
        (nemo_file, {"model.tp_only_amax_red": True}, "model.tp_only_amax_red", Effect.NONE),
        (
            nemo_file,
            {
                "model.transformer_engine": True,
                "model.fp8": True,
                "model.fp8_e4m3": True,
                "model.tp_only_amax_red": True,
            },
            "model.tp_only_amax_red",
            Effect.RESULT,
        ),
        (nemo_file, {"model.optim.name": "fused_adam_of_a_fork"}, "model.optim.name", Effect.RUN),
        (bridge, {"peft._target_": "megatron.bridge.peft.lora.LoRA", "peft.dim": 16}, "peft.dim", Effect.RUN),
        (bridge, {"dataset._target_": "megatron.bridge.data.FinetuningDatasetConfig"}, "dataset._target_", Effect.RUN),
        (bridge, {"dataset.dataloader_type": "cyclic"}, "dataset.dataloader_type", Effect.RUN),
        (bridge, {"dataset.random_seed": 5, "rng.seed": 7}, "dataset.random_seed", Effect.RUN),
        (bridge, {"dataset.random_seed": 7, "rng.seed": 7}, "dataset.random_seed", Effect.NONE),
        (
            bridge,
            {"optimizer.main_grads_dtype._target_": "torch.bfloat16", "optimizer.main_grads_dtype._call_": False},
            "optimizer.main_grads_dtype",
            Effect.RUN,
        ),
        (
            bridge,
            {"optimizer.main_grads_dtype._target_": "torch.float32", "optimizer.main_grads_dtype._call_": False},
            "optimizer.main_grads_dtype",
            Effect.NONE,
        ),
        (bridge, {"model.a_field_of_later": False}, "model.a_field_of_later", Effect.RUN),
        (bridge, first_weights("init_method", 0.02), "model.init_method.std", Effect.NONE),
        (bridge, first_weights("output_layer_init_method", 0.02 / 8**0.5), "model.output_layer_init_method.std", Effect.NONE),
        (bridge, first_weights("output_layer_init_method", 0.02), "model.output_layer_init_method.std", Effect.RUN),
        (
            bridge,
            {"model.init_method._target_": "torch.nn.init.xavier_uniform_", "model.init_method._partial_": True},
            "model.init_method._target_",
            Effect.RUN,
        ),
        (bridge, {"model.activation_func": "a.fused_bias_geglu.quick_gelu"}, "model.activation_func", Effect.MODEL),
        (bridge, {"model.activation_func": "torch.nn.functional.gelu"}, "model.bias_activation_fusion", Effect.RESULT),
        (bridge, {"model.enable_autocast": True}, "model.enable_autocast", Effect.RESULT),
        (bridge, {"mixed_precision.autocast_enabled": True}, "mixed_precision.autocast_enabled", Effect.RESULT),
        (titan, {"checkpoint.initial_load_path": "/m"}, "checkpoint.initial_load_path", Effect.RUN),
        (titan, {"checkpoint.initial_load_in_hf": True}, "checkpoint.initial_load_in_hf", Effect.RUN),
        (titan, {"checkpoint.enable": False, "checkpoint.initial_load_path": "/m"}, "checkpoint.initial_load_path", Effect.NONE),
        (titan, {"checkpoint.load_step": 5}, "checkpoint.load_step", Effect.RUN),
        (titan, {"checkpoint.load_step": -1}, "checkpoint.load_step", Effect.NONE),
        (titan, {"checkpoint.exclude_from_loading": ["lr_scheduler"]}, "checkpoint.exclude_from_loading", Effect.RUN),
        (titan, {"checkpoint.create_seed_checkpoint": True}, "checkpoint.create_seed_checkpoint", Effect.RUN),
        (titan, {"optimizer.name": "Adam"}, "optimizer.name", Effect.RUN),
        (titan, {"optimizer.early_step_in_backward": True}, "optimizer.early_step_in_backward", Effect.RUN),
        (titan, {"training.dtype": "bfloat16"}, "training.dtype", Effect.RUN),
        (titan, {"lr_scheduler.decay_type": "step"}, "lr_scheduler.decay_type", Effect.RUN),
        (titan, {"lr_scheduler.total_steps": 10}, "lr_scheduler.total_steps", Effect.RUN),
        (titan, {"fault_tolerance.enable": True}, "fault_tolerance.enable", Effect.RUN),
        (titan, {"job.custom_config_module": "mine"}, "job.custom_config_module", Effect.RUN),
        (titan, {"validation.enable": True}, "validation.steps", Effect.RUN),
        (titan, EVALUATED | {"training.global_batch_size": 64}, "validation.steps", Effect.RUN),
        (titan, EVALUATED | {"training.seq_len": 4096}, "validation.seq_len", Effect.RESULT),
        (titan, EVALUATED | {"training.local_batch_size": 2}, "validation.local_batch_size", Effect.NONE),
        (titan, {}, "optimizer.weight_decay", Effect.RESULT),
        (nemo_file, {}, "trainer.limit_val_batches", Effect.RESULT),
        (nemo_file, {"trainer.limit_val_batches": None}, "trainer.limit_val_batches", Effect.RESULT),
        (nemo_file, {"trainer.limit_val_batches": 5}, "trainer.val_check_interval", Effect.RESULT),
        (
            nemo_file,
            {"model.data.splits_string": "1,0,0", "trainer.val_check_interval": 9},
            "trainer.val_check_interval",
            Effect.NONE,
        ),
        (recipe, {"model.moe": True, "model.num_local_experts": 8}, "model.moe_load_balancing", Effect.RUN),
        (recipe, {"model.moe": True}, "model.moe", Effect.MODEL),
        (recipe, {"model.moe": True, "model.num_local_experts": 1}, "model.moe", Effect.MODEL),
        (recipe, {"model.model_type": "mixtral_8x7b"}, "model.model_type", Effect.MODEL),
        (recipe, {"model.precision": 32, "trainer.precision": "bf16"}, "model.precision", Effect.RUN),
        (recipe, {"model.precision": "bf16", "trainer.precision": "bf16-mixed"}, "model.precision", Effect.NONE),
        (recipe, {"model.precision": "bf16-true", "trainer.precision": "bf16"}, "model.precision", Effect.RUN),
        (recipe, {"trainer.precision": "bf16-true"}, "trainer.precision", Effect.RUN),
        (nemo_file, {"trainer.precision": "bf16-true"}, "trainer.precision", Effect.RUN),
        (nemo_file, {"trainer.precision": "16-true"}, "trainer.precision", Effect.RUN),
        (nemo_file, {"trainer.precision": "bf16SR"}, "trainer.precision", Effect.RUN),
        (recipe, {"use_smp_model": False, "model.fp8": True}, "model.fp8", Effect.NONE),
        (bridge, {"optimizer._target_": "mine.Lion"}, "optimizer._target_", Effect.RUN),
        (bridge, {"optimizer._target_": "mine.OptimizerConfig"}, "optimizer._target_", Effect.RUN),
        (bridge, {"optimizer._target_": "megatron.core.optimizer.SGDOptimizerConfig"}, "optimizer._target_", Effect.RUN),
        (bridge, {"scheduler._target_": "mine.Rate"}, "scheduler._target_", Effect.RUN),
        (bridge, {"ddp._target_": "mine.DDP"}, "ddp._target_", Effect.RUN),
        (bridge, {"rng._target_": "mine.Rng"}, "rng._target_", Effect.RUN),
        (bridge, {"_target_": "mine.Container"}, "_target_", Effect.RUN),
        (bridge, {"model._target_": "mine.Provider"}, "model._target_", Effect.MODEL),
        (bridge, {"train.callback._target_": "mine.Callback"}, "train.callback._target_", Effect.RUN),
        (
            bridge,
            {"mixed_precision._target_": "megatron.bridge.training.mixed_precision.MixedPrecisionConfig"},
            "mixed_precision._target_",
            Effect.NONE,
        ),
        (bridge, {"scheduler._target_": "megatron.bridge.training.config.SchedulerConfig"}, "scheduler._target_", Effect.NONE),
        (
            bridge,
            {"optimizer._target_": "megatron.core.optimizer.optimizer_config.OptimizerConfig"},
            "optimizer._target_",
            Effect.NONE,
        ),
        (nemo_file, {"model.restore_from_path": "/m.nemo"}, "model.restore_from_path", Effect.RUN),
        (nemo_file, {"restore_from_path": "/m.nemo"}, "restore_from_path", Effect.RUN),
        (nemo_file, {"model.resume_from_checkpoint": "/c"}, "model.resume_from_checkpoint", Effect.RUN),
        (nemo_file, {"exp_manager.resume_from_checkpoint": "/c"}, "exp_manager.resume_from_checkpoint", Effect.RUN),
        (nemo_file, {"model.nemo_path": "/c"}, "model.nemo_path", Effect.RUN),
        (nemo_file, {"model.skip_train": True}, "model.skip_train", Effect.RUN),
        (nemo_file, {"model.optim.name": "sgd"}, "model.optim.name", Effect.RUN),
        (nemo_file, {"model.optim.name": "adamax"}, "model.optim.name", Effect.RUN),
        (nemo_file, {"model.optim.name": "adam", "model.optim.weight_decay": 0.1}, "model.optim.name", Effect.RUN),
        (nemo_file, {"model.optim.sched.name": "NoamAnnealing"}, "model.optim.sched.name", Effect.RUN),
        (nemo_file, {"trainer.max_epochs": 3}, "trainer.max_epochs", Effect.NONE),
        (nemo_file, {"trainer.max_epochs": -1}, "trainer.max_epochs", Effect.NONE),
        (nemo_file, {"trainer.limit_val_batches": 1.0}, "trainer.limit_val_batches", Effect.RESULT),
        (nemo_file, {"trainer.val_check_interval": 0.25}, "trainer.val_check_interval", Effect.RUN),
        (nemo_file, {"trainer.val_check_interval": 1.0}, "trainer.val_check_interval", Effect.RESULT),
        (nemo_file, {"trainer.limit_train_batches": 0.5}, "trainer.limit_train_batches", Effect.RUN),
        (
            nemo_file,
            {"exp_manager.create_early_stopping_callback": True},
            "exp_manager.create_early_stopping_callback",
            Effect.RUN,
        ),
        (nemo_file, {"exp_manager.ema.enable": True, "exp_manager.ema.every_n_steps": 2}, "exp_manager.ema.enable", Effect.RUN),
        (nemo_file, {"model.data.dataloader_type": "cyclic"}, "model.data.dataloader_type", Effect.RUN),
        (nemo_file, {"model.data.shuffle_documents": False}, "model.data.shuffle_documents", Effect.RUN),
        (nemo_file, {"model.normalize_attention_scores": False}, "model.normalize_attention_scores", Effect.RUN),
        (nemo_file, {"model.load_of_a_fork": False}, "model.load_of_a_fork", Effect.RUN),
        (recipe, {"model.do_finetune": True, "model.hf_model_name_or_path": "m"}, "model.hf_model_name_or_path", Effect.RUN),
        (recipe, {"model.do_finetune": True}, "model.do_finetune", Effect.RUN),
        (recipe, {"model.do_finetune": False, "model.hf_model_name_or_path": "m"}, "model.hf_model_name_or_path", Effect.RUN),
        (
            recipe,
            {f"model.rope_scaling.{key}": value for key, value in LLAMA_3.items()} | {"model.rope_scaling.high_freq_factor": 2.0},
            "model.rope_scaling.high_freq_factor",
            Effect.MODEL,
        ),
        (
            bridge,
            {"model.position_embedding_type": "rope", "model.rope_scaling": True, "model.old_context_len": 4096},
            "model.old_context_len",
            Effect.MODEL,
        ),
        (
            bridge,
            {"model.use_transformer_engine_full_layer_spec": True},
            "model.use_transformer_engine_full_layer_spec",
            Effect.MODEL,
        ),
        (bridge, {"model.moe_grad_scale_func": "mine.scale"}, "model.moe_grad_scale_func", Effect.RUN),
        (bridge, {"model.no_sync_func": ["megatron.core.distributed.no_sync", "mine.sync"]}, "model.no_sync_func", Effect.RUN),
        (bridge, {"model.no_sync_func": ["megatron.core.distributed.no_sync"]}, "model.no_sync_func", Effect.NONE),
        (
            bridge,
            {"checkpoint.load": "/l", "checkpoint.non_persistent_ckpt_type": "global"},
            "checkpoint.non_persistent_ckpt_type",
            Effect.RESULT,
        ),
        (
            bridge,
            {"checkpoint.load": "/l", "checkpoint.non_persistent_ckpt_type": "local"},
            "checkpoint.non_persistent_ckpt_type",
            Effect.NONE,
        ),
        (bridge, {"rerun_state_machine.rerun_mode": "validate_results"}, "rerun_state_machine.rerun_mode", Effect.RESULT),
        (
            bridge,
            {"mixed_precision.fp16": True, "mixed_precision.grad_reduce_in_fp32": False},
            "mixed_precision.grad_reduce_in_fp32",
            Effect.RESULT,
        ),
        (bridge, {"model.bf16": True, "ddp.use_megatron_fsdp": True}, "ddp.use_megatron_fsdp", Effect.RESULT),
        (
            bridge,
            {"dataset.reset_attention_mask": True, "dataset.skip_getting_attention_mask_from_dataset": False},
            "dataset.reset_attention_mask",
            Effect.RESULT,
        ),
        (bridge, {"tokenizer.use_tokenizer_vocab_size": True, "model.vocab_size": 32000}, "model.vocab_size", Effect.NONE),
        (titan, {"training.dataset": "c4"}, "training.dataset", Effect.RESULT),
        (titan, {"training.dataloader.num_workers": 4}, "training.dataloader.num_workers", Effect.RESULT),
        (titan, {"model.hf_assets_path": "./assets"}, "model.hf_assets_path", Effect.RESULT),
        (titan, {"model.norm_type": "layernorm"}, "model.norm_type", Effect.MODEL),
        (titan, {"model.norm_type": "fused_rmsnorm"}, "model.norm_type", Effect.NONE),
        (nemo_file, {"trainer.use_distributed_sampler": True}, "trainer.use_distributed_sampler", Effect.RUN),
        (nemo_file, {"trainer.replace_sampler_ddp": False}, "trainer.replace_sampler_ddp", Effect.NONE),
        (nemo_file, {"trainer.detect_anomaly": True}, "trainer.detect_anomaly", Effect.RESULT),
        (
            nemo_file,
            {"model.apply_query_key_layer_scaling": True, "trainer.precision": "16"},
            "model.apply_query_key_layer_scaling",
            Effect.RESULT,
        ),
        (
            nemo_file,
            {"model.apply_query_key_layer_scaling": True, "trainer.precision": "bf16"},
            "model.apply_query_key_layer_scaling",
            Effect.NONE,
        ),
        (nemo_file, {"model.mcore_gpt": False}, "model.mcore_gpt", Effect.RESULT),
        (
            nemo_file,
            {"model.mcore_gpt": False, "model.transformer_engine": True, "model.activation": "swiglu"},
            "model.transformer_engine",
            Effect.MODEL,
        ),
        (nemo_file, {"model.mcore_gpt": False, "model.transformer_engine": True}, "model.transformer_engine", Effect.SPEED),
        (
            nemo_file,
            {
                "model.data.reset_attention_mask": True,
                "model.get_attention_mask_from_fusion": False,
                "model.transformer_engine": True,
            },
            "model.data.reset_attention_mask",
            Effect.RESULT,
        ),
        (recipe, {"model.data.train_dir": "/d"}, "model.data.train_dir", Effect.RESULT),
        (recipe, {"trainer.num_nodes": 4}, "trainer.num_nodes", Effect.RESULT),
        (bridge, {"rng.inference_rng_tracker": True}, "rng.inference_rng_tracker", Effect.RUN),
        (bridge, {"model.use_kitchen_attention": True}, "model.use_kitchen_attention", Effect.RUN),
        (bridge, {"model.window_size": [-1, -1]}, "model.window_size", Effect.NONE),
        (
            bridge,
            {"checkpoint.save": "/s", "checkpoint.load": "/s", "scheduler.use_checkpoint_opt_param_scheduler": True},
            "scheduler.use_checkpoint_opt_param_scheduler",
            Effect.RESULT,
        ),
        (nemo_file, {"model.megatron_amp_O2": False, "trainer.precision": "bf16"}, "model.megatron_amp_O2", Effect.RESULT),
        (recipe, {"model.peft.peft_type": "lora"}, "model.peft.peft_type", Effect.RUN),
        (recipe, {"model.lr_decay_iters": 7, "trainer.max_steps": 50}, "model.lr_decay_iters", Effect.RUN),
        (
            recipe,
            {"model.val_batch_size": 2, "model.train_batch_size": 1, "trainer.limit_val_batches": 5},
            "model.val_batch_size",
            Effect.RUN,
        ),
    ],
)
def test_keys_of_files(translate: Callable[..., Translation], values: dict[str, Any], key: str, effect: Effect) -> None:
    dropped = entry(translate(**values), key)
    assert dropped is not None and dropped.effect is effect, dropped


@pytest.mark.parametrize(
    ("translate", "values", "carried"),
    [
        (bridge, {"optimizer.optimizer": "muon", "ddp.use_distributed_optimizer": True}, {"optimizer": "muon"}),
        (bridge, {"checkpoint.load": "/l", "checkpoint.ckpt_step": 7}, {"load": "/l/iter_0000007"}),
        (
            bridge,
            {"checkpoint.load": "/l", "checkpoint.load_optim": False, "checkpoint.finetune": True},
            {"load": "/l", "no_load_optim": True, "finetune": True},
        ),
        (bridge, {"checkpoint.pretrained_checkpoint": "/p"}, {"load": "/p", "finetune": True}),
        (bridge, {"train.exit_interval": 5, "checkpoint.save": "/s"}, {"exit_interval": 5}),
        (bridge, {"train.exit_duration_in_mins": 5}, {"exit_duration_in_mins": 5}),
        (
            bridge,
            {"train.global_batch_size": 8, "validation.eval_global_batch_size": 16, "validation.eval_iters": 5},
            {"eval_iters": 10},
        ),
        (bridge, {"scheduler.lr_warmup_init": 1e-6}, {"lr_warmup_init": 1e-6}),
        (
            bridge,
            {"model.use_mup": True, "model.mup_base_hidden_size": 32, "model.mup_width_mult": 2.0, "model.softmax_scale": 0.0625},
            {"use_mup": True, "mup_base_hidden_size": 32},
        ),
        (bridge, {"model.mup_embedding_mult": 2.0}, {"mup_embedding_mult": None}),
        (
            bridge,
            {
                "scheduler.weight_decay_incr_style": "linear",
                "scheduler.start_weight_decay": 0.1,
                "scheduler.end_weight_decay": 0.2,
            },
            {"weight_decay_incr_style": "linear", "start_weight_decay": 0.1, "end_weight_decay": 0.2},
        ),
        (bridge, {"validation.eval_iters": 0}, {"eval_iters": 0}),
        # DistributedDataParallelConfig reduces gradients in the type of the weights unless told; MixedPrecisionConfig tells it.
        (bridge, {"model.bf16": True, "ddp.overlap_grad_reduce": False}, {"grad_reduce_in_bf16": True}),
        (bridge, {"mixed_precision.bf16": True, "ddp.overlap_grad_reduce": False}, {"grad_reduce_in_bf16": None}),
        (bridge, {"tokenizer.use_tokenizer_vocab_size": True, "model.vocab_size": 32000}, {"vocab_size": None}),
        (bridge, {"validation.eval_interval": None}, {"eval_iters": 100, "eval_interval": 100}),
        (bridge, {"dataset.split": "1,0,0", "validation.eval_iters": 32}, {"eval_iters": 0}),
        (bridge, {"dataset.blend": [["a", "b"], [0.3, 0.7]]}, {"data_path": ["0.3", "a", "0.7", "b"]}),
        (bridge, {"dataset.blend": [["a"], None]}, {"data_path": ["a"]}),
        (
            bridge,
            {"dataset.reset_attention_mask": True, "dataset.eod_mask_loss": True},
            {"reset_attention_mask": None, "eod_mask_loss": True},
        ),
        (
            bridge,
            {"dataset.reset_attention_mask": True, "dataset.skip_getting_attention_mask_from_dataset": False},
            {"reset_attention_mask": True},
        ),
        (bridge, {"model.recompute_modules": ["core_attn", "moe_act"]}, {"recompute_modules": "core_attn"}),
        (bridge, {"mixed_precision.bf16": True, "mixed_precision.grad_reduce_in_fp32": False}, {"grad_reduce_in_bf16": True}),
        (bridge, {}, {"hidden_dropout": 0.1, "attention_dropout": 0.1, "position_embedding_type": "learned_absolute"}),
        (bridge, {"model.hidden_size": 64}, {"ffn_hidden_size": 256}),
        # Defaults of the classes, which a file of one's own may leave out.
        (
            bridge,
            {"model._target_": "megatron.bridge.models.llama.llama_provider.LlamaModelProvider"},
            {"hidden_dropout": 0.0, "normalization": "RMSNorm", "swiglu": True, "disable_bias_linear": True},
        ),
        (
            bridge,
            {"model._target_": "megatron.bridge.models.qwen.qwen_provider.Qwen3ModelProvider", "model.rotary_base": 10000.0},
            {"qk_layernorm": True, "norm_epsilon": 1e-6, "rotary_base": 10000.0, "kv_channels": 128, "num_query_groups": 8},
        ),
        (bridge, {"mixed_precision": "bf16_mixed"}, {"bf16": True}),
        (bridge, {"scheduler.max_steps": 500}, {"lr_decay_iters": 500}),
        (bridge, {"scheduler.lr_decay_style": "WSD", "scheduler.lr_decay_iters": 90}, {"lr_wsd_decay_iters": 90}),
        (bridge, {"model.transformer.hidden_size": 64}, {"hidden_size": 64}),
        (bridge, {}, {"weight_decay": 0.01, "adam_beta2": 0.999, "lr_decay_style": "linear", "lr_warmup_iters": 0}),
        (
            nemo_file,
            {"trainer.limit_val_batches": 0.0, "trainer.val_check_interval": 10},
            {"eval_iters": 0, "eval_interval": None},
        ),
        (nemo_file, {"trainer.limit_val_batches": 0}, {"eval_iters": 0}),
        (nemo_file, {"trainer.limit_val_batches": 5, "model.data.splits_string": "1,0,0"}, {"eval_iters": 0}),
        (nemo_file, {"trainer.max_time": "00:03:45:30", "exp_manager.exp_dir": "/e"}, {"exit_duration_in_mins": 225.5}),
        (nemo_file, {}, {"lr_decay_style": "constant", "lr_warmup_iters": 0, "adam_beta2": 0.999, "weight_decay": 0.0}),
        (nemo_file, {"trainer.max_time": "00:03:45:00"}, {"exit_duration_in_mins": 225.0}),
        (nemo_file, {"model.data.reset_attention_mask": True}, {"reset_attention_mask": None}),
        (
            nemo_file,
            {"model.data.reset_attention_mask": True, "model.get_attention_mask_from_fusion": False},
            {"reset_attention_mask": True},
        ),
        (nemo_file, {}, {"clip_grad": 0.0, "hidden_dropout": 0.1, "attention_dropout": 0.1}),
        (nemo_file, {"trainer.gradient_clip_val": None}, {"clip_grad": 0.0}),
        (nemo_file, {"trainer.gradient_clip_val": 1.0, "model.hidden_dropout": 0.0}, {"clip_grad": 1.0, "hidden_dropout": 0.0}),
        (nemo_file, {"model.optim.sched.min_lr": 1e-5}, {"lr_decay_style": "constant", "lr_warmup_iters": 0}),
        (
            nemo_file,
            {"model.optim.sched.name": "CosineAnnealing"},
            {"lr_decay_style": "cosine", "min_lr": 0.0, "lr_warmup_iters": 0},
        ),
        (
            nemo_file,
            {"model.optim.sched.name": "CosineAnnealing", "model.optim.sched.warmup_ratio": 0.1},
            {"lr_warmup_iters": 10},
        ),
        (nemo_file, {"model.optim.sched.name": "CosineAnnealing", "model.optim.sched.max_steps": 80}, {"lr_decay_iters": 80}),
        (recipe, {"model.data.val_dir": None, "trainer.limit_val_batches": 5}, {"eval_iters": 0}),
        (recipe, {"trainer.limit_val_batches": 0}, {"eval_iters": 0}),
        (titan, {}, {"eval_iters": 0}),
        (titan, {"validation.enable": True, "validation.steps": 5}, {"eval_iters": 5, "eval_interval": 10}),
        (
            titan,
            EVALUATED | {"training.global_batch_size": 64, "parallelism.data_parallel_shard_degree": 16},
            {"eval_iters": 10},
        ),
        (
            titan,
            EVALUATED
            | {
                "training.global_batch_size": 64,
                "parallelism.data_parallel_shard_degree": 4,
                "parallelism.data_parallel_replicate_degree": 2,
                "validation.local_batch_size": 16,
            },
            {"eval_iters": 10},
        ),
        (recipe, {}, {"clip_grad": 1.0, "seed": 12345, "eval_iters": 0, "lr": 2e-4, "min_lr": 2e-5, "adam_beta2": 0.98}),
        (recipe, {"model.data.val_dir": "/v"}, {"eval_iters": 0}),
        (recipe, {}, {"weight_decay": 0.01, "lr_decay_style": "cosine", "lr_warmup_iters": 500}),
        (recipe, {"model.grad_clip": 0.5}, {"clip_grad": 0.5}),
        (recipe, {"model.sliding_window": 128}, {"window_size": "127,0"}),
        (recipe, {"model.precision": "bf16"}, {"bf16": True}),
        (nemo_file, {"trainer.precision": "16-mixed"}, {"fp16": True}),
        (nemo_file, {"trainer.precision": "32-true"}, {"bf16": None, "fp16": None}),
        (recipe, {}, {"fp8_format": "hybrid", "recompute_granularity": "full", "seq_length": 2048}),
        (recipe, {"model.fp8": False}, {"fp8_format": None}),
        (recipe, {"use_smp_model": False}, {"fp8_format": None}),
        (titan, {"checkpoint.initial_load_path": "./checkpoint/step-5", "job.dump_folder": "."}, {"load": None}),
        # Names of 2024 and of July 2025.
        (titan, {"training.enable_float8_linear": True}, {"fp8_format": "hybrid"}),
        (titan, {"validation.enabled": True, "validation.steps": 5, "validation.freq": 7}, {"eval_iters": 5, "eval_interval": 7}),
        (
            nemo_file,
            {"model.optim.sched.name": "InverseSquareRootAnnealing", "model.optim.sched.min_lr": 1e-5},
            {"lr_decay_style": "inverse-square-root", "min_lr": 0.0},
        ),
        (
            nemo_file,
            {"model.optim.sched.name": "WarmupAnnealing", "model.optim.sched.min_lr": 1e-5},
            {"lr_decay_style": "linear", "min_lr": 1e-5},
        ),
        (nemo_file, {"exp_manager.ema.enable": True}, {"ema_decay": 0.999}),
        (nemo_file, {"exp_manager.ema.enable": True, "exp_manager.ema.decay": 0.99}, {"ema_decay": 0.99}),
        (nemo_file, {"exp_manager.ema.enable": False, "exp_manager.ema.decay": 0.99}, {"ema_decay": None}),
        (bridge, {"tokenizer.tokenizer_type": "NullTokenizer", "tokenizer.vocab_size": 32000}, {"vocab_size": 32000}),
    ],
)
def test_carried_keys_of_files(translate: Callable[..., Translation], values: dict[str, Any], carried: dict[str, Any]) -> None:
    found = translate(**values).options
    assert {name: found.get(name) for name in carried} == carried


@pytest.mark.parametrize(
    "values",
    [
        {"transformer_impl": "local", "reset_attention_mask": True},
        {"transformer_impl": "local", "reset_attention_mask": True, "bf16": True, "no_masked_softmax_fusion": True},
    ],
)
def test_a_mask_that_megatron_lm_reads_is_carried_alone(values: dict[str, Any]) -> None:
    translation = flags(**values)
    assert translation.options["reset_attention_mask"] is True and entry(translation, "reset_attention_mask") is None


def test_a_whole_vocabulary_needs_no_padding() -> None:
    """128,256 rows are a multiple of 128 and of 8, 32,000 of 128, 50,257 of neither."""
    key = "model.make_vocab_size_divisible_by"
    effects = {size: entry(bridge(**{key: 8, "model.vocab_size": size}), key) for size in (128256, 32000, 50257)}
    assert [dropped and dropped.effect for dropped in effects.values()] == [Effect.NONE, Effect.NONE, Effect.RESULT]


def titan_rate(step: int, total: int, warmup: int, share: float | None, style: str, least: float) -> float:
    """torchtitan/components/lr_scheduler.py v0.2.2, linear_warmup_stable_decay, of a peak of 1, by the count of steps done."""
    warmup = min(warmup, total)
    decay = total - warmup if share is None else min(round(total * share), total - warmup)
    stable = total + 1 - warmup - decay
    if step < warmup:
        return (step + 1) / warmup
    if step < warmup + stable:
        return 1.0
    progress = (step + 1 - warmup - stable) / decay
    shape = {"linear": 1 - progress, "sqrt": 1 - progress**0.5}[style]
    return least + (1 - least) * shape


def test_reasons_of_keys_that_a_trainer_has() -> None:
    """No key of NeMo's own defaults is called unknown, and a schedule that the file names is no default."""
    for key, value in options("nemo").items():
        dropped = {entry.key: entry.reason for entry in file(nemo.translate, NEMO, **{key: another(value)}).dropped}
        assert dropped.get(key) != "not a key that NeMo's models have", key
    reasons = {entry.key: entry.reason for entry in file(nemo.translate, NEMO, **{"model.data.add_fim": True}).dropped}
    assert "middle" in reasons["model.data.add_fim"]
    assert [entry.reason for entry in flags(init_model_with_meta_device=True).dropped if "ranks find" in entry.reason] == []
    assert "lr_decay_style" not in titan(**{"lr_scheduler.decay_type": "cosine"}).defaults
    assert "lr_decay_style" in titan().defaults


@pytest.mark.parametrize("share", [None, 0.0, 0.1, 0.8, 1.0])
@pytest.mark.parametrize("style", ["linear", "sqrt"])
@pytest.mark.parametrize("warmup", [0, 20, 100, 150])
def test_the_schedules_of_torchtitan(share: float | None, style: str, warmup: int) -> None:
    """By megatron-core's own scheduler, which counts one step less: it sets the rate of a step before it."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    values = {"training.steps": 100, "optimizer.lr": 1.0, "lr_scheduler.warmup_steps": warmup, "lr_scheduler.decay_type": style}
    values |= {"lr_scheduler.min_lr_factor": 0.25} | ({} if share is None else {"lr_scheduler.decay_ratio": share})
    found = titan(**values).options
    scheduler = OptimizerParamScheduler(
        MagicMock(param_groups=[]),
        init_lr=0.0,
        max_lr=found["lr"],
        min_lr=found["min_lr"],
        lr_warmup_steps=found["lr_warmup_iters"],
        lr_decay_steps=found.get("lr_decay_iters", 100),
        lr_decay_style=found["lr_decay_style"],
        start_wd=0.1,
        end_wd=0.1,
        wd_incr_steps=100,
        wd_incr_style="constant",
        wsd_decay_steps=found.get("lr_wsd_decay_iters"),
        lr_wsd_decay_style=found.get("lr_wsd_decay_style"),
    )
    for step in (1, 19, 20, 50, 90, 95, 99):
        scheduler.num_steps = step
        expected = titan_rate(step - 1, 100, warmup, share, style, 0.25)
        # TorchTitan holds the peak one step longer.
        later = titan_rate(step, 100, warmup, share, style, 0.25)
        low, high = sorted((expected, later))
        assert low - 1e-6 <= scheduler.get_lr({"max_lr": 1.0, "min_lr": found["min_lr"]}) <= high + 1e-6


def test_another_run_is_refused() -> None:
    done = train("import", "--", *COMMAND, "--skip-train")
    assert (done.code, done.out) == (65, "")
    assert "not carried over, changes the run: skip_train = True: the command does not train so" in done.err
    assert "another run would result, without skip_train\nhint: --partial writes it nevertheless" in done.err


FLAGSCALE = {"system.precision.bf16": True, "model.num_layers": 4, "experiment.exp_name": "x", "train_more.steps": 5}


def test_flagscale_says_where_a_run_begins() -> None:
    with pytest.raises(BadData, match=r"system\.checkpoint\.load: another file has the value"):
        flagscale.translate({**FLAGSCALE, "system.checkpoint.load": "${experiment.load}"})
    found = flagscale.translate({**FLAGSCALE, "data.split": "${experiment.split}"})
    effects = {key: dropped and dropped.effect for key in (*FLAGSCALE, "data.split") if (dropped := entry(found, key))}
    assert effects == {"experiment.exp_name": Effect.NONE, "train_more.steps": Effect.RUN, "data.split": Effect.RESULT}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--load $A --save $B", ["A"]),
        ("--load $A --save $A", []),
        ("--pretrained-checkpoint $A", ["A"]),
        ("--data-path $A", []),
    ],
)
def test_a_start_that_the_script_does_not_say_is_asked_for(words: str, expected: list[str]) -> None:
    found = megatron_lm.translate([*COMMAND, *words.split()])
    assert [name for name in found.unknown_variables if name == "A"] == expected
    assert "load" not in found.options
