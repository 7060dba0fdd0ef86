"""A tokenizer.json that is made of other files has the tokens that those beside them add, with transformers' ids and flags."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from lt_convert.tokenizers import huggingface_tokenizer
from lt_shared.tokenizers import tokenizer_files

GPT2 = Path(__file__).parents[2] / "demo/tokenizer"
SIZE = 2048
# Ids of added tokens follow those of the vocabulary.
BESIDE: dict[str, dict[str, Any]] = {
    "added-tokens": {"added_tokens.json": {"<|im_start|>": 0, "<tool>": 1}},
    "added-and-special": {
        "added_tokens.json": {"<|im_start|>": 0, "<tool>": 1},
        "special_tokens_map.json": {"additional_special_tokens": ["<|im_start|>"], "pad_token": "<|pad|>"},
    },
    "decoder": {
        "tokenizer_config.json": {
            "added_tokens_decoder": {
                0: {
                    "content": "<think>",
                    "lstrip": True,
                    "rstrip": False,
                    "single_word": False,
                    "normalized": False,
                    "special": True,
                },
                1: {
                    "content": "Word",
                    "lstrip": False,
                    "rstrip": True,
                    "single_word": True,
                    "normalized": True,
                    "special": False,
                },
            },
        }
    },
    "prefix-space": {"tokenizer_config.json": {"add_prefix_space": True}},
    "pad-alone": {"tokenizer_config.json": {"pad_token": "<|pad|>"}},
}
TEXTS = ["hello <|im_start|>user <tool>x", "a <think> b", "Words Word wording", "<|pad|><|endoftext|>", "  two  spaces"]


def shifted(content: dict[str, Any], size: int) -> dict[str, Any]:
    """The content of a file with ids counted from the end of the vocabulary."""
    if "added_tokens_decoder" in content:
        return content | {
            "added_tokens_decoder": {str(number + size): entry for number, entry in content["added_tokens_decoder"].items()}
        }
    return {
        text: number + size if isinstance(number, int) and not isinstance(number, bool) else number
        for text, number in content.items()
    }


def write_source(place: Path, kind: str, name: str) -> int:
    """A tokenizer with the files of BESIDE; returns the size of its vocabulary."""
    place.mkdir()
    if kind == "gpt2":
        for file in ("vocab.json", "merges.txt"):
            shutil.copy(GPT2 / file, place)
        size = len(json.loads((place / "vocab.json").read_text()))
    else:
        text = [f"some words of text number {number} with a few letters" for number in range(200)]
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text), model_writer=model, vocab_size=300, model_type="bpe", byte_fallback=True,
            minloglevel=2, normalization_rule_name="identity", remove_extra_whitespaces=False,
        )  # fmt: skip
        (place / "tokenizer.model").write_bytes(model.getvalue())
        size = 300
    configuration: dict[str, Any] = {"tokenizer_class": "GPT2Tokenizer" if kind == "gpt2" else "LlamaTokenizer"}
    for file, content in BESIDE[name].items():
        changed = shifted(content, size)
        (place / file).write_text(json.dumps(configuration | changed if file == "tokenizer_config.json" else changed))
    if "tokenizer_config.json" not in BESIDE[name]:
        (place / "tokenizer_config.json").write_text(json.dumps(configuration))
    return size


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("kind", ["gpt2", "sentencepiece"])
def test_ids_are_those_of_transformers(kind: str, name: str, tmp_path: Path) -> None:
    if (kind, name) == ("sentencepiece", "prefix-space"):
        return
    source = tmp_path / "source"
    size = write_source(source, kind, name)
    huggingface_tokenizer.write(tokenizer_files.find(source), tmp_path / "made", 512, 4096)
    stock, loaded = AutoTokenizer.from_pretrained(source), AutoTokenizer.from_pretrained(tmp_path / "made")
    made = Tokenizer.from_file(str(tmp_path / "made" / "tokenizer.json"))
    added = {text: number for text, number in stock.get_added_vocab().items() if number >= size}
    assert added or name == "prefix-space"
    for text, number in added.items():
        assert made.token_to_id(text) == number
    for text in TEXTS:
        expected = stock(text, add_special_tokens=False).input_ids
        assert loaded(text, add_special_tokens=False).input_ids == expected, text
        assert made.encode(text, add_special_tokens=False).ids == expected, text


def test_files_of_hugging_face_are_kept_as_they_are(tmp_path: Path) -> None:
    """A tokenizer.json beside a tokenizer.model is not made again: it may have tokens that the model lacks."""
    source = tmp_path / "source"
    write_source(source, "sentencepiece", "added-tokens")
    AutoTokenizer.from_pretrained(source).save_pretrained(tmp_path / "saved")
    shutil.copy(source / "tokenizer.model", tmp_path / "saved")
    huggingface_tokenizer.write(tokenizer_files.find(tmp_path / "saved"), tmp_path / "made", 512, 4096)
    for path in (tmp_path / "saved").iterdir():
        assert (tmp_path / "made" / path.name).read_bytes() == path.read_bytes(), path.name
