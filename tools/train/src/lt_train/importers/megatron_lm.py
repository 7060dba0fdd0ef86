"""The command line of Megatron-LM's pretrain_gpt.py: most of its options have the same name here.

Where nothing is given, the two differ: Megatron drops out a tenth of the activations, decays linearly to zero and takes another
beta2. These defaults are carried over too, since the same command should train the same model.
"""

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click

from lt_shared.console import BadData
from lt_train.config.settings.layers import WITHOUT_EFFECT
from lt_train.importers.effects import Effect, effect_of
from lt_train.importers.layer_style import ZERO_CENTERED, complete
from lt_train.importers.ledger import Ledger, Translation, accepted, expected, options
from lt_train.importers.shell_script import ShellCommand, commands, needs_shell, variables_in

SOURCE = "Megatron-LM"
# What stands behind an option of a launcher that has no value.
PROGRAM = re.compile(r"(.*/)?(python[\d.]*|torchrun|(ba)?sh|env|srun|mpirun|numactl|nsys|deepspeed|accelerate)")
PROGRAM_OF_GPT = re.compile(r"(^|/)pretrain_(gpt|llama)\w*\.py$")
OTHER_PROGRAM = re.compile(r"(^|/)\w*(pretrain|finetune|train)\w*\.py$")
OF_NEMO = "import the YAML that its --config-name names, with --set KEY=VALUE for what the command line overrides"
TOKENIZER = "the tokenizer belongs to the data: lt-preprocess --tokenizer"
OF_SHELL = "it needs the shell: pass the command line with its value"
LAUNCHER = "the launcher's: lt-train reads the rank from the environment, or --ranks"
REASONS = {
    "tokenizer_type": TOKENIZER,
    "tokenizer_model": TOKENIZER,
    "vocab_file": TOKENIZER,
    "merge_file": TOKENIZER,
    "make_vocab_size_divisible_by": "the vocabulary is padded to 128 x tensor parallel size, as Megatron's default",
    "distributed_backend": "it follows from --device",
    "use_checkpoint_args": "lt-train compares the model with the checkpoint's, and takes what the command line says",
    "ckpt_format": "checkpoints are torch_dist in any case",
    "use_dist_ckpt": "checkpoints are torch_dist in any case",
    "auto_detect_ckpt_format": "checkpoints are torch_dist in any case",
    "dist_ckpt_format": "checkpoints are torch_dist in any case",
    "sequence_parallel_size": "sequence parallelism has the tensor parallel size",
    "no_async_tensor_parallel_allreduce": "it changes no result",
    "no_gradient_accumulation_fusion": "it changes no result",
    "no_bias_gelu_fusion": "GELU is Megatron's fused one",
    "no_bias_swiglu_fusion": "it changes no result",
    "no_bias_dropout_fusion": "it changes no result",
    "attention_softmax_in_fp32": "attention sums in float32 in any case",
    "no_create_attention_mask_in_dataloader": "lt-train makes no mask there",
    "manual_gc": "Python's collector runs as usual",
    "log_params_norm": "lt-train has no such number",
    "log_num_zeros_in_grad": "lt-train has no such number",
    "log_progress": "the log has it",
    "apply_layernorm_1p": ZERO_CENTERED,
    "layernorm_zero_centered_gamma": ZERO_CENTERED,
    "wandb_key": "wandb reads it from WANDB_API_KEY",
}
RENAMED = {
    "num_key_value_heads": "num_query_groups",
    "rotary_position_embeddings_theta": "rotary_base",
    "rope_theta": "rotary_base",
}
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


def translate(words: Sequence[str], conditional: Mapping[str, Sequence[str]] = MappingProxyType({})) -> Translation:
    """`words` are a command line. Raises BadData when it is not one of pretrain_gpt.py.

    `conditional` are variables of its script whose value depends on a condition, with the words that an array may have.
    """
    script = next((index for index, word in enumerate(words) if _is_script(word)), None)
    if script is None:
        raise BadData("no pretrain_gpt.py in the command line", "pass the whole command: -- torchrun ... pretrain_gpt.py ...")
    values = _as_megatrons(_parse(words[script + 1 :]))
    of_shell = {key: words for key, words in values.items() if any(map(needs_shell, words))}
    launcher = _launcher(words[:script])
    ledger = Ledger(SOURCE, values | launcher)
    for key in launcher:
        ledger.drop(key, LAUNCHER)
    for key, value in of_shell.items():
        if REASONS.get(key):
            ledger.drop(key, REASONS[key])
        ledger.drop(key, OF_SHELL if value != [key] else f"{OF_SHELL}, or the options that it holds")
    _contradictions(ledger)
    for key in values:
        _carry(ledger, key)
    _without_a_directory(ledger)
    _defaults(ledger)
    complete(ledger, "disable_bias_linear")
    return ledger.close("lt-train has no such option", _asked_for(of_shell, conditional))


def command_in(text: str, given: Mapping[str, str] | None = None) -> ShellCommand:
    """The command that starts pretrain_gpt.py in a shell script. Raises BadData without one."""
    other: str | None = None
    try:
        for command in commands(text, given):
            if command.words[:1] and command.words[0] not in ("echo", "printf"):
                if any(map(_is_script, command.words)):
                    return command
                other = other or next(filter(OTHER_PROGRAM.search, command.words), None)
    except ValueError as error:
        raise BadData(f"not a command line: {error}") from None
    if other:
        name = other.rpartition("/")[2]
        hint = OF_NEMO if name.startswith("megatron_") else "pass the command line of pretrain_gpt.py, or a configuration file"
        raise BadData(f"the script starts {name}, and lt-train imports pretrain_gpt.py", hint)
    raise BadData("no command with pretrain_gpt.py in the script", "pass it: lt-train import -- torchrun ... pretrain_gpt.py ...")


def _asked_for(of_shell: Mapping[str, Sequence[str]], conditional: Mapping[str, Sequence[str]]) -> list[str]:
    """The variables without which the run would be another one: those of numbers, and of options that a condition chooses."""
    found: dict[str, None] = {}
    for key, words in of_shell.items():
        option = options().get(key)
        is_number = option is not None and isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
        for name in (name for word in words for name in variables_in(word)):
            chosen = _parse(conditional.get(name, ())) if words == [key] else {}
            if is_number or any(_changes_training(option_name, value) for option_name, value in chosen.items()):
                found[name] = None
    return list(found)


def _changes_training(key: str, value: Any) -> bool:
    return key not in REASONS and key not in WITHOUT_EFFECT and effect_of(key, value) in (Effect.MODEL, Effect.RESULT)


def _is_script(word: str) -> bool:
    return PROGRAM_OF_GPT.search(word) is not None


def _launcher(words: Sequence[str]) -> dict[str, Any]:
    """The options of srun, torchrun and the like; one without a value is True, one that comes twice has a list.

    Which of them take the next word is guessed: not a program.
    """
    found: dict[str, list[str | bool]] = {}
    for word, following in itertools.zip_longest(words, words[1:], fillvalue="-"):
        if not word.startswith("-"):
            continue
        name, is_assigned, value = word.partition("=")
        is_alone = following.startswith("-") or PROGRAM.fullmatch(following) is not None
        found.setdefault(f"launcher {name}", []).append(value if is_assigned else is_alone or following)
    return {key: values[0] if len(values) == 1 else values for key, values in found.items()}


def _parse(words: Sequence[str]) -> dict[str, Any]:
    """Options with their list of words; a word that needs the shell is one of a single option's, or has a key of its own."""
    values: dict[str, Any] = {}
    option: str | None = None
    for word in itertools.chain.from_iterable(map(_split, words)):
        if word.startswith("--"):
            name, is_assigned, value = word[2:].partition("=")
            option = name.replace("-", "_")
            values[option] = [value] if is_assigned else []
        elif option is None or (needs_shell(word) and (values[option] or _takes_no_value(option))):
            values[word] = [word]
        else:
            values[option].append(word)
    return values


def _split(word: str) -> list[str]:
    """An array may hold an option and its value in one text; unquoted, bash makes two words of it."""
    return shlex.split(word) if word.startswith("--") and " " in word and not needs_shell(word) else [word]


def _takes_no_value(option: str) -> bool:
    found = options().get(option)
    return found is not None and found.is_flag


def _as_megatrons(values: dict[str, Any]) -> dict[str, Any]:
    """Options of Megatron-DeepSpeed, and earlier ones of Megatron-LM, under the names that they have now."""
    found = {RENAMED.get(key, key): value for key, value in values.items()}
    if "use_rotary_position_embeddings" in found:
        del found["use_rotary_position_embeddings"]
        found.setdefault("position_embedding_type", ["rope"])
    if "num_key_value_heads" in values:
        found.setdefault("group_query_attention", [])
    if "normalization" in found:
        found["normalization"] = [NORMS.get(word.lower(), word) for word in found["normalization"]]
    return found


def _without_a_directory(ledger: Ledger) -> None:
    """What lt-train refuses for want of one: the directory's name is often known to the shell alone."""
    if not ledger.get("save"):
        for option in ("exit_duration_in_mins", "exit_interval"):
            _take_back(ledger, option, "a run that ends early needs a directory to resume from: add it with --save")
    if not (ledger.get("save") or ledger.get("tensorboard_dir")):
        _take_back(ledger, "profile", "a profile needs a directory: --save or --tensorboard-dir")


def _take_back(ledger: Ledger, option: str, reason: str) -> None:
    ledger.drop_value(option, ledger.get(option), reason, Effect.NONE)
    ledger.leave_out(option)


def _contradictions(ledger: Ledger) -> None:
    if ledger.has("recompute_activations"):
        ledger.drop("recompute_granularity", "beside --recompute-activations Megatron-LM quietly takes selective")
        ledger.drop("recompute_method", "for full recomputation, which --recompute-activations excludes")
        ledger.drop("recompute_num_layers", "for full recomputation, which --recompute-activations excludes")
    if ledger.peek("num_experts") == ["1"]:
        for key in ("num_experts", "moe_router_topk", "moe_aux_loss_coeff", "expert_model_parallel_size"):
            ledger.drop(key, "the model has no experts")
    if ledger.has("bf16"):
        for key in ("loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis"):
            ledger.drop(key, "gradients in bfloat16 need no scale")
    if not ledger.has("group_query_attention"):
        ledger.drop("num_query_groups", "without --group-query-attention it has no effect")
    is_given = ledger.has("tensor_model_parallel_size")
    tensor = ledger.take("tensor_model_parallel_size")
    if not is_given or tensor == ["1"]:
        ledger.drop("sequence_parallel", "with a tensor parallel size of 1 Megatron-LM ignores it")
    elif len(tensor) == 1 and tensor[0].isdigit():
        ledger.set("tensor_model_parallel_size", int(tensor[0]), "tensor_model_parallel_size")
    else:
        ledger.drop_value("tensor_model_parallel_size", tensor, "a number is needed there")
    save, load = ledger.take("save"), ledger.take("load")
    if save:
        ledger.set("save", save[0], "save")
    if load and load == save:
        ledger.drop_value("load", load[0], "a run continues from its own --save")
    elif load:
        ledger.set("load", load[0], "load")
    if not ledger.get("load"):
        for key in ("no_load_optim", "no_load_rng", "finetune"):
            ledger.drop(key, "it says what to take from --load; a run continues from its own --save with all that is there")


def _carry(ledger: Ledger, key: str) -> None:
    if key in WITHOUT_EFFECT:
        ledger.drop(key, WITHOUT_EFFECT[key])
    if REASONS.get(key):
        ledger.drop(key, REASONS[key])
    option = options().get(key)
    if option is None or option.name in ("data", "config", "dry_run") or not ledger.has(key):
        return
    words = ledger.take(key)
    if option.is_flag:
        ledger.set(key, True, key)
        return
    try:
        if option.multiple or option.nargs != 1:
            ledger.set(key, accepted(option, words), key)
            return
        (word,) = words
        ledger.set(key, accepted(option, word), key)
    except (click.BadParameter, ValueError):
        ledger.drop_value(key, " ".join(words), f"lt-train takes {expected(option)} there")


def _defaults(ledger: Ledger) -> None:
    for option, value in DEFAULTS.items():
        ledger.default(option, value)
    if not any(ledger.get(f"lr_warmup_{unit}") is not None for unit in ("iters", "samples", "fraction")):
        ledger.default("lr_warmup_iters", 0)
    if ledger.get("data_path"):
        ledger.default("split", "969,30,1")
