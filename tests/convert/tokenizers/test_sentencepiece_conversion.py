"""A converted SentencePiece model encodes and decodes as the library does."""

from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import zstandard
from transformers import AutoTokenizer

from lt_convert.tokenizers import huggingface_tokenizer, sentencepiece_conversion
from lt_shared.console import BadData
from lt_shared.tokenizers import tokenizer_files

CORPUS = Path(__file__).parents[2] / "demo" / "corpus.jsonl.zst"
LLAMA2 = {"model_type": "bpe", "normalization_rule_name": "identity", "remove_extra_whitespaces": False, "split_digits": True}


@pytest.fixture(scope="module")
def texts() -> list[str]:
    import json

    with zstandard.open(CORPUS, "rt") as lines:
        found = [json.loads(line)["text"][:1000] for line, _ in zip(lines, range(150), strict=False)]
    return [*found, "  two  spaces\n\tand tabs ", "naïve ﬁ 日本語 🙂 12345", "", " "]


@pytest.mark.parametrize("options", [LLAMA2, {"model_type": "bpe"}, {"model_type": "unigram"}], ids=["llama2", "bpe", "unigram"])
def test_encodes_as_the_library(options: dict[str, Any], texts: list[str], tmp_path: Path) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=700,
        byte_fallback=True,
        minloglevel=3,
        user_defined_symbols=["<mask>"],
        **options,
    )
    stock = sentencepiece.SentencePieceProcessor(str(tmp_path / "tokenizer.model"))
    ids = huggingface_tokenizer.write(tokenizer_files.find(tmp_path / "tokenizer.model"), tmp_path / "out", 512, 200_000)
    found = AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in texts:
        expected = stock.encode(text)
        assert found(text).input_ids == [1, *expected]
        assert found.decode(expected, clean_up_tokenization_spaces=False) == stock.decode(expected)
    assert ids == {"bos_token_id": 1, "eos_token_id": 2}
    assert found("</s>").input_ids[-1] == 2


@pytest.mark.parametrize("content", [b"\n\xff", b"\n\x05ab", b"\n\x02\x08\x01", b"\n\x04\n\x02ab\x12\x02\x18\x03"])
def test_damaged_models_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(BadData, match="SentencePiece model"):
        sentencepiece_conversion.convert(tmp_path / "tokenizer.model")
