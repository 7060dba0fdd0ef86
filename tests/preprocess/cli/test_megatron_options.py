"""The command lines of Megatron-LM's and NeMo's scripts, as published guides have them, work after the name is changed."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import ByteLevelBPETokenizer

from lt_preprocess.cli import megatron_options
from lt_preprocess.cli.megatron_options import with_lists_repeated
from lt_preprocess.cli.tokenize import command
from lt_shared.data import indexed_dataset

Run = Callable[..., subprocess.CompletedProcess[str]]
WriteLines = Callable[[Path, list[Any]], Path]

MEGATRON_GPT2_SLURM = """
--input ${DATA_PATH}/oscar-1GB.jsonl
--output-prefix ${DATA_PATH}/my-gpt2
--vocab-file ${DATA_PATH}/gpt2-vocab.json
--tokenizer-type GPT2BPETokenizer
--merge-file ${DATA_PATH}/gpt2-merges.txt
--append-eod
--workers 64
"""
MEGATRON_GPT2_KUBERNETES = """
--input ${DATA_PATH}/oscar-1GB.jsonl
--output-prefix ${DATA_PATH}
--vocab-file ${DATA_PATH}/gpt2-vocab.json
--tokenizer-type GPT2BPETokenizer
--merge-file ${DATA_PATH}/gpt2-merges.txt
--append-eod
--workers 4
"""
MEGATRON_LLAMA2_SLURM = """
--input ${DATA_PATH}/oscar-1GB.jsonl
--output-prefix ${DATA_PATH}/my-llama2
--tokenizer-type Llama2Tokenizer
--tokenizer-model ${DATA_PATH}/tokenizer.model
--append-eod
--workers 64
"""
NEMO_TRAINIUM = """
--input=${DATA_PATH}/oscar-1GB.jsonl
--json-keys=text
--tokenizer-library=huggingface
--tokenizer-type=${DATA_PATH}/llama7b_tokenizer
--dataset-impl=mmap
--output-prefix=${DATA_PATH}/redpajama_sample
--append-eod
--need-pad-id
--workers=32
"""
# The tokenizer that each names and the dataset that it writes.
COMMANDS = {
    "Megatron-LM on Slurm, GPT-2": (MEGATRON_GPT2_SLURM, "gpt2-vocab.json", "my-gpt2"),
    "Megatron-LM on Kubernetes, GPT-2": (MEGATRON_GPT2_KUBERNETES, "gpt2-vocab.json", ""),
    "Megatron-LM on Slurm, Llama 2": (MEGATRON_LLAMA2_SLURM, "tokenizer.model", "my-llama2"),
    "NeMo on Trainium": (NEMO_TRAINIUM, "llama7b_tokenizer", "redpajama_sample"),
}


@pytest.fixture
def data(tmp_path: Path, demo_tokenizer: Path, sentencepiece_model: Path, write_lines: WriteLines) -> Path:
    directory = tmp_path / "gpt2"
    (directory / "llama7b_tokenizer").mkdir(parents=True)
    write_lines(directory / "oscar-1GB.jsonl", [{"id": 1, "text": "some text"}, {"id": 2, "text": "more of it"}])
    shutil.copy(demo_tokenizer / "vocab.json", directory / "gpt2-vocab.json")
    shutil.copy(demo_tokenizer / "merges.txt", directory / "gpt2-merges.txt")
    (directory / "tokenizer.model").symlink_to(sentencepiece_model)
    made = ByteLevelBPETokenizer(str(demo_tokenizer / "vocab.json"), str(demo_tokenizer / "merges.txt"))
    made.save(str(directory / "llama7b_tokenizer/tokenizer.json"))
    return directory


@pytest.mark.parametrize("name", COMMANDS)
def test_published_command_lines(run: Run, data: Path, name: str) -> None:
    command, tokenizer, output = COMMANDS[name]
    done = run(*shlex.split(command.replace("${DATA_PATH}", str(data))))
    assert done.returncode == 0, done.stderr
    prefix = f"{data / output}_text_document" if output else f"{data}_text_document"
    assert json.loads(done.stdout.splitlines()[0])["prefix"] == prefix
    ours = ["--tokenizer", data / tokenizer, "--append-eod", "-o", data / "ours"]
    assert run(data / "oscar-1GB.jsonl", *ours).returncode == 0
    for end in (".bin", ".idx"):
        assert Path(f"{prefix}{end}").read_bytes() == (data / f"ours_text_document{end}").read_bytes()
    notes = [line for line in done.stderr.splitlines() if "has no effect" in line]
    assert notes == (["lt-preprocess: --need-pad-id has no effect: no token id depends on it"] if "NeMo" in name else [])


def test_flags_without_effect_say_so(run: Run, data: Path) -> None:
    flags = "--partitions 4 --log-interval 1000 --keep-sequential-samples --workers-to-check 16 32 --find-optimal-num-workers"
    done = run(*shlex.split(MEGATRON_GPT2_SLURM.replace("${DATA_PATH}", str(data))), *flags.split())
    assert done.returncode == 0
    noted = [line.split()[1] for line in done.stderr.splitlines() if "has no effect" in line]
    assert sorted(noted) == sorted(flag for flag in flags.split() if flag.startswith("--"))


WITHOUT_EFFECT_ON_IDS = [
    *("--lang german", "--vocab-size 2048", "--padded-vocab-size 2304", "--no-pad-vocab-size", "--vocab-extra-ids 0"),
    *("--make-vocab-size-divisible-by 128", "--legacy-tokenizer", "--trust-remote-code", "--use-gigatoken"),
    *("--tokenizer-hf-no-include-special-tokens", "--chat-template x", "--null-tokenizer-eod-id 0", "--max-documents 9"),
    *("--null-tokenizer-pad-id -1", "--tokenizer-sentencepiece-ignore-extra-whitespaces", "--tiktoken-pattern v2"),
    *("--tiktoken-num-special-tokens 1000", "--tokenizer-sentencepiece-legacy", "--tokenizer-hf-no-use-fast"),
    *("--tokenizer-hf-use-fast", "--tokenizer-hf-include-special-tokens", "--tiktoken-special-tokens <s>"),
    *("--partitions 2", "--log-interval 7", "--keep-sequential-samples", "--keep-newlines", "--find-optimal-num-workers"),
    "--workers-to-check 1 2",
]


def test_every_option_of_the_script_that_changes_no_id_is_taken(run: Run, data: Path) -> None:
    flags = " ".join(WITHOUT_EFFECT_ON_IDS).split()
    command = shlex.split(MEGATRON_GPT2_SLURM.replace("${DATA_PATH}", str(data)))
    assert run(*command).returncode == 0
    expected = (data / "my-gpt2_text_document.bin").read_bytes()
    done = run(*command, *flags, "--force")
    assert done.returncode == 0, done.stderr
    assert (data / "my-gpt2_text_document.bin").read_bytes() == expected
    noted = {line.split()[1] for line in done.stderr.splitlines() if "has no effect" in line}
    named = {flag.split()[0].replace("--no-pad", "--pad") for flag in WITHOUT_EFFECT_ON_IDS}
    assert noted == named


def test_vocabulary_and_merges_of_any_name_and_place(run: Run, data: Path) -> None:
    (data / "elsewhere").mkdir()
    (data / "gpt2-vocab.json").rename(data / "v.json")
    (data / "gpt2-merges.txt").rename(data / "elsewhere/m")
    arguments = ["--vocab-file", data / "v.json", "--merge-file", data / "elsewhere/m"]
    done = run("--input", data / "oscar-1GB.jsonl", "--output-prefix", data / "out", *arguments)
    assert done.returncode == 0, done.stderr
    assert indexed_dataset.Reader(f"{data}/out_text_document").documents == 2


def test_several_keys_as_megatron_lists_them(run: Run, data: Path) -> None:
    lines = data / "two.jsonl"
    lines.write_text('{"text": "a", "title": "b"}\n')
    tokenizer = ["--vocab-file", data / "gpt2-vocab.json", "--merge-file", data / "gpt2-merges.txt"]
    done = run("--input", lines, "--json-keys", "text", "title", "--output-prefix", data / "two", *tokenizer, "--plain")
    assert done.stdout.splitlines() == [f"{data}/two_text_document", f"{data}/two_title_document"]


def test_lists_end_at_the_next_flag_and_need_input() -> None:
    def repeated(line: str) -> str:
        return " ".join(with_lists_repeated(line.split()))

    assert repeated("--json-keys a b --input f -o x") == "--json-keys a --json-keys b --input f -o x"
    assert repeated("--input=f --json-keys a") == "--input=f --json-keys a"
    assert repeated("--input f --json-keys=a --append-eod") == "--input f --json-keys=a --append-eod"
    assert repeated("--json-keys a corpus.jsonl -o x") == "--json-keys a corpus.jsonl -o x"


REFUSED = {
    "sentences": (["--split-sentences"], "--split-sentences: sentences are not split"),
    "metadata": (["--tokenizer-metadata", "m.json"], "--tokenizer-metadata: "),
    "more tokens": (["--tokenizer-special-tokens", "<a>", "<b>"], "--tokenizer-special-tokens: tokens are not added"),
    "white space": (["--no-tokenizer-sentencepiece-ignore-extra-whitespaces"], "white space"),
    "a pattern": (["--tokenizer-type", "TikTokenizer", "--tiktoken-pattern", "v2"], "--tiktoken-pattern: "),
    "reserved tokens": (["--tokenizer-type", "TikTokenizer", "--tiktoken-num-special-tokens", "7"], "-num-special-tokens: "),
    "special tokens": (["--tokenizer-type", "TikTokenizer", "--tiktoken-special-tokens", "<s>", "</s>"], "-special-tokens: "),
    "special tokens of a model": (
        ["--tokenizer-type", "Llama2Tokenizer", "--tokenizer-sentencepiece-legacy"],
        "--tokenizer-sentencepiece-legacy: special tokens in text stay text",
    ),
    "slow": (["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-hf-no-use-fast"], "--tokenizer-hf-no-use-fast: "),
    "another format": (["--dataset-impl", "lazy"], "'lazy' is not"),
    "an unknown type": (["--tokenizer-type", "ByteTokenizer"], "ByteTokenizer is not known"),
    "word pieces": (["--tokenizer-type", "BertWordPieceCase", "--vocab-file", "v"], "BertWordPieceCase: a list of word pieces"),
    "word pieces in lower case": (
        ["--tokenizer-type", "BertWordPieceLowerCase"],
        "BertWordPieceLowerCase: a list of word pieces",
    ),
    "numbers": (["--tokenizer-type", "NullTokenizer", "--vocab-size", "9"], "NullTokenizer: it takes numbers for text"),
    "numbers and images": (["--tokenizer-type", "NullMultimodalTokenizer"], "NullMultimodalTokenizer: it takes numbers"),
    "conversations": (["--tokenizer-type", "SFTTokenizer", "--tokenizer-model", "t"], "SFTTokenizer: it encodes conversations"),
    "images": (["--tokenizer-type", "MultimodalTokenizer"], "MultimodalTokenizer: it encodes conversations"),
    "white space by its other name": (["--disable-tokenizer-sentencepiece-ignore-extra-whitespaces"], "white space"),
    "tokens around texts": (
        ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-hf-include-special-tokens"],
        "--tokenizer-hf-include-special-tokens: the tokens that a tokenizer puts around texts are not added",
    ),
    "a part of the vocabulary": (
        ["--tokenizer-type", "TikTokenizer", "--tokenizer-model", "gpt2-vocab.json", "--vocab-size", "1000"],
        "--vocab-size 1000: the tokenizer has 2,048 entries",
    ),
    "a type without its model": (["--tokenizer-type", "Llama2Tokenizer"], "Llama2Tokenizer needs --tokenizer-model"),
    "a vocabulary without merges": (["--vocab-file", "v"], "needs --merge-file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_offered_is_refused(run: Run, data: Path, case: str) -> None:
    flags, message = REFUSED[case]
    done = run("--input", data / "oscar-1GB.jsonl", "--output-prefix", data / "out", *flags, cwd=data, env=dict(os.environ))
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(data.glob("out*"))


# The options of tools/preprocess_data.py, with those of its tokenizers, at core_r0.16.0 and on main on 2026-08-22.
SCRIPT_OPTIONS = {
    "core_r0.16.0": """
        --input --json-keys --split-sentences --keep-newlines --append-eod --lang --output-prefix --workers --partitions
        --log-interval --keep-sequential-samples --vocab-size --padded-vocab-size --vocab-file --merge-file --vocab-extra-ids
        --tokenizer-type --tokenizer-model --tokenizer-metadata --tokenizer-special-tokens --legacy-tokenizer --tiktoken-pattern
        --tiktoken-num-special-tokens --tiktoken-special-tokens --tokenizer-sentencepiece-legacy --tokenizer-hf-use-fast
        --tokenizer-hf-include-special-tokens --trust-remote-code
    """,
    "main": """
        --input --json-keys --split-sentences --keep-newlines --append-eod --lang --output-prefix --workers
        --find-optimal-num-workers --workers-to-check --max-documents --partitions --log-interval --keep-sequential-samples
        --vocab-size --padded-vocab-size --no-pad-vocab-size --disable-pad-vocab-size --vocab-file --merge-file
        --vocab-extra-ids --tokenizer-type --tokenizer-model --tokenizer-metadata --tokenizer-special-tokens --tiktoken-pattern
        --tiktoken-num-special-tokens --tokenizer-sentencepiece-legacy --no-tokenizer-sentencepiece-ignore-extra-whitespaces
        --disable-tokenizer-sentencepiece-ignore-extra-whitespaces --tokenizer-hf-no-use-fast
        --tokenizer-hf-no-include-special-tokens --trust-remote-code --null-tokenizer-eod-id --null-tokenizer-pad-id
        --chat-template --use-gigatoken
    """,
    "Megatron-LM's older scripts": "--make-vocab-size-divisible-by",
}
# Those that have an effect here too.
TRANSLATED = """
    --chat-template
    --input --json-keys --append-eod --output-prefix --workers --vocab-file --merge-file --tokenizer-type --tokenizer-model
"""


@pytest.mark.parametrize("version", SCRIPT_OPTIONS)
def test_every_option_of_the_script_is_known(version: str) -> None:
    """Each is translated, refused with a reason, or taken with a note that says why it has no effect."""
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    options = set(SCRIPT_OPTIONS[version].split())
    assert options - known == set()
    explained = {*megatron_options.WITHOUT_EFFECT, *megatron_options.REFUSED, *megatron_options.REFUSED_FOR_TYPE}
    untold = options - set(TRANSLATED.split()) - {f"--{name.replace('_', '-')}" for name in explained}
    assert {name.replace("--disable-", "--no-") for name in untold} <= {
        *("--no-pad-vocab-size", "--no-tokenizer-sentencepiece-ignore-extra-whitespaces")
    }


def test_every_type_of_tokenizer_is_known(run: Run, data: Path) -> None:
    types = """
        BertWordPieceLowerCase BertWordPieceCase GPT2BPETokenizer SentencePieceTokenizer GPTSentencePieceTokenizer
        HuggingFaceTokenizer Llama2Tokenizer TikTokenizer MultimodalTokenizer NullTokenizer NullMultimodalTokenizer SFTTokenizer
    """
    known = {*megatron_options.GPT2_TYPES, *megatron_options.MODEL_TYPES, *megatron_options.OTHER_TYPES}
    assert known == set(types.split())


def test_code_of_a_tokenizer_is_refused_where_it_may_be_the_tokenizer(run: Run, data: Path) -> None:
    directory = data / "llama7b_tokenizer"
    command_line = [
        *("--input", data / "oscar-1GB.jsonl", "--output-prefix", data / "out", "--tokenizer-type", "HuggingFaceTokenizer"),
        *("--tokenizer-model", directory, "--workers", "1", "--trust-remote-code"),
    ]
    taken = run(*command_line)
    assert taken.returncode == 0, taken.stderr
    assert "--trust-remote-code has no effect: no code of a tokenizer is run" in taken.stderr
    (directory / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["tokenization_own.Own", null]}}')
    refused = run(*command_line)
    assert refused.returncode == 2
    assert "tokenizer_config.json names code of its own (auto_map), and no code of a tokenizer is run" in refused.stderr
    assert run(*command_line[:-1]).returncode == 0
