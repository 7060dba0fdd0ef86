"""The tokenizer that a Megatron script names: lt-train needs none, and makes sure that it is the one of the data.

A run on the data of another tokenizer would train on wrong tokens without a sign of it.
"""

from collections.abc import Sequence
from typing import Any

import click

from lt_shared.console import BadConfig, NoInput, note
from lt_shared.contracts.manifest import Dataset, Tokenizer
from lt_shared.tokenizers import tokenizer_files
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

NULL = "NullTokenizer"
# By Megatron's names, the kinds that it reads with them.
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
    """Raises BadConfig when the options name another tokenizer than that of the data, NoInput for files that are not there."""
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
    """As far as the data's own tokenizer can still be seen."""
    try:
        kind = tokenizer_files.find(tokenizer.path).kind if tokenizer and tokenizer.path else None
    except NoInput:
        return
    if kind is not None and tokenizer is not None and kind not in KINDS[stated]:
        raise BadConfig(f"--tokenizer-type {stated}, but the data's {tokenizer.name} is a {kind} tokenizer", "drop the option")
