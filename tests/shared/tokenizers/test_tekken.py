"""`tekken.json` is read as mistral-common means it, and refused when it is malformed."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from lt_shared.console import BadData
from lt_shared.tokenizers import tekken


def content(**changes: Any) -> dict[str, Any]:
    vocab = [{"rank": byte, "token_bytes": base64.b64encode(bytes([byte])).decode(), "token_str": None} for byte in range(256)]
    vocab += [{"rank": 256, "token_bytes": "YWI=", "token_str": "ab"}, {"rank": 257, "token_bytes": "not looked at"}]
    config = {"pattern": "x", "default_vocab_size": 267, "default_num_special_tokens": 10, "version": "v11"}
    special = [{"rank": 2, "token_str": "</s>", "is_control": True}, {"rank": 5, "token_str": "[X]", "is_control": True}]
    return {"config": config, "vocab": vocab, "special_tokens": special} | changes


def read(tmp_path: Path, made: dict[str, Any]) -> tekken.Tekken:
    (tmp_path / "tekken.json").write_text(json.dumps(made))
    return tekken.read(tmp_path / "tekken.json")


def test_named_special_tokens_and_tokens_beyond_the_vocabulary(tmp_path: Path) -> None:
    found = read(tmp_path, content())
    assert (found.pattern, len(found.ids), found.ids[b"\0"], found.ids[b"ab"]) == ("x", 257, 10, 266)
    assert found.special_tokens[:6] == ["<SPECIAL_0>", "<SPECIAL_1>", "</s>", "<SPECIAL_3>", "<SPECIAL_4>", "[X]"]


def test_special_tokens_that_the_file_does_not_name(tmp_path: Path) -> None:
    made = content(config={"pattern": "x", "default_vocab_size": 286, "default_num_special_tokens": 30})
    del made["special_tokens"]
    names = read(tmp_path, made).special_tokens
    assert [names[number] for number in (0, 1, 2, 3, 10, 17, 19, 20, 29)] == [
        *("<unk>", "<s>", "</s>", "[INST]", "[IMG]", "[SYSTEM_PROMPT]", "[TOOL_CONTENT]", "<SPECIAL_20>", "<SPECIAL_29>")
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {}}, "not a Tekken tokenizer: KeyError 'pattern'"),
        ({"vocab": content()["vocab"][:100]}, "do not have the ranks 0 to 256"),
        ({"vocab": [{"rank": 0, "token_bytes": "?"}] * 300}, "not a Tekken tokenizer"),
        ({"vocab": [{"rank": rank, "token_bytes": "YWE="} for rank in range(300)]}, "do not have the ranks"),
        (
            {"vocab": [{"rank": 0, "token_bytes": "AA=="}], "config": content()["config"] | {"default_vocab_size": 11}},
            "every byte",
        ),
        ({"special_tokens": [{}]}, "not a Tekken tokenizer"),
    ],
)
def test_malformed(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadData, match=message):
        read(tmp_path, content(**changes))
