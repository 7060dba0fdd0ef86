"""Compare the tokenizer that a Megatron script names with the data's. lt-train itself needs no tokenizer.

With the data of a different tokenizer, a run would train on wrong tokens, and nothing would show it.
"""

from collections.abc import Sequence
from typing import Any

import click

from lt_shared.console import BadConfig, NoInput, note
from lt_shared.contracts.manifest import Dataset, Tokenizer
from lt_shared.tokenizers import tokenizer_files
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

NULL = "NullTokenizer"
# The kinds of tokenizer files that Megatron reads for each of its type names.
KINDS = {
    "GPT2BPETokenizer": ("gpt2",),
    "SentencePieceTokenizer": ("sentencepiece",),
    "GPTSentencePieceTokenizer": ("sentencepiece",),
    "Llama2Tokenizer": ("sentencepiece",),
    "Llama3Tokenizer": ("tiktoken",),
    "TikTokenizer": ("tiktoken", "tekken"),
    "MistralTokenizer": ("sentencepiece", "tekken"),
    "HuggingFaceTokenizer": ("tokenizer.json", "gpt2", "sentencepiece", "tiktoken", "tekken"),
    NULL: (),
}
OPTIONS = (
    click.option(
        "--tokenizer-type",
        type=click.Choice(list(KINDS)),
        help="Compare this type of tokenizer, named as in Megatron, with the data's.",
    ),
    click.option("--tokenizer-model", metavar="FILE", help="Compare this tokenizer, as in Megatron, with the data's."),
    click.option("--vocab-file", metavar="FILE", help="Compare this GPT-2 vocabulary with the data's."),
    click.option("--merge-file", metavar="FILE", help="Compare this file of GPT-2 merges with the data's."),
)


def check(options: dict[str, Any], datasets: Sequence[Dataset]) -> None:
    """Raise BadConfig if the options name a different tokenizer than the data's, NoInput if a file is missing."""
    kinds = KINDS[options["tokenizer_type"]] if options["tokenizer_type"] else None
    named = [options[name] for name in ("tokenizer_model", "vocab_file", "merge_file") if options[name]]
    for path in named:
        files = tokenizer_files.find(path)
        if kinds is not None and files.kind not in kinds:
            raise BadConfig(f"{path}: a {files.kind} tokenizer, which is no {options['tokenizer_type']}", "drop --tokenizer-type")
        for dataset in datasets:
            _compare(path, files, dataset)
    if kinds is not None and not named:
        for dataset in datasets:
            _compare_kind(options["tokenizer_type"], dataset.tokenizer)


def _compare(path: str, files: TokenizerFiles, dataset: Dataset) -> None:
    if dataset.tokenizer is None:
        note(f"{dataset.prefix}: it is not known whether its tokenizer is {path}")
    elif tokenizer_files.find_made_with(path, dataset.tokenizer.sha256).sha256() != dataset.tokenizer.sha256:
        raise BadConfig(
            f"{dataset.prefix}: its tokenizer is {dataset.tokenizer.name}, and not {path}",
            "name that one, or tokenize again with lt-preprocess --tokenizer",
        )


def _compare_kind(stated: str, tokenizer: Tokenizer | None) -> None:
    """Compare the type, if the files of the data's tokenizer still exist."""
    try:
        kind = tokenizer_files.find(tokenizer.path).kind if tokenizer and tokenizer.path else None
    except NoInput:
        return
    if kind is not None and tokenizer is not None and kind not in KINDS[stated]:
        raise BadConfig(f"--tokenizer-type {stated}, but the data's {tokenizer.name} is a {kind} tokenizer", "drop the option")
