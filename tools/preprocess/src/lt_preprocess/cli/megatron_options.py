"""The flags of Megatron-LM's preprocess_data.py and NeMo's preprocess_data_for_megatron.py: their command lines keep working.

Flags with a counterpart are translated. Flags that choose how those scripts work, and flags for another kind of tokenizer, have
no effect, and a message says so. Flags that would change the result in a way that lt-preprocess does not offer are refused by
name.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lt_shared import console

if TYPE_CHECKING:
    from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

Function = TypeVar("Function", bound=Callable[..., Any])

# Of those that list more than one value after the flag, with the name of the option here.
LISTS = ("--json-keys", "--workers-to-check", "--tokenizer-special-tokens", "--tiktoken-special-tokens")

GPT2_TYPES = ("GPT2BPETokenizer",)
MODEL_TYPES = (
    "Llama2Tokenizer",
    "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
    "HuggingFaceTokenizer",
    "TikTokenizer",
)
OTHER_TYPES = {
    **dict.fromkeys(
        ("BertWordPieceLowerCase", "BertWordPieceCase"),
        ("a list of word pieces alone is not read", "--tokenizer PATH names a tokenizer.json with the same vocabulary"),
    ),
    **dict.fromkeys(
        ("NullTokenizer", "NullMultimodalTokenizer"),
        ("it takes numbers for text", "lt-preprocess import makes datasets of token ids"),
    ),
    **dict.fromkeys(
        ("SFTTokenizer", "MultimodalTokenizer"),
        ("it encodes conversations, not documents", "--tokenizer PATH names the tokenizer for documents"),
    ),
}
"""Types of Megatron-LM that are refused: why, and what to do instead."""

WITHOUT_EFFECT = {
    "partitions": "the input is read once, by all workers, and documents stay in its order",
    "log_interval": "progress is shown by time",
    "keep_sequential_samples": "the output is always in the order of the input",
    "find_optimal_num_workers": "the default, all cores, is the fastest",
    "workers_to_check": "the default, all cores, is the fastest",
    "max_documents": "it belongs to --find-optimal-num-workers; --limit-documents takes a sample",
    "need_pad_id": "no token id depends on it",
    "keep_newlines": "it belongs to --split-sentences; line breaks are always kept",
    "lang": "it belongs to --split-sentences",
    "vocab_size": "the tokenizer's files have all its entries",
    "padded_vocab_size": "no token id depends on it: the model pads its vocabulary",
    "pad_vocab_size": "no token id depends on it: the model pads its vocabulary",
    "make_vocab_size_divisible_by": "no token id depends on it: the model pads its vocabulary",
    "vocab_extra_ids": "preprocess_data.py sets it to 0",
    "legacy_tokenizer": "it chooses how Megatron-LM calls the same tokenizers",
    "use_gigatoken": "it chooses how Megatron-LM calls the same tokenizers",
    "trust_remote_code": "no code of a tokenizer is run",
    "tokenizer_hf_use_fast": "the ids are always those of the fast tokenizer",
    "tokenizer_hf_no_include_special_tokens": "nothing but --append-eod adds special tokens",
    "tokenizer_sentencepiece_ignore_extra_whitespaces": "the model says what becomes of white space",
    "tokenizer_prompt_format": "it belongs to conversations",
    "sft_tokenizer_prompt_format": "it belongs to conversations",
    "null_tokenizer_eod_id": "it belongs to NullTokenizer",
    "null_tokenizer_pad_id": "it belongs to NullTokenizer",
}
_NUMBERS = (
    *("partitions", "log_interval", "max_documents", "vocab_size", "padded_vocab_size", "make_vocab_size_divisible_by"),
    *("vocab_extra_ids", "null_tokenizer_eod_id", "null_tokenizer_pad_id"),
)
_TEXTS = ("lang", "tokenizer_prompt_format", "sft_tokenizer_prompt_format")
REFUSED = {
    "split_sentences": (
        "sentences are not split here",
        "tokenize whole documents, as GPT models are trained, or put a list of sentences under the key: each becomes a sequence",
    ),
    "tokenizer_metadata": ("the metadata of Megatron-LM are not read", "--tokenizer PATH names the tokenizer's files"),
    "tokenizer_special_tokens": ("tokens are not added here", "add them to the tokenizer's files"),
    "no_tokenizer_sentencepiece_ignore_extra_whitespaces": (
        "the model says what becomes of white space",
        "leave the option out",
    ),
}
"""Options that would change the result: why each is refused, and what to do instead."""

REFUSED_FOR_TYPE = {
    "tiktoken_pattern": (("TikTokenizer",), "the tokenizer's file says how text is cut", "leave the option out"),
    "tiktoken_num_special_tokens": (("TikTokenizer",), "the tokenizer's file has its special tokens", "leave the option out"),
    "tiktoken_special_tokens": (("TikTokenizer",), "the tokenizer's file has its special tokens", "leave the option out"),
    "tokenizer_sentencepiece_legacy": (
        ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer"),
        "special tokens in text stay text by default",
        "--special-tokens parse",
    ),
    "tokenizer_hf_include_special_tokens": (
        ("HuggingFaceTokenizer",),
        "the tokens that a tokenizer puts around texts are not added",
        "--prepend-bos begins every document with BOS",
    ),
    "tokenizer_hf_no_use_fast": (
        ("HuggingFaceTokenizer",),
        "tokenizers written in Python are not run",
        "leave the option out",
    ),
}
"""As `REFUSED`, but only with the types that read the option; with another type it has no effect."""

_REFUSED_FLAGS = (
    *("split_sentences", "no_tokenizer_sentencepiece_ignore_extra_whitespaces"),
    *("tokenizer_sentencepiece_legacy", "tokenizer_hf_no_use_fast", "tokenizer_hf_include_special_tokens"),
)


class MegatronOption(click.Option):
    """Shown in a section of its own."""

    section = "Options of Megatron-LM and NeMo"


def megatron_options(function: Function) -> Function:
    """Add the options to a command; they arrive in its keyword arguments."""
    for option in reversed(
        (
            click.option("--input", cls=MegatronOption, multiple=True, metavar="FILE", help="As FILE."),
            click.option(
                "--tokenizer-type",
                cls=MegatronOption,
                metavar="TYPE",
                help="GPT2BPETokenizer (--vocab-file, --merge-file), "
                + ", ".join(MODEL_TYPES)
                + " (--tokenizer-model); with --tokenizer-library=huggingface a path or name, as --tokenizer.",
            ),
            click.option("--tokenizer-model", cls=MegatronOption, metavar="PATH", help="As --tokenizer."),
            click.option("--vocab-file", cls=MegatronOption, metavar="PATH", help="vocab.json of a GPT-2 tokenizer."),
            click.option("--merge-file", cls=MegatronOption, metavar="PATH", help="merges.txt of a GPT-2 tokenizer."),
            click.option(
                "--tokenizer-library",
                cls=MegatronOption,
                type=click.Choice(["huggingface", "megatron", "sentencepiece"]),
                help="NeMo's way to say what --tokenizer-type means.",
            ),
            click.option(
                "--dataset-impl",
                cls=MegatronOption,
                type=click.Choice(["mmap"]),
                help="NeMo's other formats are not written.",
            ),
            click.option("--workers-to-check", cls=MegatronOption, multiple=True, type=int, hidden=True, help="No effect."),
            *map(_without_effect, (name for name in WITHOUT_EFFECT if name != "workers_to_check")),
            *map(_refused, (*REFUSED, *REFUSED_FOR_TYPE)),
        )
    ):
        function = option(function)
    return function


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _without_effect(name: str) -> Callable[[Function], Function]:
    """A hidden option that is taken and changes nothing."""
    options: dict[str, Any] = {"cls": MegatronOption, "hidden": True, "default": None, "help": "No effect."}
    if name == "pad_vocab_size":
        return click.option("--pad-vocab-size/--no-pad-vocab-size", " /--disable-pad-vocab-size", **options)
    if name in _NUMBERS or name in _TEXTS:
        return click.option(_flag(name), type=int if name in _NUMBERS else str, **options)
    return click.option(_flag(name), is_flag=True, **options)


def _refused(name: str) -> Callable[[Function], Function]:
    """A hidden option that `check_refused` looks at."""
    options: dict[str, Any] = {"cls": MegatronOption, "hidden": True, "help": "Refused."}
    if name in _REFUSED_FLAGS:
        # Megatron-LM's parser gives an option that is on by default both names.
        names = [_flag(name), _flag(name).replace("--no-", "--disable-", 1)] if name.startswith("no_") else [_flag(name)]
        return click.option(*names, name, is_flag=True, **options)
    return click.option(_flag(name), multiple=_flag(name) in LISTS, **options)


def check_refused(options: dict[str, Any]) -> None:
    """Raise UsageError for an option that would change the result in a way that is not offered here."""
    for name, (reason, remedy) in REFUSED.items():
        if options[name]:
            raise console.UsageError(f"{_flag(name)}: {reason}", remedy)
    for name, (types, reason, remedy) in REFUSED_FOR_TYPE.items():
        if options[name] and options["tokenizer_type"] in types:
            raise console.UsageError(f"{_flag(name)}: {reason}", remedy)


def check_files(options: dict[str, Any], files: "TokenizerFiles", vocab_size: int) -> None:
    """Raise UsageError for an option that would give other ids with these files.

    The code that --trust-remote-code allows may be the tokenizer; --vocab-size cuts the vocabulary of a TikTokenizer.
    """
    if options["trust_remote_code"] and options["tokenizer_type"] == "HuggingFaceTokenizer":
        for path in files.companions:
            if path.name == "tokenizer_config.json" and "auto_map" in json.loads(path.read_bytes()):
                raise console.UsageError(
                    f"--trust-remote-code: {path} names code of its own (auto_map), and no code of a tokenizer is run",
                    "leave the option out: the ids are then those of the tokenizer's files",
                )
    if options["tokenizer_type"] == "TikTokenizer" and options["vocab_size"] not in (None, vocab_size):
        raise console.UsageError(
            f"--vocab-size {options['vocab_size']}: the tokenizer has {vocab_size:,} entries, and none is left out",
            "leave the option out",
        )


def with_lists_repeated(arguments: Sequence[str]) -> list[str]:
    """`--json-keys a b` as `--json-keys a --json-keys b`, as Megatron's parser reads it.

    Only where --input names the files: `--json-keys text corpus.jsonl` without it means one key and one file.
    """
    if not any(argument == "--input" or argument.startswith("--input=") for argument in arguments):
        return list(arguments)
    result: list[str] = []
    repeated = None
    for argument in arguments:
        if argument.startswith("-"):
            repeated = argument if argument in LISTS else None
            if repeated is None:
                result.append(argument)
        elif repeated is None:
            result.append(argument)
        else:
            result += [repeated, argument]
    return result


def note_those_without_effect(options: dict[str, Any]) -> None:
    """Tell the user of every flag that does nothing here, and why."""
    for name, reason in WITHOUT_EFFECT.items():
        if options[name] not in (None, ()):
            console.note(f"{_flag(name)} has no effect: {reason}")
    for name, (types, _, _) in REFUSED_FOR_TYPE.items():
        if options[name]:
            console.note(f"{_flag(name)} has no effect: it belongs to {' and '.join(types)}")


def find_tokenizer(tokenizer: str | None, options: dict[str, Any]) -> "tuple[TokenizerFiles, str]":
    """The tokenizer that --tokenizer or Megatron's options name, and how the user called it.

    Raises: UsageError when none is named, or several, or a type that is not known; NoInput when its files are missing.
    """
    from lt_shared.tokenizers import tokenizer_files

    names = ("tokenizer_type", "tokenizer_model", "vocab_file", "merge_file", "tokenizer_library")
    used = [_flag(name) for name in names if options[name]]
    if tokenizer is not None:
        if used:
            raise console.UsageError(f"--tokenizer and {used[0]} both name a tokenizer", "--tokenizer alone is enough")
        return tokenizer_files.find(tokenizer), tokenizer
    if not used:
        raise console.UsageError("no tokenizer is named", "--tokenizer PATH; Megatron's options work too, see --help")
    if options["tokenizer_model"] and (options["vocab_file"] or options["merge_file"]):
        raise console.UsageError("--tokenizer-model and --vocab-file both name a tokenizer")
    kind, library = options["tokenizer_type"], options["tokenizer_library"]
    if kind in GPT2_TYPES or (kind is None and options["vocab_file"]):
        for name in ("vocab_file", "merge_file"):
            if not options[name]:
                raise console.UsageError(f"a GPT-2 tokenizer needs {_flag(name)}")
        return _gpt2_files(Path(options["vocab_file"]), Path(options["merge_file"])), options["vocab_file"]
    if library == "huggingface" and kind is not None and kind not in MODEL_TYPES:
        return tokenizer_files.find(kind), kind
    if kind in OTHER_TYPES:
        reason, remedy = OTHER_TYPES[kind]
        raise console.UsageError(f"--tokenizer-type {kind}: {reason}", remedy)
    if kind is not None and kind not in MODEL_TYPES:
        raise console.UsageError(
            f"--tokenizer-type {kind} is not known", f"one of {', '.join((*GPT2_TYPES, *MODEL_TYPES))}, or --tokenizer PATH"
        )
    if not options["tokenizer_model"]:
        raise console.UsageError(f"{'the tokenizer' if kind is None else kind} needs --tokenizer-model")
    return tokenizer_files.find(options["tokenizer_model"]), options["tokenizer_model"]


def _gpt2_files(vocabulary: Path, merges: Path) -> "TokenizerFiles":
    """The two files may have any names and lie in any directories."""
    from lt_shared.tokenizers import tokenizer_files

    for path in (vocabulary, merges):
        if not path.is_file():
            raise console.NoInput(f"{path}: no such file")
    companions = tuple(companion for name in tokenizer_files.COMPANIONS if (companion := vocabulary.parent / name).is_file())
    return tokenizer_files.TokenizerFiles("gpt2", (vocabulary, merges), companions)
