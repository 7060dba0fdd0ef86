"""tiktoken files: known models, other models described by what lies beside them, and everything else refused."""

import base64
import json
from pathlib import Path

import pytest

from lt_preprocess.tokenizers import split_patterns
from lt_preprocess.tokenizers.files import tiktoken_ranks
from lt_preprocess.tokenizers.vocabulary import Vocabulary
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
        (lines({bytes([byte]): byte + 2**31 - 255 for byte in range(256)}), "rank 2147483648 is not"),
        (lines({bytes([byte]): byte for byte in range(256)}) + b"YWE= -1\n", "rank -1 is not"),
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


def unknown(directory: Path, code: str, configuration: object) -> Path:
    """A tiktoken file of no known size with code and a configuration beside it."""
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.model").write_bytes(lines({bytes([byte]): byte for byte in range(256)} | {b"ab": 256}))
    (directory / "tokenization_mine.py").write_text(code)
    (directory / "tokenizer_config.json").write_text(json.dumps(configuration))
    return directory


TOKENS = {"258": {"content": "<eos>", "special": True}, "300": {"content": "<tool>", "special": False}}


def test_a_model_that_its_code_and_configuration_describe(tmp_path: Path) -> None:
    code = f'PAT_STR = r"""{split_patterns.LLAMA3}"""\n'
    vocabulary = read(unknown(tmp_path, code, {"added_tokens_decoder": TOKENS}))
    assert (vocabulary.regex, vocabulary.vocab_size, vocabulary.eod, vocabulary.is_nfc) == (
        split_patterns.LLAMA3,
        301,
        258,
        False,
    )
    assert [(token.content, token.id, token.is_special) for token in vocabulary.added_tokens] == [
        ("<eos>", 258, True),
        ("<tool>", 300, False),
    ]
    code += 'text = unicodedata.normalize("NFC", text)\n'
    assert read(unknown(tmp_path, code, {"added_tokens_decoder": TOKENS, "eos_token": "<tool>"})).is_nfc
    assert read(tmp_path).eod == 300


@pytest.mark.parametrize(
    ("code", "configuration", "message"),
    [
        (r'PAT_STR = r"""\S+|\s+"""', {"added_tokens_decoder": TOKENS}, "257 entries; only those of Llama 3"),
        (
            f"{split_patterns.LLAMA3} {split_patterns.QWEN2}",
            {"added_tokens_decoder": TOKENS},
            "257 entries; only those of Llama 3",
        ),
        (split_patterns.LLAMA3, {}, "lists the special tokens"),
        (split_patterns.LLAMA3, {"added_tokens_decoder": {"x": 1}}, "added_tokens_decoder is malformed"),
        (split_patterns.LLAMA3, {"added_tokens_decoder": {"258": {"content": "a"}}}, "added_tokens_decoder is malformed"),
    ],
)
def test_a_model_that_is_not_described_well_enough(tmp_path: Path, code: str, configuration: object, message: str) -> None:
    with pytest.raises(BadData, match=message):
        read(unknown(tmp_path, code, configuration))
