"""Parts that every BPE model in a `tokenizer.json` shares: checks, merges, added tokens, the end of a document."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lt_preprocess.tokenizers import end_of_document
from lt_preprocess.tokenizers.files import gpt2_files
from lt_preprocess.tokenizers.vocabulary import AddedToken, Unrecognised
from lt_shared.console import BadData

MOST_GROWTH = 1000
NOT_IN_UTF8 = frozenset([0xC0, 0xC1, *range(0xF5, 0x100)])
"""Bytes that no text has. GPT-NeoX's vocabulary has no tokens for them."""


def check_dropout(path: Path, model: Any) -> None:
    """Raise BadData for BPE dropout (Provilkov et al. 2020): a text would get other ids each time."""
    if isinstance(model, dict) and model.get("dropout"):
        raise BadData(f"{path}: its model drops merges at random (dropout {model['dropout']!r})", "set dropout to null")


def check_model(model: dict[str, Any]) -> None:
    """Raise Unrecognised for a model that is not BPE, or is more than its merges say."""
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        raise Unrecognised(f"its model is {model.get('type', 'not named')}")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise Unrecognised(f"its model has {key}")


def check_normalizer(path: Path, normalizer: Any) -> None:
    """Raise BadData for one that makes texts so much longer that a small file takes all memory.

    Those of real tokenizers put a few bytes before a text or in the place of a character.
    """
    steps, factor = [normalizer], 1
    while steps:
        step = steps.pop()
        if isinstance(step, dict):
            steps += step.get("normalizers") or []
            longer = step.get("prepend") or step.get("content") or ""
            factor *= max(1, len(longer) if isinstance(longer, str) else 1)
    if factor > MOST_GROWTH:
        raise BadData(f"{path}: its normalizer makes texts more than {MOST_GROWTH} times as long")


def steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder: those in the list `name` of a Sequence, or itself, or none."""
    if part is None:
        return []
    listed: list[dict[str, Any]] = part[name] if part["type"] == "Sequence" else [part]
    return listed


def merges(path: Path, listed: list[Any], ids: dict[str, int]) -> npt.NDArray[np.int64]:
    """The library writes a merge as a pair, and wrote it as "left right" before."""
    pairs = [merge.split(" ") for merge in listed] if listed and isinstance(listed[0], str) else listed
    try:
        return gpt2_files.merge_table(pairs, range(len(pairs)), ids)
    except KeyError as token:
        raise BadData(f"{path}: the model merges {token}, which is not in its vocabulary") from None


def added_tokens(listed: list[dict[str, Any]], ids: dict[str, int]) -> list[AddedToken]:
    """Added tokens with the ids that the library gives them, whatever the file says."""
    added: list[AddedToken] = []
    contents: set[str] = set()
    following = len(ids)
    for token in listed:
        content, number = token["content"], token["id"]
        if not content or not isinstance(content, str) or content in contents:
            raise Unrecognised("an added token is no text, empty or listed twice")
        if number != ids.get(content, following):
            raise Unrecognised(f"its added token {content} has an id that the library would not give it")
        contents.add(content)
        following = max(following, number + 1)
        added.append(
            AddedToken(content, number, *(token[key] for key in ("special", "normalized", "lstrip", "rstrip", "single_word")))
        )
    return added


def end_of_document_id(path: Path, ids: dict[str, int], special: Collection[str], eos_token: str | None) -> int | None:
    """Return the id of the token that ends documents: the configuration's `eos_token`, or a token with a usual name."""
    if eos_token is not None and eos_token not in ids:
        raise BadData(f"{path.parent / 'tokenizer_config.json'}: eos_token {eos_token} is not in the vocabulary")
    name = end_of_document.choose(eos_token, special) or end_of_document.choose(None, ids)
    return None if name is None else ids[name]
