"""Tekken, and the rank files of Qwen and Llama 4: the ids of tiktoken with the pattern that each states."""

import base64
import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.load import load_tiktoken_bpe

from lt_preprocess import split_patterns, tekken
from lt_preprocess import tokenizer as loading
from lt_preprocess.tokenizer import Texts, Tokenizer
from lt_shared import tokenizer_files
from lt_shared.console import BadData

pieces = st.sampled_from(
    ["don't", "I'LL", "\r\n \n", "   ", "12345", "camelCase", "//\n", "\u65e5\u672c", "</s>", "<|eot|>", "e\u0301", "\u01c5A"]
)
texts_to_try = st.lists(st.one_of(pieces, st.text(max_size=20)), max_size=8).map("".join)


@pytest.fixture(scope="module", params=["tekken", "qwen", "llama4"])
def both(
    request: pytest.FixtureRequest, tekken_json: Path, qwen_model: Path, llama4_model: Path
) -> tuple[Tokenizer, Callable[[str], list[int]]]:
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

    return loading.load(tokenizer_files.find(path)), reference


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return [int(number) for number in tokenizer.new_encoder().encode(Texts.of([text.encode()]))[0]]


@settings(max_examples=100, deadline=None)
@given(texts_to_try)
def test_any_text(both: tuple[Tokenizer, Callable[[str], list[int]]], text: str) -> None:
    assert ids_of(both[0], text) == both[1](text)


def test_corpus(both: tuple[Tokenizer, Callable[[str], list[int]]], texts: list[str]) -> None:
    for text in texts[:60]:
        ids = ids_of(both[0], text)
        assert ids == both[1](text)
        assert both[0].decode(ids).decode() in (text, unicodedata.normalize("NFC", text))


def test_tekken_ids(tekken_json: Path) -> None:
    vocabulary = tekken.read(tokenizer_files.find(tekken_json))
    assert (vocabulary.vocab_size, vocabulary.eod) == (131072, 2)
    names = {token.id: token.content for token in vocabulary.added_tokens}
    assert [names[number] for number in (0, 1, 2, 3, 10, 17, 19, 20, 999)] == [
        *("<unk>", "<s>", "</s>", "[INST]", "[IMG]", "[SYSTEM_PROMPT]", "[TOOL_CONTENT]", "<SPECIAL_20>", "<SPECIAL_999>")
    ]


def small_tekken(**changes: Any) -> dict[str, Any]:
    vocab = [{"rank": byte, "token_bytes": base64.b64encode(bytes([byte])).decode(), "token_str": None} for byte in range(256)]
    vocab += [{"rank": 256, "token_bytes": base64.b64encode(b"ab").decode()}, {"rank": 257, "token_bytes": "not looked at"}]
    config = {"pattern": split_patterns.GPT2, "default_vocab_size": 267, "default_num_special_tokens": 10, "version": "v11"}
    special = [{"rank": 2, "token_str": "</s>", "is_control": True}, {"rank": 5, "token_str": "[X]", "is_control": True}]
    return {"config": config, "vocab": vocab, "special_tokens": special} | changes


def test_named_special_tokens_and_tokens_beyond_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps(small_tekken()))
    tokenizer = loading.load(tokenizer_files.find(tmp_path), "parse")
    assert (tokenizer.vocab_size, tokenizer.eod) == (267, 2)
    assert ids_of(tokenizer, "ab[X]</s>a<SPECIAL_0>") == [266, 5, 2, 10 + ord("a"), 0]
    assert tokenizer.decode([266, 5, 2, 0]) == b"ab[X]</s><SPECIAL_0>"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {}}, "not a Tekken tokenizer: KeyError 'pattern'"),
        ({"vocab": small_tekken()["vocab"][:100]}, "do not have the ranks 0 to 256"),
        ({"vocab": [{"rank": 0, "token_bytes": "?"}] * 300}, "not a Tekken tokenizer"),
        ({"vocab": [{"rank": rank, "token_bytes": "YWE="} for rank in range(300)]}, "do not have the ranks"),
    ],
)
def test_malformed(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps(small_tekken(**changes)))
    with pytest.raises(BadData, match=message):
        loading.load(tokenizer_files.find(tmp_path))
