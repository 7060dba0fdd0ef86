"""Which token begins a document: the `bos_token` that a tokenizer's files name."""

import json
import re
from typing import Any

from lt_preprocess.tokenizers.base import Tokenizer
from lt_preprocess.tokenizers.files import json_files
from lt_shared.tokenizers import sentencepiece_proto
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

NAMES = (
    *("<|begin_of_text|>", "<s>", "<bos>", "[BOS]", "<BOS_TOKEN>", "<|startoftext|>"),
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
)
"""The names of the token in tokenizers whose files say nothing."""

# The templates of a few languages or special tokens take a few KB.
_POST_PROCESSOR = re.compile(rb'"post_processor"\s*:\s*(\{.{0,65536})', re.DOTALL)

GPT2_NAME = "<|endoftext|>"
"""GPT-2 begins a document with the token that ends one."""


def find(files: TokenizerFiles, tokenizer: Tokenizer) -> int | None:
    """The id of the token that begins a document; None for a tokenizer without one.

    A `bos_token` in the files beside the tokenizer comes first, null there meaning that there is none; then the model's own.
    """
    configured = _configured(files)
    if configured is not None:
        name = configured["content"] if isinstance(configured, dict) else configured
        return _id_of(name, files, tokenizer) if isinstance(name, str) else None
    if files.kind == "sentencepiece":
        bos = sentencepiece_proto.read(files.files[0]).bos_id
        return bos if bos >= 0 else None
    names = (*NAMES, GPT2_NAME) if files.kind == "gpt2" else NAMES
    return next((tokenizer.special_tokens[name] for name in names if name in tokenizer.special_tokens), None)


def added_by_template(files: TokenizerFiles) -> str | None:
    """Name the token that the template in a tokenizer.json puts before a text when transformers encodes it; None without one."""
    match = _POST_PROCESSOR.search(files.files[0].read_bytes()) if files.kind == "tokenizer.json" else None
    if match is None:
        return None
    try:
        processor, _ = json.JSONDecoder().raw_decode(match.group(1).decode(errors="replace"))
        for step in processor.get("processors", [processor]):
            if step["type"] == "TemplateProcessing":
                name = step["single"][0].get("SpecialToken", {}).get("id")
                return name if isinstance(name, str) else None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None
    return None


def _configured(files: TokenizerFiles) -> Any:
    """The `bos_token` of the files beside the tokenizer, "" for null; None when no file has one."""
    for file_name in ("tokenizer_config.json", "special_tokens_map.json"):
        for path in files.companions:
            if path.name == file_name and "bos_token" in (content := json_files.read_object(path)):
                return content["bos_token"] or ""
    return None


def _id_of(name: str, files: TokenizerFiles, tokenizer: Tokenizer) -> int | None:
    if name in tokenizer.special_tokens or files.kind != "sentencepiece":
        return tokenizer.special_tokens.get(name)
    pieces = sentencepiece_proto.read(files.files[0]).pieces
    return next((number for number, piece in enumerate(pieces) if piece.text == name), None)
