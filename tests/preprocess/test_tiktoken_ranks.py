"""tiktoken files: known models, other models described by what lies beside them, and everything else refused."""

import base64
from pathlib import Path

import pytest

from lt_preprocess import split_patterns, tiktoken_ranks
from lt_preprocess.vocabulary import Vocabulary
from lt_shared import tokenizer_files
from lt_shared.console import BadData


def read(path: Path) -> Vocabulary:
    return tiktoken_ranks.read(tokenizer_files.find(path))


def test_llama3(llama3_model: Path) -> None:
    vocabulary = read(llama3_model)
    assert (vocabulary.vocab_size, vocabulary.eod) == (128256, 128001)
    ids = {token.content: token.id for token in vocabulary.added_tokens if token.is_special}
    assert len(ids) == 256
    assert (ids["<|begin_of_text|>"], ids["<|eot_id|>"], ids["<|reserved_special_token_247|>"]) == (128000, 128009, 128255)


def test_llama3_merges_are_all_splits(llama3_model: Path) -> None:
    assert read(llama3_model).merges.shape == (280_147, 4)


def test_llama4(llama4_model: Path) -> None:
    vocabulary = read(llama4_model)
    assert (vocabulary.vocab_size, vocabulary.eod, vocabulary.regex) == (202048, 200001, split_patterns.O200K)
    ids = {token.content: token.id for token in vocabulary.added_tokens}
    assert len(ids) == 2048
    # The numbers that Meta's own code states in comments and in its list of stop tokens.
    places = ("<|header_start|>", "<|eot|>", "<|image_start|>", "<|patch|>", "<|reasoning_reserved_special_token_0|>")
    assert [ids[place] for place in places] == [200005, 200008, 200080, 200092, 201134]


def test_qwen(qwen_model: Path) -> None:
    vocabulary = read(qwen_model)
    assert (vocabulary.vocab_size, vocabulary.eod, vocabulary.is_nfc) == (151851, 151643, True)
    assert vocabulary.regex == split_patterns.QWEN2
    assert [token.content for token in vocabulary.added_tokens[:4]] == [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|extra_0|>",
    ]


def lines(ranks: dict[bytes, int]) -> bytes:
    return b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.items())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lines({bytes([byte]): byte for byte in range(256)}), "256 entries; only those of Llama 3"),
        (lines({bytes([byte]): byte for byte in range(255)}), "no token for byte 0xFF"),
        (lines({b"a": 0}) + b"???? 1\n", "line 2"),
        (lines({b"a": 0}) + b"YQ==\n", "line 2"),
        (lines({bytes([byte]): byte // 2 for byte in range(256)}), "share a rank"),
    ],
)
def test_malformed_or_unknown_tiktoken_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    with pytest.raises(BadData, match=message):
        read(path)


def test_a_truncated_llama3_file(tmp_path: Path, llama3_model: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(llama3_model.read_bytes()[:1_000_000])
    with pytest.raises(BadData, match=r"tokenizer\.model"):
        read(path)
