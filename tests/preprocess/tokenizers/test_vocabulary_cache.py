"""A vocabulary comes from the cache as it was read, and is read again when anything about it has changed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lt_preprocess.tokenizers import vocabulary_cache
from lt_preprocess.tokenizers.files import gpt2_files, tiktoken_ranks
from lt_preprocess.tokenizers.vocabulary import Vocabulary
from lt_shared.tokenizers import tokenizer_files
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

Reader = Callable[[TokenizerFiles], Vocabulary]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr("lt_preprocess.compiler.jit.cache_directory", lambda: tmp_path / "cache")
    return tmp_path / "cache"


class Counting:
    """A reader that counts how often it is asked."""

    def __init__(self, reader: Reader):
        self.calls = 0
        self._reader = reader

    def __call__(self, files: TokenizerFiles) -> Vocabulary:
        self.calls += 1
        return self._reader(files)


@pytest.fixture(params=["gpt2", "qwen"])
def files_and_reader(request: pytest.FixtureRequest, demo_tokenizer: Path, qwen_model: Path) -> tuple[TokenizerFiles, Counting]:
    if request.param == "gpt2":
        return tokenizer_files.find(demo_tokenizer), Counting(gpt2_files.read)
    return tokenizer_files.find(qwen_model), Counting(tiktoken_ranks.read)


def test_the_same_from_the_cache(cache: Path, files_and_reader: tuple[TokenizerFiles, Counting]) -> None:
    files, reader = files_and_reader
    first, second = vocabulary_cache.read(files, reader), vocabulary_cache.read(files, reader)
    assert reader.calls == 1
    for name in ("byte_ids", "merges"):
        assert getattr(first, name).dtype == getattr(second, name).dtype
        assert np.array_equal(getattr(first, name), getattr(second, name))
    for name in ("pattern", "regex", "vocab_size", "eod", "is_nfc", "added_tokens", "tokens", "whole_pieces"):
        assert getattr(first, name) == getattr(second, name)
    assert list(first.whole_pieces) == list(second.whole_pieces)


def test_a_damaged_file_is_made_again(cache: Path, demo_tokenizer: Path) -> None:
    files, reader = tokenizer_files.find(demo_tokenizer), Counting(gpt2_files.read)
    vocabulary_cache.read(files, reader)
    (kept,) = cache.iterdir()
    for content in (b"", kept.read_bytes()[:5000], b"PK" + kept.read_bytes()[2:], b"\x80\x04."):
        kept.write_bytes(content)
        assert vocabulary_cache.read(files, reader).vocab_size == 2048
        assert len(kept.read_bytes()) > 5000
    assert [path.name for path in cache.iterdir()] == [kept.name]


def test_what_lies_beside_a_tokenizer_counts(cache: Path, demo_tokenizer: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(demo_tokenizer, tmp_path / "tokenizer")
    reader = Counting(gpt2_files.read)
    for content in ({}, {"tokenizer_class": "GPT2Tokenizer"}, {}):
        (directory / "tokenizer_config.json").write_text(json.dumps(content))
        vocabulary_cache.read(tokenizer_files.find(directory), reader)
    assert reader.calls == 2
    (directory / "merges.txt").write_text((directory / "merges.txt").read_text(encoding="utf-8") + "\n", encoding="utf-8")
    vocabulary_cache.read(tokenizer_files.find(directory), reader)
    assert reader.calls == 3


def test_without_a_place_to_keep_it(demo_tokenizer: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files, reader = tokenizer_files.find(demo_tokenizer), Counting(gpt2_files.read)
    for directory in (None, tmp_path / "removed"):
        monkeypatch.setattr("lt_preprocess.compiler.jit.cache_directory", lambda place=directory: place)
        assert vocabulary_cache.read(files, reader).vocab_size == 2048
    assert reader.calls == 2
