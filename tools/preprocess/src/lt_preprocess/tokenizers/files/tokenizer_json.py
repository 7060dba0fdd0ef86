"""Hugging Face's `tokenizer.json`, as far as its model is byte-level BPE that the compiled encoder covers.

What must hold: a BPE model with a token for each byte that text can have and without drop-out, prefixes and suffixes; no
normalizer or NFC; GPT-2's pre-tokenizer, or a regular expression or a sequence of them that is known; added tokens that are
matched as they are written. Everything else in the file (post-processor, decoder, truncation, padding) does not change ids here.
A file that differs is not wrong: its own library encodes it.

A file with byte fallback (Llama 2, Gemma, Phi-3) was made from a SentencePiece model, and stays with the library. Its merges have
an order of their own where SentencePiece goes by the scores of the results and then from the left, so the compiled SentencePiece
encoder would not do: of Gemma 3's pieces, 1,230 cuts that overlap come in another order.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lt_preprocess.tokenizers import end_of_document, split_patterns
from lt_preprocess.tokenizers.files import gpt2_files, json_files
from lt_preprocess.tokenizers.vocabulary import (
    AddedToken,
    Unrecognised,
    Vocabulary,
    token_bytes,
)
from lt_shared.console import BadData
from lt_shared.tokenizer_files import TokenizerFiles
from lt_shared.tokenizers.byte_symbols import BYTE_OF_SYMBOL

MOST_GROWTH = 1000
NOT_IN_UTF8 = frozenset([0xC0, 0xC1, *range(0xF5, 0x100)])
"""Bytes that no text has. GPT-NeoX's vocabulary has no tokens for them."""


def read(files: TokenizerFiles) -> Vocabulary:
    """Raises Unrecognised for what only the library covers, BadData for a file that is malformed."""
    path = files.files[0]
    content = json_files.read_object(path)
    try:
        return _read(path, content, files.companions)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Unrecognised(f"{type(error).__name__} {error}") from None


def _read(path: Path, content: dict[str, Any], companions: Sequence[Path]) -> Vocabulary:
    model = content["model"]
    _check_model(model)
    regex = _splits(content["pre_tokenizer"])
    code = split_patterns.code(regex)
    if code == split_patterns.NOT_COMPILED:
        raise Unrecognised("it cuts text by a pattern that is not compiled")
    ids = json_files.check_ids(path, model["vocab"])
    missing = {byte for symbol, byte in BYTE_OF_SYMBOL.items() if symbol not in ids}
    if not missing <= NOT_IN_UTF8:
        raise Unrecognised(f"{len(missing)} bytes have no token")
    tokens = token_bytes(ids)
    added = _added_tokens(content.get("added_tokens") or [], ids)
    numbers = ids | {token.content: token.id for token in added}
    added_ids = {token.id for token in added}
    return Vocabulary(
        code,
        gpt2_files.byte_ids(ids),
        _merges(path, model["merges"], ids),
        whole_pieces={tokens[number]: number for number in ids.values() if len(tokens[number]) > 1} if _whole(model) else {},
        vocab_size=max(numbers.values()) + 1,
        eod=end_of_document_id(path, numbers, {token.content for token in added if token.is_special}, companions),
        regex=regex if isinstance(regex, str) else "",
        tokens={number: token for number, token in tokens.items() if number not in added_ids},
        added_tokens=tuple(added),
        is_nfc=_is_nfc(content.get("normalizer")),
    )


def _whole(model: dict[str, Any]) -> bool:
    return bool(model.get("ignore_merges"))


def _check_model(model: dict[str, Any]) -> None:
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        raise Unrecognised(f"its model is {model.get('type', 'not named')}")
    if model.get("byte_fallback"):
        raise Unrecognised("it was made from a SentencePiece model; the tokenizer.model that it was made from would be compiled")
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


def _is_nfc(normalizer: dict[str, Any] | None) -> bool:
    if normalizer is None:
        return False
    steps = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    kinds = [step["type"] for step in steps]
    if any(kind != "NFC" for kind in kinds):
        raise Unrecognised(f"it normalizes text by {', '.join(kinds)}")
    return bool(kinds)


def _splits(pre_tokenizer: dict[str, Any] | None) -> str | tuple[str, ...]:
    """The pattern of GPT-2's pre-tokenizer, or those of the splits before a ByteLevel, which spells bytes as symbols."""
    if pre_tokenizer is None:
        raise Unrecognised("it does not cut text into words")
    steps = pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    *before, last = steps
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        raise Unrecognised("it is not byte-level, or adds a space before text")
    patterns = tuple(_split(step) for step in before) + ((split_patterns.GPT2,) if last.get("use_regex", True) else ())
    if None in patterns or not patterns:
        raise Unrecognised(f"it cuts text by {', '.join(step['type'] for step in steps)}")
    known = tuple(pattern for pattern in patterns if pattern is not None)
    return known[0] if len(known) == 1 else known


def _split(step: dict[str, Any]) -> str | None:
    """The pattern by which one step cuts text; None for steps that are not known.

    Whatever a pattern leaves out would be a piece, or dropped; only those of sequences leave anything out, and they isolate.
    """
    if step["type"] == "Digits":
        return r"\p{N}" if step["individual_digits"] else None
    if step["type"] != "Split" or "Regex" not in step["pattern"]:
        return None
    pattern = str(step["pattern"]["Regex"])
    isolates = (step["behavior"], step["invert"]) == ("Isolated", False)
    keeps_all = (step["behavior"], step["invert"]) == ("Removed", True) and split_patterns.code(
        pattern
    ) != split_patterns.NOT_COMPILED
    return pattern if isolates or keeps_all else None


def _merges(path: Path, merges: list[Any], ids: dict[str, int]) -> npt.NDArray[np.int64]:
    """The library writes a merge as a pair, and wrote it as "left right" before."""
    pairs = [merge.split(" ") for merge in merges] if merges and isinstance(merges[0], str) else merges
    try:
        return gpt2_files.merge_table(pairs, range(len(pairs)), ids)
    except KeyError as token:
        raise BadData(f"{path}: the model merges {token}, which is not in its vocabulary") from None


def _added_tokens(listed: list[dict[str, Any]], ids: dict[str, int]) -> list[AddedToken]:
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
        minds_surroundings = token["lstrip"] or token["rstrip"] or token["single_word"]
        added.append(AddedToken(content, number, token["special"], token["normalized"], minds_surroundings))
    return added


def end_of_document_id(path: Path, ids: dict[str, int], special: Collection[str], companions: Sequence[Path]) -> int | None:
    """Of the `eos_token` of the configuration beside the file and the usual names, the one that ends documents."""
    eos_token = json_files.eos_token(companions)
    if eos_token is not None and eos_token not in ids:
        raise BadData(f"{path.parent / 'tokenizer_config.json'}: eos_token {eos_token} is not in the vocabulary")
    name = end_of_document.choose(eos_token, special) or end_of_document.choose(None, ids)
    return None if name is None else ids[name]
