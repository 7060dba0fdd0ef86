"""`tokenizer.json` files that were made from SentencePiece models: BPE of characters, with bytes for those without a token.

Llama 2, Mistral, Phi-3 and Gemma have such files. Conditions: spaces are written as U+2581, by a normalizer or a Metaspace
pre-tokenizer, and nothing else cuts or changes text; U+2581 and every byte that text can have are tokens; no merge joins bytes;
the decoder undoes this. Two spellings put a space before texts: a Prepend (before every text, also before a space), and Metaspace
(not before a space, and with the scheme `first` only at the start of a document).
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lt_preprocess.tokenizers import pattern_codes
from lt_preprocess.tokenizers.files import json_files, json_models
from lt_preprocess.tokenizers.vocabulary import (
    NO_PREFIX,
    PREFIX,
    PREFIX_BEFORE_TEXT,
    PREFIX_FIRST,
    ListedMerges,
    MergeRows,
    Unrecognised,
    Vocabulary,
)
from lt_shared.tokenizers.sentencepiece_proto import SPACE

_MOST_MERGES = (1 << 22) - 1
_NO_BYTE = -1
_SPACES_MARKED = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PREPEND = {"type": "Prepend", "prepend": SPACE}
_SPACES_BACK = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
_DECODERS = [_SPACES_BACK, {"type": "ByteFallback"}, {"type": "Fuse"}]
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_PREFIXES = {"never": NO_PREFIX, "always": PREFIX_BEFORE_TEXT, "first": PREFIX_FIRST}


def read(path: Path, content: dict[str, Any], eos_token: str | None) -> Vocabulary:
    """Raises Unrecognised for what only the library covers, BadData for a file that is malformed."""
    model = content["model"]
    if model.get("ignore_merges"):
        raise Unrecognised("a text that is a token stays whole")
    prefix, cuts = _spaces(content.get("normalizer"), content["pre_tokenizer"])
    ids = json_files.check_ids(path, model["vocab"])
    added = json_models.added_tokens(content.get("added_tokens") or [], ids)
    numbers = ids | {token.content: token.id for token in added}
    byte_ids = _byte_ids(ids)
    return Vocabulary(
        pattern_codes.BYTE_FALLBACK,
        byte_ids,
        _merges(path, model["merges"], ids, byte_ids, cuts),
        whole_pieces={},
        vocab_size=max(numbers.values()) + 1,
        eod=json_models.end_of_document_id(path, numbers, {token.content for token in added if token.is_special}, eos_token),
        tokens={number: token.encode() for token, number in ids.items()},
        added_tokens=tuple(added),
        space_prefix=prefix,
        strips_prefix=_strips_prefix(content["decoder"]),
    )


def _spaces(normalizer: dict[str, Any] | None, pre_tokenizer: dict[str, Any] | None) -> tuple[int, bool]:
    """Where a space is put before texts, and whether each space begins a word that merges by itself."""
    normalizers = json_models.steps(normalizer, "normalizers")
    cutters = json_models.steps(pre_tokenizer, "pretokenizers")
    if not normalizers and [step["type"] for step in cutters] == ["Metaspace"]:
        return _metaspace(cutters[0])
    if normalizers not in ([_SPACES_MARKED], [_PREPEND, _SPACES_MARKED]):
        raise Unrecognised(f"it normalizes text by {', '.join(step['type'] for step in normalizers) or 'nothing'}")
    if not all(map(_never_cuts, cutters)):
        raise Unrecognised(f"it cuts text by {', '.join(step['type'] for step in cutters)}")
    return PREFIX if len(normalizers) > 1 else NO_PREFIX, False


def _never_cuts(step: dict[str, Any]) -> bool:
    """A cut at spaces, as Gemma has it, finds none in text where they are U+2581."""
    return step["type"] == "Split" and step["pattern"] == {"String": " "} and step["invert"] is False


def _metaspace(step: dict[str, Any]) -> tuple[int, bool]:
    scheme = step.get("prepend_scheme", "always")
    if step["replacement"] != SPACE or (step.get("add_prefix_space") is False and scheme != "never"):
        raise Unrecognised("it writes spaces in a way of its own")
    return _PREFIXES[scheme], step.get("split") is not False


def _byte_ids(ids: dict[str, int]) -> npt.NDArray[np.int32]:
    """The id of the token for each byte, -1 for one that is not needed. Gemma 1's vocabulary has a tab, and none for its byte."""
    byte_ids = [ids.get(f"<0x{byte:02X}>", _NO_BYTE) for byte in range(256)]
    missing = [byte for byte in range(256) if byte_ids[byte] == _NO_BYTE and not (byte < 0x80 and chr(byte) in ids)]
    if not json_models.NOT_IN_UTF8.issuperset(missing):
        raise Unrecognised(f"{len(missing)} bytes have no token")
    if SPACE not in ids:
        raise Unrecognised("it has no token for a space")
    return np.array(byte_ids, np.int32)


def _merges(
    path: Path, listed: list[Any], ids: dict[str, int], byte_ids: npt.NDArray[np.int32], cuts: bool
) -> MergeRows | ListedMerges:
    """The merges that can happen: none across words where each space begins one."""
    if len(listed) > _MOST_MERGES:
        raise Unrecognised("it has too many merges for the compiled encoder")

    def look_up() -> MergeRows:
        rows = json_models.merges(path, listed, ids)
        if np.isin(rows[:, :2], byte_ids[byte_ids != _NO_BYTE]).any():
            raise Unrecognised("it merges bytes")
        if not cuts:
            return rows
        across = [number for token, number in ids.items() if SPACE in token[1:]]
        return rows[~np.isin(rows[:, 3], across)]

    # A byte that merges is part of a longer token.
    may_merge_bytes = any(len(token) > len("<0x00>") and "<0x" in token for token in ids)
    return look_up() if may_merge_bytes else ListedMerges(look_up)


def _strips_prefix(decoder: dict[str, Any] | None) -> bool:
    decoders = json_models.steps(decoder, "decoders")
    if decoders not in (_DECODERS, [*_DECODERS, _STRIP]):
        raise Unrecognised(f"it decodes by {', '.join(step['type'] for step in decoders) or 'nothing'}")
    return decoders[-1] == _STRIP
