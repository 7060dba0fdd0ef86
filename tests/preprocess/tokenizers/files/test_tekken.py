"""Tekken, and the rank files of Qwen and Llama 4: the ids of tiktoken with the pattern that each states."""

import base64
import json
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.load import load_tiktoken_bpe

from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers import loading, split_patterns
from lt_preprocess.tokenizers.base import Encoder, Tokenizer
from lt_shared.tokenizers import tokenizer_files

pieces = st.sampled_from(
    ["don't", "I'LL", "\r\n \n", "   ", "12345", "camelCase", "//\n", "\u65e5\u672c", "</s>", "<|eot|>", "e\u0301", "\u01c5A"]
)
texts_to_try = st.lists(st.one_of(pieces, st.text(max_size=20)), max_size=8).map("".join)


@pytest.fixture(scope="module", params=["tekken", "qwen", "llama4"])
def both(
    request: pytest.FixtureRequest, tekken_json: Path, qwen_model: Path, llama4_model: Path
) -> tuple[Tokenizer, Encoder, Callable[[str], list[int]]]:
    path = {"tekken": tekken_json, "qwen": qwen_model, "llama4": llama4_model}[request.param]
    if request.param == "tekken":
        content = json.loads(path.read_bytes())
        tokens = [base64.b64decode(entry["token_bytes"]) for entry in content["vocab"][:130072]]
        ranks, regex, offset = {token: rank for rank, token in enumerate(tokens)}, content["config"]["pattern"], 1000
        assert regex == split_patterns.TEKKEN
    else:
        ranks, offset = load_tiktoken_bpe(str(path)), 0
        regex = split_patterns.QWEN2 if request.param == "qwen" else split_patterns.O200K
    encoding = tiktoken.Encoding(request.param, pat_str=regex, mergeable_ranks=ranks, special_tokens={})

    def reference(text: str) -> list[int]:
        normal = unicodedata.normalize("NFC", text) if request.param == "qwen" else text
        return [number + offset for number in encoding.encode_ordinary(normal)]

    tokenizer = loading.load(tokenizer_files.find(path))
    return tokenizer, tokenizer.new_encoder(), reference


def ids_of(encoder: Encoder, text: str) -> list[int]:
    return [int(number) for number in encoder.encode(Texts.from_list([text.encode()]))[0]]


@settings(max_examples=50, deadline=None)
@given(texts_to_try)
def test_any_text(both: tuple[Tokenizer, Encoder, Callable[[str], list[int]]], text: str) -> None:
    assert ids_of(both[1], text) == both[2](text)


def test_corpus(both: tuple[Tokenizer, Encoder, Callable[[str], list[int]]], texts: list[str]) -> None:
    for text in texts[:60]:
        ids = ids_of(both[1], text)
        assert ids == both[2](text)
        assert both[0].decode(ids).decode() in (text, unicodedata.normalize("NFC", text))


def test_tekken_special_tokens(tekken_json: Path) -> None:
    tokenizer = loading.load(tokenizer_files.find(tekken_json), "parse")
    assert (tokenizer.vocab_size, tokenizer.eod) == (131072, 2)
    ids = ids_of(tokenizer.new_encoder(), "[INST]a</s><SPECIAL_999>")
    assert ids == [3, 1000 + ord("a"), 2, 999]
    assert tokenizer.decode(ids) == b"[INST]a</s><SPECIAL_999>"
