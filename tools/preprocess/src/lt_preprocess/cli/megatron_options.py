"""The flags of Megatron-LM's preprocess_data.py and NeMo's preprocess_data_for_megatron.py: their command lines keep working.

Flags that say what ours say are translated. Flags that choose how those scripts work have no effect here and say so. Flags that
would change the result in a way that is not offered here do not exist, so that they are refused.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lt_shared import console

if TYPE_CHECKING:
    from lt_shared.tokenizer_files import TokenizerFiles

Function = TypeVar("Function", bound=Callable[..., Any])

# Of those that list more than one value after the flag, with the name of the option here.
LISTS = ("--json-keys", "--workers-to-check")

GPT2_TYPES = ("GPT2BPETokenizer",)
MODEL_TYPES = (
    "Llama2Tokenizer",
    "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
    "HuggingFaceTokenizer",
    "TikTokenizer",
)
WITHOUT_EFFECT = {
    "partitions": "the input is read once, by all workers",
    "log_interval": "progress is shown by time",
    "keep_sequential_samples": "the output is always in the order of the input",
    "find_optimal_num_workers": "the default, all cores, is the fastest",
    "workers_to_check": "the default, all cores, is the fastest",
    "max_documents": "it belongs to --find-optimal-num-workers",
    "need_pad_id": "no token id depends on it",
    "keep_newlines": "it belongs to --split-sentences; line breaks are always kept",
}


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
            click.option("--partitions", cls=MegatronOption, type=int, hidden=True, help="No effect."),
            click.option("--log-interval", cls=MegatronOption, type=int, hidden=True, help="No effect."),
            click.option("--keep-sequential-samples", cls=MegatronOption, is_flag=True, hidden=True, help="No effect."),
            click.option("--keep-newlines", cls=MegatronOption, is_flag=True, hidden=True, help="No effect."),
            click.option("--need-pad-id", cls=MegatronOption, is_flag=True, hidden=True, help="No effect."),
            click.option("--find-optimal-num-workers", cls=MegatronOption, is_flag=True, hidden=True, help="No effect."),
            click.option("--workers-to-check", cls=MegatronOption, multiple=True, type=int, hidden=True, help="No effect."),
            click.option("--max-documents", cls=MegatronOption, type=int, hidden=True, help="No effect."),
        )
    ):
        function = option(function)
    return function


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


def note_those_without_effect(given: dict[str, Any]) -> None:
    """Tell the user of every flag that does nothing here, and why."""
    for name, reason in WITHOUT_EFFECT.items():
        if given[name]:
            console.note(f"--{name.replace('_', '-')} has no effect: {reason}")


def find_tokenizer(tokenizer: str | None, given: dict[str, Any]) -> "tuple[TokenizerFiles, str]":
    """The tokenizer that --tokenizer or Megatron's options name, and how the user called it.

    Raises: UsageError when none is named, or several, or a type that is not known; NoInput when its files are missing.
    """
    from lt_shared import tokenizer_files

    names = ("tokenizer_type", "tokenizer_model", "vocab_file", "merge_file", "tokenizer_library")
    used = [f"--{name.replace('_', '-')}" for name in names if given[name]]
    if tokenizer is not None:
        if used:
            raise console.UsageError(f"--tokenizer and {used[0]} both name a tokenizer", "--tokenizer alone is enough")
        return tokenizer_files.find(tokenizer), tokenizer
    if not used:
        raise console.UsageError("no tokenizer is named", "--tokenizer PATH; Megatron's options work too, see --help")
    if given["tokenizer_model"] and (given["vocab_file"] or given["merge_file"]):
        raise console.UsageError("--tokenizer-model and --vocab-file both name a tokenizer")
    kind, library = given["tokenizer_type"], given["tokenizer_library"]
    if kind in GPT2_TYPES or (kind is None and given["vocab_file"]):
        for name in ("vocab_file", "merge_file"):
            if not given[name]:
                raise console.UsageError(f"a GPT-2 tokenizer needs --{name.replace('_', '-')}")
        return _gpt2_files(Path(given["vocab_file"]), Path(given["merge_file"])), given["vocab_file"]
    if library == "huggingface" and kind is not None and kind not in MODEL_TYPES:
        return tokenizer_files.find(kind), kind
    if kind is not None and kind not in MODEL_TYPES:
        raise console.UsageError(
            f"--tokenizer-type {kind} is not known", f"one of {', '.join((*GPT2_TYPES, *MODEL_TYPES))}, or --tokenizer PATH"
        )
    if not given["tokenizer_model"]:
        raise console.UsageError(f"{'the tokenizer' if kind is None else kind} needs --tokenizer-model")
    return tokenizer_files.find(given["tokenizer_model"]), given["tokenizer_model"]


def _gpt2_files(vocabulary: Path, merges: Path) -> "TokenizerFiles":
    """The two files may have any names and lie in any directories."""
    from lt_shared import tokenizer_files

    for path in (vocabulary, merges):
        if not path.is_file():
            raise console.NoInput(f"{path}: no such file")
    companions = tuple(found for name in tokenizer_files.COMPANIONS if (found := vocabulary.parent / name).is_file())
    return tokenizer_files.TokenizerFiles("gpt2", (vocabulary, merges), companions)
