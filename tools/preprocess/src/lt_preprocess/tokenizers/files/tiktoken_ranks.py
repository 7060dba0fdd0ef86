"""Files that list ranks: Tekken's, and tiktoken's lines of a base64 token and its rank, which is its id.

A tiktoken file has neither the split pattern nor the special tokens. The Python code beside it has the pattern
(`pattern_source`), `tokenizer_config.json` the special tokens (`added_tokens_decoder`). Without these files, both are known for
ranks with a known hash (`known_ranks`). The number of ranks decides nothing: several tokenizers have 128,000.
"""

import binascii
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lt_preprocess.tokenizers import end_of_document, pattern_codes, split_patterns, vocabulary
from lt_preprocess.tokenizers.files import json_files, known_ranks, pattern_source
from lt_preprocess.tokenizers.files.known_ranks import Model
from lt_preprocess.tokenizers.vocabulary import AddedToken, Vocabulary
from lt_shared.console import BadData
from lt_shared.tokenizers import tekken
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

_RESERVED_BY_KIMI = 256


def read(files: TokenizerFiles) -> Vocabulary:
    """Raises BadData for a malformed file, and if the split pattern or the special tokens are unknown."""
    ranks = read_ranks(files.files[0])
    model = known_ranks.find(ranks, files.files[0].name)
    sources = [source.read_text(encoding="utf-8", errors="replace") for source in files.files[1:]]
    added = _special_tokens(files, ranks, model)
    if added is None:
        raise _unknown(files, len(ranks))
    regex = _regex(files, sources, model, len(ranks))
    if split_patterns.code(regex) == pattern_codes.KIMI:
        added = _with_reserved(added, max(ranks.values()) + 1)
    is_nfc = any("normalize(" in source and "NFC" in source for source in sources) if sources else bool(model and model.is_nfc)
    eos_token = json_files.eos_token(files.companions) or (model.end_of_document if model else None)
    eod = end_of_document.choose(eos_token, {token.content for token in added if token.is_special})
    return _with_added_tokens(ranks, added, regex, eod, is_nfc)


def _special_tokens(files: TokenizerFiles, ranks: dict[bytes, int], model: Model | None) -> list[AddedToken] | None:
    """Return the special tokens of the configuration and of a known file; None if neither lists any and there is no code."""
    decoder = json_files.configuration(files.companions).get("added_tokens_decoder")
    if model is None and len(files.files) == 1:
        return None
    listed = _listed_tokens(files, decoder) if decoder or model is None else []
    listed_keys = {token.content for token in listed} | {token.id for token in listed}
    model_tokens = model.special_tokens(max(ranks.values()) + 1) if model else {}
    return [
        *(AddedToken(name, number, True) for name, number in model_tokens.items() if not {name, number} & listed_keys),
        *listed,
    ]


def _regex(files: TokenizerFiles, sources: Sequence[str], model: Model | None, count: int) -> str:
    """Return the pattern that the code states, else the pattern of the known ranks file."""
    try:
        stated = pattern_source.find(sources, split_patterns.TIKTOKEN_SPELLINGS)
    except pattern_source.Unclear as reason:
        raise BadData(
            f"{files.files[1]}: this code says how text is cut, but {reason}", "use the tokenizer.json of that model"
        ) from None
    if stated is None and model is not None:
        return model.regex
    if stated not in split_patterns.TIKTOKEN_SPELLINGS:
        raise _unknown(files, count)
    return split_patterns.TIKTOKEN_SPELLINGS[stated]


def _unknown(files: TokenizerFiles, count: int) -> BadData:
    beside = files.directory / "tokenizer.json"
    code = next(files.directory.glob("tokenization_*.py"), None)
    if beside.is_file():
        hint = f"--tokenizer {beside}"
    elif code is not None:
        hint = f"use the tokenizer.json of that model: how {code.name} cuts text is not known"
    else:
        hint = "use the tokenizer.json of that model, or put its tokenization_*.py and tokenizer_config.json beside the file"
    return BadData(
        f"{files.files[0]}: a tiktoken file of {count:,} entries; only those of {known_ranks.names()} are known "
        "by their content, and the file does not say how text is cut",
        hint,
    )


def _listed_tokens(files: TokenizerFiles, decoder: Any) -> list[AddedToken]:
    if not isinstance(decoder, dict) or not decoder:
        raise BadData(
            f"{files.files[0]}: no tokenizer_config.json beside it lists the special tokens (added_tokens_decoder)",
            "use the tokenizer.json of that model",
        )
    try:
        return [AddedToken(str(token["content"]), int(number), bool(token["special"])) for number, token in decoder.items()]
    except (ValueError, TypeError, KeyError):
        raise BadData(f"{files.directory / 'tokenizer_config.json'}: added_tokens_decoder is malformed") from None


def _with_reserved(added: list[AddedToken], first: int) -> list[AddedToken]:
    """Kimi's code reserves the ids after the ranks that its configuration does not name."""
    named = {token.id for token in added}
    free = (number for number in range(first, first + _RESERVED_BY_KIMI) if number not in named)
    return [*added, *(AddedToken(known_ranks.reserved(number), number, True) for number in free)]


def read_tekken(files: TokenizerFiles) -> Vocabulary:
    """The vocabulary of a `tekken.json`, whose ranks mean the same. Raises BadData when it is malformed."""
    tekken_file = tekken.read(files.files[0])
    added = [AddedToken(content, number, is_special=True) for number, content in enumerate(tekken_file.special_tokens)]
    return _with_added_tokens(tekken_file.ids, added, tekken_file.pattern, tekken.END_OF_DOCUMENT)


def _with_added_tokens(
    ranks: dict[bytes, int], added: Sequence[AddedToken], regex: str, end_of_document: str | None, is_nfc: bool = False
) -> Vocabulary:
    """A vocabulary of ranks and of added tokens before, among or after them."""
    numbers = {token.content: token.id for token in added}
    plain = vocabulary.from_ranks(ranks, split_patterns.code(regex), 0, numbers.get(end_of_document or ""))
    return dataclasses.replace(
        plain,
        vocab_size=max(plain.vocab_size, *(number + 1 for number in numbers.values())),
        regex=regex,
        added_tokens=tuple(added),
        is_nfc=is_nfc,
    )


def read_ranks(path: Path) -> dict[bytes, int]:
    """The tokens of a tiktoken file and their ranks. Raises BadData for a malformed line or a byte without a token."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[binascii.a2b_base64(token, strict_mode=True)] = int(rank)
        except ValueError:  # binascii.Error is one
            raise BadData(f"{path}, line {number}: {line[:40]!r} is not a base64 token and a rank") from None
    _check_ranks(path, ranks)
    return ranks


def _check_ranks(path: Path, ranks: dict[bytes, int]) -> None:
    """Raises BadData unless every byte has a token and every token a rank of its own, of 31 bits."""
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise BadData(f"{path}: no token for byte 0x{missing[0]:02X} ({len(missing)} bytes have none)", "is the file truncated?")
    outside = next((rank for rank in ranks.values() if not 0 <= rank < 2**31), None)
    if outside is not None:
        raise BadData(f"{path}: rank {outside} is not from 0 to 2,147,483,647")
    if len(set(ranks.values())) < len(ranks):
        raise BadData(f"{path}: several tokens share a rank")
