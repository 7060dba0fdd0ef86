"""The command line of Megatron-LM's pretrain_gpt.py: most of its options have the same name here.

Where nothing is given, the two differ: Megatron drops out a tenth of the activations, decays linearly to zero and takes another
beta2. These defaults are carried over too, since the same command should train the same model.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import click

from lt_shared.console import BadData
from lt_train.config.settings.layers import WITHOUT_EFFECT
from lt_train.importers.ledger import Ledger, Translation, accepted, expected, options
from lt_train.importers.shell_script import commands, needs_shell

SOURCE = "Megatron-LM"
# What stands behind an option of a launcher that has no value.
PROGRAM = re.compile(r"(.*/)?(python[\d.]*|torchrun|(ba)?sh|env|srun|mpirun|numactl|nsys|deepspeed|accelerate)")
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
    "wandb_key": "wandb reads it from WANDB_API_KEY",
}
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


def translate(words: Sequence[str]) -> Translation:
    """`words` are a command line. Raises BadData when it is not one of pretrain_gpt.py."""
    script = next((index for index, word in enumerate(words) if _is_script(word)), None)
    if script is None:
        raise BadData("no pretrain_gpt.py in the command line", "pass the whole command: -- torchrun ... pretrain_gpt.py ...")
    values = _parse(words[script + 1 :])
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
    _defaults(ledger)
    return ledger.close("lt-train has no such option")


def command_in(text: str) -> list[str]:
    """The words of the command that starts pretrain_gpt.py in a shell script. Raises BadData without one."""
    try:
        for words in commands(text):
            if any(map(_is_script, words)) and words[0] not in ("echo", "printf"):
                return words
    except ValueError as error:
        raise BadData(f"not a command line: {error}") from None
    raise BadData("no command with pretrain_gpt.py in the script", "pass it: lt-train import -- torchrun ... pretrain_gpt.py ...")


def _is_script(word: str) -> bool:
    return word.endswith(".py") and "pretrain" in word


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
    for word in words:
        if word.startswith("--"):
            name, is_assigned, value = word[2:].partition("=")
            option = name.replace("-", "_")
            values[option] = [value] if is_assigned else []
        elif option is None or (needs_shell(word) and (values[option] or _takes_no_value(option))):
            values[word] = [word]
        else:
            values[option].append(word)
    return values


def _takes_no_value(option: str) -> bool:
    found = options().get(option)
    return found is not None and found.is_flag


def _contradictions(ledger: Ledger) -> None:
    if ledger.has("recompute_activations"):
        ledger.drop("recompute_granularity", "beside --recompute-activations Megatron-LM quietly takes selective")
        ledger.drop("recompute_method", "for full recomputation, which --recompute-activations excludes")
        ledger.drop("recompute_num_layers", "for full recomputation, which --recompute-activations excludes")
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
