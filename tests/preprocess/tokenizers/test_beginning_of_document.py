"""The token that begins a document is the one that the tokenizer's files name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import ByteLevelBPETokenizer

from lt_preprocess.tokenizers import beginning_of_document, loading
from lt_shared.tokenizers import tokenizer_files


def found(path: Path) -> int | None:
    files = tokenizer_files.find(path)
    return beginning_of_document.find(files, loading.load(files))


@pytest.mark.parametrize(
    ("added", "config", "mapped", "expected"),
    [
        (["<s>", "</s>"], None, None, 2047),
        (["</s>", "<|begin_of_text|>"], None, None, 2048),
        (["<x>", "<s>"], {"bos_token": "<x>"}, None, 2047),
        (["<x>", "<s>"], {"bos_token": {"content": "<x>", "lstrip": False}}, None, 2047),
        (["<x>", "<s>"], {}, {"bos_token": "<s>"}, 2048),
        (["<x>", "<s>"], {"bos_token": "<x>"}, {"bos_token": "<s>"}, 2047),
        # Qwen says that it has none, and another file may be there by accident.
        (["<s>"], {"bos_token": None}, {"bos_token": "<s>"}, None),
        (["<x>"], None, None, None),
        # Such a token is added to the vocabulary, as transformers does.
        (["<x>"], {"bos_token": "<missing>"}, None, 2048),
    ],
)
def test_bos_of_a_directory(
    tmp_path: Path, demo_tokenizer: Path, added: list[str], config: Any, mapped: Any, expected: int | None
) -> None:
    vocabulary = json.loads((demo_tokenizer / "vocab.json").read_text())
    del vocabulary["<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    library = ByteLevelBPETokenizer(str(tmp_path / "vocab.json"), str(demo_tokenizer / "merges.txt"))
    library.add_special_tokens(added)
    (tmp_path / "tokenizer").mkdir()
    library.save(str(tmp_path / "tokenizer/tokenizer.json"))
    for name, content in (("tokenizer_config.json", config), ("special_tokens_map.json", mapped)):
        if content is not None:
            (tmp_path / "tokenizer" / name).write_text(json.dumps(content))
    assert found(tmp_path / "tokenizer") == expected


def test_models_with_a_bos_of_their_own(sentencepiece_model: Path, demo_tokenizer: Path, tekken_json: Path) -> None:
    """SentencePiece's bos_id, GPT-2's end of text, Tekken's `<s>`."""
    assert found(sentencepiece_model) == 1
    assert found(demo_tokenizer) == 2047
    assert found(tekken_json) == 1


def test_bos_beside_a_sentencepiece_model(sentencepiece_model: Path, tmp_path: Path) -> None:
    shutil.copy(sentencepiece_model, tmp_path / "tokenizer.model")
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "</s>"}')
    assert found(tmp_path) == 2


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [],
    "special_tokens": {"<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [0], "tokens": ["<|begin_of_text|>"]}},
}


@pytest.mark.parametrize(
    ("processor", "name"),
    [
        (None, None),
        ({"type": "ByteLevel", "trim_offsets": True}, None),
        (TEMPLATE, "<|begin_of_text|>"),
        ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, TEMPLATE]}, "<|begin_of_text|>"),
        (TEMPLATE | {"single": [{"Sequence": {"id": "A", "type_id": 0}}]}, None),
    ],
)
def test_a_token_that_a_template_adds(tmp_path: Path, processor: dict[str, Any] | None, name: str | None) -> None:
    content = {"post_processor": processor, "model": {"type": "BPE", "vocab": {}, "merges": []}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert beginning_of_document.added_by_template(tokenizer_files.find(tmp_path)) == name
