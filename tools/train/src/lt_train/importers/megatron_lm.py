"""Translate the command line of Megatron-LM's pretrain_gpt.py or pretrain_hybrid.py. Most options are named as in lt-train.

Some defaults differ: Megatron-LM has a dropout of 0.1, linear decay to zero and another beta2. They are carried over, too,
because the same command should train the same model.
"""

from collections.abc import Sequence
from typing import Any

import click

from lt_shared.console import BadData
from lt_train.config.settings.layers import WITHOUT_EFFECT
from lt_train.importers import evaluation, megatron_latents, muon
from lt_train.importers.effects import Effect
from lt_train.importers.layer_style import EVERYTHING, SEES_EVERYTHING, complete, drop_stored_otherwise
from lt_train.importers.ledger import Ledger, Translation, accepted, expected, options
from lt_train.importers.megatron import hybrid_model, initialization, mindspeed, start, switches
from lt_train.importers.megatron.recomputation import carry_recompute_modules
from lt_train.importers.megatron_flags import PATHS_AND_REPORTS, effect_of_flag, loss_of_flag
from lt_train.importers.megatron_script import command_in, sourced_option_files, variables_to_set
from lt_train.importers.megatron_words import full_name, is_script, parse, parse_launcher
from lt_train.importers.shell.command import ShellCommand
from lt_train.importers.shell.unknown import needs_shell, variables_in
from lt_train.importers.vocabulary import HERE, OTHERWISE, PADDED, same_rows

__all__ = ["command_in", "translate", "translate_command"]

SOURCE = "Megatron-LM"
TOKENIZER = "the tokenizer belongs to the data: lt-preprocess --tokenizer"
OF_SHELL = "it needs the shell: pass the command line with its value"
END_OF_DOCUMENT = "before 0.18 Megatron-LM adds a token to --vocab-size, for which this one is padded to more rows"
LAUNCHER = "the launcher's: lt-train reads the rank from the environment, or --ranks"
REASONS = {
    "tokenizer_type": TOKENIZER,
    "tokenizer_model": TOKENIZER,
    "vocab_file": TOKENIZER,
    "merge_file": TOKENIZER,
    "distributed_backend": "it follows from --device",
    "ckpt_format": "checkpoints are torch_dist in any case",
    "use_dist_ckpt": "checkpoints are torch_dist in any case",
    "auto_detect_ckpt_format": "checkpoints are torch_dist in any case",
    "dist_ckpt_format": "checkpoints are torch_dist in any case",
    "replication": "the next node keeps a second copy in any case",
    "replication_factor": "the next node keeps a second copy in any case",
    "replication_jump": "the next node keeps a second copy in any case",
    "sequence_parallel_size": "sequence parallelism has the tensor parallel size",
    "no_async_tensor_parallel_allreduce": "it changes no result",
    "no_gradient_accumulation_fusion": "it changes no result",
    "no_bias_swiglu_fusion": "it changes no result",
    "no_bias_dropout_fusion": "it changes no result",
    "attention_softmax_in_fp32": "attention sums in float32 in any case",
    "manual_gc": "Python's collector runs as usual",
    "log_params_norm": "lt-train has no such number",
    "log_num_zeros_in_grad": "lt-train has no such number",
    "log_progress": "the log has it",
    "wandb_key": "wandb reads it from WANDB_API_KEY",
}
RENAMED = {
    "batch_size": "micro_batch_size",
    "model_parallel_size": "tensor_model_parallel_size",
    "layernorm_epsilon": "norm_epsilon",
    "encoder_seq_length": "seq_length",
    "encoder_num_layers": "num_layers",
    "warmup": "lr_warmup_fraction",
    "min_scale": "min_loss_scale",
    "fp32_allreduce": "accumulate_allreduce_grads_in_fp32",
    "num_key_value_heads": "num_query_groups",
    "rotary_position_embeddings_theta": "rotary_base",
    "rope_theta": "rotary_base",
    "moe_intermediate_size": "moe_ffn_hidden_size",
}
# Switches of Megatron-LM until 2023, and of Megatron-DeepSpeed.
FP8_SWITCHES = {"fp8_e4m3": "e4m3", "fp8_hybrid": "hybrid"}
# megatron/training/training.py of llm-jp/Megatron-LM: the coefficient of --use-z-loss.
Z_LOSS_OF_LLM_JP = "1e-4"
NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
DEFAULTS = {
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "adam_beta2": 0.999,
    "weight_decay": 0.01,
    "min_lr": 0.0,
    "lr_decay_style": "linear",
    "eval_iters": 100,
    "log_interval": 100,
}
# Options of experts whose names do not begin with moe_.
OF_EXPERTS = ("num_experts", "expert_model_parallel_size", "expert_tensor_parallel_size", "expert_interval")
# A longer number is none of tokens, and slow to read.
MOST_DIGITS = 20
# Options that lt-train still parses for compatibility. They have no effect or raise an error.
EARLIER = ("transformer_impl", "cpu_offloading_num_layers")
# Defaults of Megatron-LM's command line that differ from megatron-core's.
MUON_DEFAULTS = {"muon_momentum": 0.9, "muon_tp_mode": "blockwise"}


def translate(words: Sequence[str], source: str = SOURCE) -> Translation:
    """Translate the words of a command line. Raises BadData if it does not start pretrain_gpt.py."""
    return translate_command(ShellCommand(list(words)), source)


def translate_command(command: ShellCommand, source: str = SOURCE) -> Translation:
    """Translate the command of a script, whose words may contain unknown variables."""
    script = next((index for index, word in enumerate(command.words) if is_script(word)), None)
    if script is None:
        raise BadData("no pretrain_gpt.py in the command line", "pass the whole command: -- torchrun ... pretrain_gpt.py ...")
    parsed = parse(command.words[script + 1 :])
    values = _as_megatrons(parsed)
    # Reports show the old name of an option if the command uses it.
    written = {RENAMED[name]: name for name in parsed if name in RENAMED and RENAMED[name] not in parsed}
    of_shell = {key: words for key, words in values.items() if any(map(needs_shell, words)) and not REASONS.get(key)}
    # MindSpeed-LLM converts --load from Hugging Face's format with this switch, even if it equals --save.
    is_own = values.get("load") == values.get("save") and "enable_hf2mg_convert" not in values
    if is_own:
        of_shell.pop("load", None)
    of_launcher = parse_launcher(command.words[:script])
    ledger = Ledger(source, values | of_launcher, written)
    for key in of_launcher:
        ledger.drop(key, LAUNCHER)
    unknown = variables_to_set(of_shell, command)
    for key in of_shell:
        _drop_unknown(ledger, key, command)
    for file in sourced_option_files(command):
        ledger.drop_value(f"source {file}", file, "what it sets is not known without running the script", Effect.RESULT)
    hybrid_model.translate(ledger, command.words[script])
    megatron_latents.translate(ledger)
    mindspeed.translate(ledger)
    _contradictions(ledger)
    start.translate(ledger, is_own)
    switches.translate(ledger)
    _optimizer(ledger)
    _skipped_steps(ledger)
    _vocabulary(ledger)
    _schedule_in_tokens(ledger)
    _lengths(ledger)
    _scheduled_batches(ledger)
    _width(ledger)
    for key in values:
        _carry(ledger, key)
    drop_stored_otherwise(ledger)
    initialization.translate(ledger)
    _without_a_directory(ledger)
    _defaults(ledger)
    complete(ledger, "disable_bias_linear")
    evaluation.switch_off_without_data(ledger, "eval_iters")
    for key in ledger.remaining_keys():
        words = ledger.take(key)
        row = loss_of_flag(key, words)
        ledger.drop_value(key, " ".join(words) if words else True, row.reason, row.effect)
    return ledger.close("lt-train has no such option", unknown)


def _drop_unknown(ledger: Ledger, key: str, command: ShellCommand) -> None:
    """Drop an option whose value only a run of the script would show."""
    words = ledger.take(key)
    if words == [key]:
        is_told = variables_to_set({key: words}, command) or any(name not in command.conditional for name in variables_in(key))
        effect = Effect.RESULT if is_told else Effect.NONE
        ledger.drop_value(key, key, f"{OF_SHELL}, or the options that it holds", effect)
        return
    ledger.drop_value(key, " ".join(words), OF_SHELL, _effect_of_unknown(key, words))


def _effect_of_unknown(key: str, words: Sequence[str]) -> Effect:
    """Return the effect of dropping an unknown value. lt-train's default replaces it; paths differ between machines anyway."""
    if effect_of_flag(key, words) is Effect.MODEL:
        return Effect.MODEL
    if key in options() and key not in (*WITHOUT_EFFECT, *EARLIER) and (key == "split" or not PATHS_AND_REPORTS.fullmatch(key)):
        return Effect.RESULT
    return effect_of_flag(key, words) if key not in options() or key in EARLIER else Effect.NONE


def _schedule_in_tokens(ledger: Ledger) -> None:
    """Carry Megatron-DeepSpeed's schedule in tokens over in samples, or in steps if the run's length is in steps."""
    length, batch = (_whole(ledger.peek(key)) for key in ("seq_length", "global_batch_size"))
    in_steps = ledger.has("train_iters")
    size = length if not in_steps else length * batch
    unit = "iters" if in_steps else "samples"
    for name in ("lr_decay", "lr_warmup"):
        key, option = f"{name}_tokens", f"{name}_{unit}"
        tokens = _whole(ledger.peek(key))
        if tokens and size and tokens >= size and not ledger.has("curriculum_learning"):
            ledger.take(key)
            for replaced in (f"{name}_iters", f"{name}_samples", f"{name}_fraction"):
                ledger.drop(replaced, f"beside --{key.replace('_', '-')} Megatron-DeepSpeed does not read it")
            ledger.set(option, tokens // size, key)


def _whole(words: Sequence[str] | None) -> int:
    """Return the whole number that `words` are, or 0."""
    text = "".join(words or ()).replace("_", "")
    return int(text) if text.isdigit() and len(text) < MOST_DIGITS else 0


def _width(ledger: Ledger) -> None:
    """Drop the two options that FlagScale computes a missing --ffn-hidden-size from, if it is not missing."""
    if ledger.has("ffn_hidden_size"):
        for key in ("multiple_of", "hidden_dim_multiplier"):
            ledger.drop(key, "beside --ffn-hidden-size it has no effect")


def _lengths(ledger: Ledger) -> None:
    """Drop the longer of --train-tokens and --train-samples: Megatron-DeepSpeed ends at the shorter, lt-train takes one."""
    keys = ("train_tokens", "train_samples", "seq_length")
    if not all(map(ledger.has, keys)):
        return
    tokens, samples, length = (_whole(ledger.peek(key)) for key in keys)
    if 0 < samples * length < tokens:
        ledger.drop("train_tokens", "--train-samples ends the run before")
    elif tokens:
        ledger.drop("train_samples", "--train-tokens ends the run before")


def _scheduled_batches(ledger: Ledger) -> None:
    """Report what Megatron-LM counts in its default batch size although a schedule sets others."""
    key = "step_batch_size_schedule"
    if not ledger.has(key):
        return
    if ledger.has("train_iters"):
        reason = "beside it Megatron-LM computes the samples of --train-iters with another batch size: give --train-samples"
        ledger.drop_value(f"{key} train_iters", " ".join(ledger.peek("train_iters")), reason, Effect.RUN)
    if not ledger.has("eval_global_batch_size"):
        reason = (
            "Megatron-LM evaluates one micro batch per rank an iteration beside a schedule, lt-train the schedule's last size"
        )
        ledger.drop_value("eval_global_batch_size", "by default", reason, Effect.RESULT)


def _vocabulary(ledger: Ledger) -> None:
    size, tensor = "".join(ledger.peek("vocab_size") or ()), ledger.get("tensor_model_parallel_size") or 1
    if ledger.peek("tokenizer_type") == ["NullTokenizer"] and size.isdigit() and int(size) % (HERE * tensor) == 0:
        ledger.take("tokenizer_type")
        ledger.drop_value("tokenizer_type", "NullTokenizer", END_OF_DOCUMENT, Effect.RESULT)
    key = "make_vocab_size_divisible_by"
    if ledger.has(key):
        multiple = "".join(ledger.take(key))
        is_same = multiple.isdigit() and same_rows(int(multiple), int(size) if size.isdigit() else None, tensor)
        reason, effect = (PADDED, Effect.NONE) if is_same else (OTHERWISE, Effect.RESULT)
        ledger.drop_value(key, multiple, reason, effect)


def _as_megatrons(values: dict[str, Any]) -> dict[str, Any]:
    """Rename options of Megatron-DeepSpeed and of earlier Megatron-LM to the current names."""
    current = {RENAMED.get(name, name): value for name, value in ((full_name(key), value) for key, value in values.items())}
    if "use_rotary_position_embeddings" in current:
        del current["use_rotary_position_embeddings"]
        current.setdefault("position_embedding_type", ["rope"])
    if "num_key_value_heads" in values:
        current.setdefault("group_query_attention", [])
    if "group_query_attention" in current:
        # Megatron-LM's default is one group, so the switch alone means multi-query attention.
        current.setdefault("num_query_groups", ["1"])
    if "checkpoint_activations" in current and "recompute_granularity" not in current:
        del current["checkpoint_activations"]
        current |= {"recompute_granularity": ["full"], "recompute_method": ["uniform"]}
        current.setdefault("recompute_num_layers", current.pop("checkpoint_num_layers", ["1"]))
    if "activations_checkpoint_method" in current and "recompute_granularity" not in current:
        current |= {"recompute_granularity": ["full"], "recompute_method": current.pop("activations_checkpoint_method")}
        current.setdefault("recompute_num_layers", current.pop("activations_checkpoint_num_layers", ["1"]))
    if current.get("glu_activation") == ["swiglu"]:
        del current["glu_activation"]
        current.setdefault("swiglu", [])
    if current.pop("use_z_loss", None) is not None:
        current.setdefault("z_loss_coeff", [Z_LOSS_OF_LLM_JP])
    for name, form in FP8_SWITCHES.items():
        if current.pop(name, None) is not None:
            current.setdefault("fp8_format", [form])
    if "normalization" in current:
        current["normalization"] = [NORMS.get(word.lower(), word) for word in current["normalization"]]
    return current


def _without_a_directory(ledger: Ledger) -> None:
    """Drop options that need a directory if none is known. Often only the shell knows the name of the directory."""
    if not ledger.get("save"):
        _take_back(ledger, "async_save", "nothing is saved without a directory: add it with --save")
    if not (ledger.get("save") or ledger.get("tensorboard_dir")):
        _take_back(ledger, "profile", "a profile needs a directory: --save or --tensorboard-dir")


def _take_back(ledger: Ledger, option: str, reason: str) -> None:
    ledger.drop_value(option, ledger.get(option), reason, Effect.NONE)
    ledger.withdraw(option)


def _contradictions(ledger: Ledger) -> None:
    if ledger.has("recompute_activations"):
        ledger.drop("recompute_granularity", "beside --recompute-activations Megatron-LM quietly takes selective")
        ledger.drop("recompute_method", "for full recomputation, which --recompute-activations excludes")
        ledger.drop("recompute_num_layers", "for full recomputation, which --recompute-activations excludes")
    if ledger.peek("num_experts") in (None, ["1"]):
        for key in ledger.remaining_keys():
            if (key.startswith("moe_") and key != "moe_use_upcycling") or key in OF_EXPERTS:
                ledger.drop(key, "the model has no experts")
    if ledger.has("bf16"):
        for key in ("loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis"):
            ledger.drop(key, "gradients in bfloat16 need no scale")
    if not ledger.has("group_query_attention"):
        groups = ledger.take("num_query_groups")
        if groups:
            effect = Effect.NONE if groups == ["1"] else Effect.RESULT
            ledger.drop_value("num_query_groups", " ".join(groups), "without --group-query-attention it has no effect", effect)
    has_tensor = ledger.has("tensor_model_parallel_size")
    tensor = ledger.take("tensor_model_parallel_size")
    if not has_tensor or tensor == ["1"]:
        ledger.drop("sequence_parallel", "with a tensor parallel size of 1 Megatron-LM ignores it")
        if has_tensor:
            ledger.drop_value("tensor_model_parallel_size", 1, "as without it", Effect.NONE)
    elif len(tensor) == 1 and tensor[0].isdigit():
        ledger.set("tensor_model_parallel_size", int(tensor[0]), "tensor_model_parallel_size")
    else:
        ledger.drop_value("tensor_model_parallel_size", tensor, "a number is needed there")


def _skipped_steps(ledger: Ledger) -> None:
    words = ledger.take("iterations_to_skip")
    if words:
        reason = "Megatron-LM counts them from 0 before 0.18, from 1 since: --skip-steps counts from 1"
        ledger.drop_value("iterations_to_skip", " ".join(words), reason, Effect.RUN)


def _carry(ledger: Ledger, key: str) -> None:
    if key in WITHOUT_EFFECT:
        ledger.drop(key, WITHOUT_EFFECT[key])
    if REASONS.get(key):
        ledger.drop(key, REASONS[key])
    option = options().get(key)
    if option is None or option.name in ("data", "config", "dry_run", *EARLIER) or not ledger.has(key):
        return
    words = ledger.take(key)
    if option.is_flag:
        ledger.set(key, True, key)
        return
    if key == "recompute_modules":
        carry_recompute_modules(ledger, key, words)
        return
    if key == "window_size" and _one_word(key, words).replace(" ", "") == EVERYTHING:
        ledger.drop_value(key, " ".join(words), SEES_EVERYTHING, Effect.NONE)
        return
    try:
        if option.multiple or option.nargs != 1:
            ledger.set(key, accepted(option, words), key)
        else:
            ledger.set(key, accepted(option, _one_word(key, words)), key)
    except (click.BadParameter, ValueError):
        row = loss_of_flag(key, words)
        ledger.drop_value(key, " ".join(words), f"lt-train takes {expected(option)} there", row.effect)


def _one_word(key: str, words: Sequence[str]) -> str:
    """Join the words of a list option into lt-train's form. Raises ValueError for several words of another option."""
    if key == "moe_layer_freq":
        return "".join(words)
    if key == "window_size":
        return " ".join(words).replace(", ", ",").strip("()")
    if key == "profile_ranks":
        return ",".join(words)
    (word,) = words
    return word


def _optimizer(ledger: Ledger) -> None:
    if ledger.peek("lr_decay_style") == ["WSD"] and not (ledger.has("lr_wsd_decay_iters") or ledger.has("lr_wsd_decay_samples")):
        ledger.drop("lr_decay_style", "without --lr-wsd-decay-iters Megatron-LM has no WSD, and stops", Effect.RUN)
    name = " ".join(ledger.peek("optimizer") or ["adam"])
    if name in muon.NAMES:
        ledger.drop("use_distributed_optimizer", "Muon needs whole matrices")
    muon.translate(ledger, "", name, ledger.get("tensor_model_parallel_size") or 1, MUON_DEFAULTS)


def _defaults(ledger: Ledger) -> None:
    for option, value in DEFAULTS.items():
        ledger.default(option, value)
    if not any(ledger.get(f"lr_warmup_{unit}") is not None for unit in ("iters", "samples", "fraction")):
        ledger.default("lr_warmup_iters", 0)
    if ledger.get("data_path"):
        ledger.default("split", "969,30,1")
