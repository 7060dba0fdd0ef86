"""Hugging Face's `tokenizer.json`, as far as its model is BPE that a compiled encoder covers.

This module reads byte-level BPE; `byte_fallback` reads files with byte fallback (Llama 2, Gemma, Phi-3). Conditions: a BPE model
with a token for every byte that text can have, without drop-out, prefixes and suffixes; no normalizer, or NFC; GPT-2's
pre-tokenizer, or a known regular expression or sequence of expressions; added tokens that match literally. The rest of the file
(post-processor, decoder, truncation, padding) does not change ids here. The tokenizers library encodes files that differ.
"""

from pathlib import Path
from typing import Any

from lt_preprocess.tokenizers import split_patterns
from lt_preprocess.tokenizers.files import byte_fallback, directories, gpt2_files, json_files, json_models
from lt_preprocess.tokenizers.vocabulary import ListedMerges, MergeRows, Unrecognised, Vocabulary, token_bytes
from lt_shared.tokenizers.byte_symbols import BYTE_OF_SYMBOL
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

_MANY_MERGES = 100_000


def read(files: TokenizerFiles) -> Vocabulary:
    """Raises Unrecognised for what only the library covers, BadData for a file that is malformed."""
    path = files.files[0]
    content = directories.additions(files) or json_files.read_object(path)
    try:
        return _read(path, content, files.configuration().eos_token)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Unrecognised(f"{type(error).__name__} {error}") from None


def _read(path: Path, content: dict[str, Any], eos_token: str | None) -> Vocabulary:
    model = content["model"]
    json_models.check_model(model)
    if model.get("byte_fallback"):
        return byte_fallback.read(path, content, eos_token)
    regex = _splits(content["pre_tokenizer"])
    code = split_patterns.code(regex)
    if code == split_patterns.NOT_COMPILED:
        raise Unrecognised("it cuts text by a pattern that is not compiled")
    ids = json_files.check_ids(path, model["vocab"])
    missing = {byte for symbol, byte in BYTE_OF_SYMBOL.items() if symbol not in ids}
    if not missing <= json_models.NOT_IN_UTF8:
        raise Unrecognised(f"{len(missing)} bytes have no token")
    tokens = token_bytes(ids)
    added = json_models.added_tokens(content.get("added_tokens") or [], ids)
    numbers = ids | {token.content: token.id for token in added}
    added_ids = {token.id for token in added}
    return Vocabulary(
        code,
        gpt2_files.byte_ids(ids),
        _merges(path, model["merges"], ids),
        whole_pieces={tokens[number]: number for number in ids.values() if len(tokens[number]) > 1} if _whole(model) else {},
        vocab_size=max(numbers.values()) + 1,
        eod=json_models.end_of_document_id(path, numbers, {token.content for token in added if token.is_special}, eos_token),
        regex=regex if isinstance(regex, str) else "",
        tokens={number: token for number, token in tokens.items() if number not in added_ids},
        added_tokens=tuple(added),
        is_nfc=_is_nfc(content.get("normalizer")),
    )


def _merges(path: Path, listed: list[Any], ids: dict[str, int]) -> MergeRows | ListedMerges:
    if len(listed) < _MANY_MERGES:
        return json_models.merges(path, listed, ids)
    return ListedMerges(lambda: json_models.merges(path, listed, ids))


def _whole(model: dict[str, Any]) -> bool:
    return bool(model.get("ignore_merges"))


def _is_nfc(normalizer: dict[str, Any] | None) -> bool:
    kinds = [step["type"] for step in json_models.steps(normalizer, "normalizers")]
    if any(kind != "NFC" for kind in kinds):
        raise Unrecognised(f"it normalizes text by {', '.join(kinds)}")
    return bool(kinds)


def _splits(pre_tokenizer: dict[str, Any] | None) -> str | tuple[str, ...]:
    """Return GPT-2's pattern, or the patterns of the Split steps before ByteLevel, which spells bytes as symbols."""
    if pre_tokenizer is None:
        raise Unrecognised("it does not cut text into words")
    steps = json_models.steps(pre_tokenizer, "pretokenizers")
    *before, last = steps
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        raise Unrecognised("it is not byte-level, or adds a space before text")
    patterns = tuple(_split(step) for step in before) + ((split_patterns.GPT2,) if last.get("use_regex", True) else ())
    if None in patterns or not patterns:
        raise Unrecognised(f"it cuts text by {', '.join(step['type'] for step in steps)}")
    compiled_patterns = tuple(pattern for pattern in patterns if pattern is not None)
    return compiled_patterns[0] if len(compiled_patterns) == 1 else compiled_patterns


def _split(step: dict[str, Any]) -> str | None:
    """Return the pattern that one step cuts text by; None for an unknown step.

    Text that the pattern does not match becomes a piece (Isolated) or is dropped (Removed, inverted). So a step that drops is
    accepted only with a compiled pattern, because compiled patterns match all text.
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
