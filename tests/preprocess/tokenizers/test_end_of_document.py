"""Documents end with the separator of pre-training, not with the end of a chat's turn."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from lt_preprocess.tokenizers import end_of_document, loading
from lt_shared.data.indexed_dataset import open as open_dataset
from lt_shared.tokenizers import tokenizer_files

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("eos_token", "tokens", "expected"),
    [
        ("<|return|>", ["<|startoftext|>", "<|endoftext|>", "<|return|>"], "<|endoftext|>"),
        ("<|im_end|>", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|endoftext|>"),
        ("<end_of_turn>", ["<eos>", "<bos>", "<end_of_turn>"], "<eos>"),
        ("<|eot_id|>", ["<|end_of_text|>", "<|eot_id|>"], "<|end_of_text|>"),
        ("<|im_end|>", ["[BOS]", "[EOS]", "<|im_end|>", "[EOT]"], "[EOS]"),
        ("<|im_end|>", ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
        ("</s>", ["<|endoftext|>", "</s>"], "</s>"),
        ("<|eod|>", ["<|endoftext|>", "<|eod|>"], "<|eod|>"),
        (None, ["</s>", "<|endoftext|>"], "<|endoftext|>"),
        (None, ["<pad>"], None),
    ],
)
def test_choice(eos_token: str | None, tokens: list[str], expected: str | None) -> None:
    assert end_of_document.choose(eos_token, tokens) == expected


@pytest.fixture
def make_directory(tmp_path: Path) -> Callable[..., Path]:
    """`make_directory(eos_token, special, ordinary)`: a tokenizer.json, compiled or not, and its configuration."""

    def make(eos_token: str | None, special: list[str], ordinary: list[str], is_byte_level: bool = True) -> Path:
        made = Tokenizer(models.BPE({symbol: number for number, symbol in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=not is_byte_level)
        made.add_tokens([AddedToken(token, special=False, normalized=False) for token in ordinary])
        made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        made.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos_token}))
        return tmp_path

    return make


@pytest.mark.parametrize("is_byte_level", [True, False])
def test_of_a_tokenizer_json(make_directory: Callable[..., Path], is_byte_level: bool) -> None:
    """Gemma 3's `</s>` is a tag of HTML, not a special token."""
    directory = make_directory("<end_of_turn>", ["<eos>", "<end_of_turn>"], ["</s>"], is_byte_level)
    assert loading.load(tokenizer_files.find(directory)).eod == 257
    (directory / "tokenizer_config.json").unlink()
    assert loading.load(tokenizer_files.find(directory)).eod == 257


def last_ids(prefix: Path) -> list[int]:
    dataset = open_dataset(str(prefix))
    return [int(np.asarray(dataset[number])[-1]) for number in range(len(dataset))]


def test_the_program_says_what_it_appends(
    make_directory: Callable[..., Path], write_lines: Callable[..., Path], run: Run, tmp_path: Path
) -> None:
    tokenizer = make_directory("<|im_end|>", ["<|endoftext|>", "<|im_end|>"], [])
    lines = write_lines(tmp_path / "text.jsonl", [{"text": "one"}, {"text": "two <|im_end|>"}])
    arguments = [lines, "--tokenizer", tokenizer, "--append-eod", "-o", tmp_path / "data"]
    ran = run(*arguments)
    assert ran.returncode == 0, ran.stderr
    assert "every document ends with <|endoftext|> (256)" in ran.stderr
    assert last_ids(tmp_path / "data_text_document") == [256, 256]
    named = run(*arguments, "--eod-token", "<|im_end|>", "--force")
    assert "every document ends with <|im_end|> (257), which ends a turn of a chat" in named.stderr
    assert last_ids(tmp_path / "data_text_document") == [257, 257]
    # What reads the dataset knows its end of document, which is not the tokenizer's.
    texts = [json.loads(line)["text"] for line in run("cat", tmp_path / "data_text_document").stdout.splitlines()]
    assert texts == ["one", "two <|im_end|>"]
    assert run("verify", tmp_path / "data_text_document", "--deep", "2").returncode == 0


def test_only_special_tokens_end_documents(
    make_directory: Callable[..., Path], write_lines: Callable[..., Path], run: Run, tmp_path: Path
) -> None:
    tokenizer = make_directory(None, ["<|endoftext|>"], ["<think>"])
    arguments = [write_lines(tmp_path / "a.jsonl", [{"text": "a"}]), "--tokenizer", tokenizer, "-o", tmp_path / "data"]
    ran = run(*arguments, "--append-eod", "--eod-token", "<think>")
    assert (ran.returncode, "--eod-token <think>: not a special token" in ran.stderr) == (78, True), ran.stderr
    without = run(*arguments, "--eod-token", "<|endoftext|>")
    assert (without.returncode, "without --append-eod" in without.stderr) == (2, True), without.stderr
