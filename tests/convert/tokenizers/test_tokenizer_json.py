"""tokenizer.json without the tokenizers package: ids as it gives them, files as it saves them."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from lt_convert.tokenizers import huggingface_tokenizer, tokenizer_json
from lt_shared.console import BadData
from lt_shared.tokenizers import tokenizer_files

GPT2 = Path(__file__).parents[2] / "demo" / "tokenizer"
WORDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 4}, "unk_token": "a"}


def token(content: str, number: int, **flags: bool) -> dict[str, Any]:
    return tokenizer_json.added_token(content) | {"id": number, **flags}


def write(path: Path, model: dict[str, Any], added: list[dict[str, Any]]) -> Path:
    content = tokenizer_json.tokenizer(model).content | {"added_tokens": added}
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    "added",
    [
        [token("<x>", 5), token("<y>", 6)],
        # In another order than their ids, with wrong ids, in the vocabulary, twice, empty.
        [token("<x>", 6), token("<y>", 5)],
        [token("<x>", 900)],
        [token("c", 4, special=True), token("<x>", 5)],
        [token("<x>", 5), token("<x>", 5, special=True, lstrip=True), token("", 6), token("<y>", 7)],
    ],
)
def test_ids_are_those_of_the_package(added: list[dict[str, Any]], tmp_path: Path) -> None:
    path = write(tmp_path / "tokenizer.json", WORDS, added)
    tokenizer, stock = tokenizer_json.read(path), tokenizers.Tokenizer.from_file(str(path))
    assert tokenizer.ids() == stock.get_vocab(with_added_tokens=True)
    expected = {number: added_token.content for number, added_token in stock.get_added_tokens_decoder().items()}
    assert {number: added_token["content"] for number, added_token in tokenizer.added.items()} == expected
    further = [tokenizer_json.added_token("<z>", special=True, normalized=False), tokenizer_json.added_token("b")]
    tokenizer.add_tokens(further)
    stock.add_special_tokens([tokenizers.AddedToken("<z>", normalized=False)])
    stock.add_tokens(["b"])
    assert json.loads(tokenizer.to_bytes()) == json.loads(stock.to_str())


@pytest.mark.parametrize(
    "configuration",
    [
        {},
        {"add_bos_token": True, "bos_token": "<s>", "pad_token": "<|pad|>"},
        {"add_bos_token": True, "add_eos_token": True, "bos_token": "<s>", "eos_token": "</s>"},
        {"add_bos_token": True, "add_eos_token": True, "bos_token": "<s>", "eos_token": "<s>"},
    ],
)
def test_files_are_as_the_package_saves_them(
    configuration: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokenizers 1.0 has no parts to build them of, so the package is not needed to write."""
    source, written = tmp_path / "source", tmp_path / "written"
    tokenizer_files.find(GPT2).copy_to(source)
    (source / "tokenizer_config.json").write_text(json.dumps(configuration))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tokenizers", None)
        huggingface_tokenizer.write(tokenizer_files.find(source), written, 512, 4096)
    path = written / "tokenizer.json"
    assert path.read_text() == tokenizers.Tokenizer.from_file(str(path)).to_str(pretty=True)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "not a tokenizer: Expecting"),
        ("[]", "it has no model"),
        ('{"model": {"type": "BPE"}}', "it has no 'vocab'"),
        ('{"model": {"vocab": {"a": "0"}}}', "gives 'a' the id '0'"),
        ('{"model": {"vocab": {"a": -1}}}', "gives 'a' the id -1"),
        ('{"model": {"vocab": [7]}}', "not a tokenizer"),
        ('{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 1}]}', "it has no 'content'"),
    ],
)
def test_what_is_no_tokenizer_is_named(content: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(BadData, match=rf"tokenizer\.json: .*{reason}"):
        tokenizer_json.read(tmp_path / "tokenizer.json")


def test_a_merge_of_unknown_tokens_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the merge of 'a' and 'x' needs 'x', which has no id"):
        tokenizer_json.bpe({"a": 0}, [("a", "x")])
