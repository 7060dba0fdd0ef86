"""SentencePiece models and tokenizer.json: the libraries' own ids, special tokens never made from text, nothing cut off."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers.base import Tokenizer
from lt_shared.console import BadData

Load = Callable[[Path], Tokenizer]

HARD_TEXTS = [
    "",
    " ",
    "  a  b ",
    "\0a\0",
    "\n\n",
    "\u65e5\u672c\u8a9e \U0001f44d",
    "<unk> <s> </s> <0x0A>",
    "\u2581\u2581x",
    "e\u0301",
    "a" * 5000,
]


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(map(int, tokenizer.new_encoder().encode(Texts.from_list([text.encode()]))[0]))


@pytest.fixture
def tokenizer_json(tmp_path: Path, demo_tokenizer: Path) -> Path:
    """The demo tokenizer as tokenizer.json, with a second special token and what must not act here: truncation and padding."""
    made = tokenizers.ByteLevelBPETokenizer(str(demo_tokenizer / "vocab.json"), str(demo_tokenizer / "merges.txt"))
    made.add_special_tokens(["<|endoftext|>", "<|pad|>"])
    made.add_tokens(["zebra crossing"])
    made.enable_truncation(8)
    made.enable_padding(length=8, pad_id=2048, pad_token="<|pad|>")
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_sentencepiece_corpus(load_tokenizer: Load, sentencepiece_model: Path, texts: list[str]) -> None:
    tokenizer = load_tokenizer(sentencepiece_model)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_model))
    documents = [*texts[:300], *HARD_TEXTS]
    ids, lengths = tokenizer.new_encoder().encode(Texts.from_list([text.encode() for text in documents]))
    expected = reference.encode(documents, out_type=int)
    assert lengths.tolist() == [len(document) for document in expected]
    assert ids.tolist() == [number for document in expected for number in document]
    assert (tokenizer.vocab_size, tokenizer.eod) == (32000, 2)


def test_sentencepiece_control_symbols_are_text(load_tokenizer: Load, sentencepiece_model: Path) -> None:
    assert not {0, 1, 2} & set(ids_of(load_tokenizer(sentencepiece_model), "a</s> <s> <unk> b</s>"))


def test_tokenizer_json_corpus(load_tokenizer: Load, tokenizer_json: Path, texts: list[str], demo_reference: Any) -> None:
    tokenizer = load_tokenizer(tokenizer_json)
    ids, lengths = tokenizer.new_encoder().encode(Texts.from_list([text.encode() for text in texts]))
    expected = demo_reference.encode_ordinary_batch(texts)
    assert lengths.tolist() == [len(document) for document in expected]
    assert ids.tolist() == [number for document in expected for number in document]
    assert (tokenizer.vocab_size, tokenizer.eod) == (2050, 2047)


def test_tokenizer_json_special_tokens_are_text_and_added_tokens_are_not(load_tokenizer: Load, tokenizer_json: Path) -> None:
    ids = ids_of(load_tokenizer(tokenizer_json), "a<|endoftext|>b <|pad|> zebra crossing")
    assert not {2047, 2048} & set(ids)
    assert ids[-1] == 2049


@pytest.mark.parametrize("token", ["<|pad|>", {"content": "<|pad|>"}])
def test_eod_of_tokenizer_config(load_tokenizer: Load, tokenizer_json: Path, token: object) -> None:
    (tokenizer_json.parent / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
    assert load_tokenizer(tokenizer_json).eod == 2048


def test_eod_that_is_not_in_the_vocabulary(load_tokenizer: Load, tokenizer_json: Path) -> None:
    """transformers adds the token behind the vocabulary."""
    (tokenizer_json.parent / "tokenizer_config.json").write_text('{"eos_token": "<nowhere>"}')
    tokenizer = load_tokenizer(tokenizer_json)
    expected = PreTrainedTokenizerFast.from_pretrained(tokenizer_json.parent)
    assert (tokenizer.eod, tokenizer.vocab_size) == (expected.eos_token_id, len(expected)) == (2050, 2051)


def test_no_eod(load_tokenizer: Load, tmp_path: Path) -> None:
    tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.vocab_size, tokenizer.eod) == (8, None)


def test_a_model_that_finds_its_special_tokens_in_text_is_refused(load_tokenizer: Load, tmp_path: Path) -> None:
    made = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("a", -1.0)], unk_id=0))
    made.add_special_tokens(["<unk>", "</s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(BadData, match="</s> would become"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", ['{"model": {}}', '{"model": {"type": "BPE"}}'])
def test_malformed_tokenizer_json(load_tokenizer: Load, tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(BadData, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_truncated_sentencepiece_model(load_tokenizer: Load, tmp_path: Path, sentencepiece_model: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model.read_bytes()[:100_000])
    with pytest.raises(BadData, match=r"tokenizer\.model"):
        load_tokenizer(tmp_path)
