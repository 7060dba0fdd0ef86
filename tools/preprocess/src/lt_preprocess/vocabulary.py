"""Byte-level BPE vocabularies, read from GPT-2's two files or from a tiktoken file.

A vocabulary is reduced to what the encoder needs: the id of each byte, and for each pair of ids that merges its rank and the id
it becomes. GPT-2's files list the merges in order of rank, and ids need not follow that order. A tiktoken file lists tokens: the
rank is the id, any two neighbours whose bytes together are a token merge, and a piece that is itself a token stays whole.
Llama 3's 280,147 pairs are all ways to split its 128,000 tokens in two.
"""

import base64
import binascii
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lt_preprocess import pretokenizer
from lt_shared.console import BadData
from lt_shared.tokenizer_files import TokenizerFiles

LLAMA3_RANKS = 128_000
LLAMA3_SPECIAL_TOKENS = 256
END_OF_TEXT = "<|endoftext|>"


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Tables for the encoder.

    `byte_ids` int32 [256]; `merges` int64 [merges, 4] with the columns left id, right id, rank, merged id; `whole_pieces` are the
    tokens that a piece becomes without merging, by id. `vocab_size` counts the whole id space, special tokens included.
    """

    pattern: int
    byte_ids: npt.NDArray[np.int32]
    merges: npt.NDArray[np.int64]
    whole_pieces: dict[bytes, int]
    vocab_size: int
    eod: int | None


def load(files: TokenizerFiles) -> Vocabulary:
    """Read the vocabulary of a tokenizer of kind "gpt2" or "tiktoken". Raises BadData when it is malformed or not supported."""
    return _read_gpt2(files) if files.kind == "gpt2" else _read_tiktoken(files.files[0])


def _symbols() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself where it prints, else the next character from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


def _read_gpt2(files: TokenizerFiles) -> Vocabulary:
    vocabulary_path, merges_path = files.files
    _check_class(files)
    ids = _read_ids(vocabulary_path)
    missing = [f"0x{byte:02X}" for symbol, byte in _symbols().items() if symbol not in ids]
    if missing:
        raise BadData(f"{vocabulary_path}: no token for byte {missing[0]} ({len(missing)} bytes have none): not byte-level BPE")
    byte_ids = np.zeros(256, np.int32)
    for symbol, byte in _symbols().items():
        byte_ids[byte] = ids[symbol]
    merges = _read_merges(merges_path, ids)
    return Vocabulary(pretokenizer.GPT2, byte_ids, merges, {}, max(ids.values()) + 1, ids.get(END_OF_TEXT))


def _check_class(files: TokenizerFiles) -> None:
    """Other models use the same two files with another pre-tokenizer; their configuration says so."""
    for path in files.companions:
        if path.name == "tokenizer_config.json":
            name = _read_json(path).get("tokenizer_class")
            if isinstance(name, str) and not name.startswith("GPT2"):
                raise BadData(
                    f"{path}: tokenizer class {name}, which may cut text otherwise than GPT-2", "use its tokenizer.json instead"
                )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadData(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadData(f"{path}: not a JSON object")
    return content


def _read_ids(path: Path) -> dict[str, int]:
    ids = _read_json(path)
    for token, number in ids.items():
        if type(number) is not int or not 0 <= number < 2**31:
            raise BadData(f"{path}: token {token!r} has id {number!r}")
    if len(set(ids.values())) < len(ids):
        raise BadData(f"{path}: several tokens share an id")
    return ids


def _read_merges(path: Path, ids: dict[str, int]) -> npt.NDArray[np.int64]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise BadData(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from None
    merges: dict[tuple[int, int], tuple[int, int]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        parts = line.rstrip("\r").split(" ")
        if len(parts) != 2:
            raise BadData(f"{path}, line {number}: {line[:40]!r} is not a pair of symbols")
        left, right = parts
        for symbol in (left, right, left + right):
            if symbol not in ids:
                raise BadData(f"{path}, line {number}: {symbol!r} is not in the vocabulary")
        merges[ids[left], ids[right]] = (number, ids[left + right])
    return _table([(*pair, *target) for pair, target in merges.items()])


def _table(rows: list[tuple[int, int, int, int]]) -> npt.NDArray[np.int64]:
    return np.array(rows, np.int64).reshape(-1, 4)


def _read_tiktoken(path: Path) -> Vocabulary:
    ranks = read_ranks(path)
    if len(ranks) != LLAMA3_RANKS or max(ranks.values()) != LLAMA3_RANKS - 1:
        raise BadData(
            f"{path}: a tiktoken file of {len(ranks):,} entries; only Llama 3's (128,000) is known, "
            "and the file does not say how text is cut",
            "use the tokenizer.json of that model",
        )
    return from_ranks(ranks, pretokenizer.LLAMA3, LLAMA3_SPECIAL_TOKENS, eod=LLAMA3_RANKS + 1)


def read_ranks(path: Path) -> dict[bytes, int]:
    """The tokens of a tiktoken file and their ranks. Raises BadData for a malformed line or a byte without a token."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise BadData(f"{path}, line {number}: {line[:40]!r} is not a base64 token and a rank") from None
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise BadData(f"{path}: no token for byte 0x{missing[0]:02X} ({len(missing)} bytes have none)", "is the file truncated?")
    if len(set(ranks.values())) < len(ranks):
        raise BadData(f"{path}: several tokens share a rank")
    return ranks


def from_ranks(ranks: dict[bytes, int], pattern: int, special_tokens: int, eod: int | None) -> Vocabulary:
    """A vocabulary with tiktoken's meaning of ranks; the special tokens follow the highest rank."""
    merges: list[tuple[int, int, int, int]] = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = ranks.get(token[:cut]), ranks.get(token[cut:])
            if left is not None and right is not None:
                merges.append((left, right, rank, rank))
    byte_ids = np.array([ranks[bytes([byte])] for byte in range(256)], np.int32)
    whole_pieces = {token: rank for token, rank in ranks.items() if len(token) > 1}
    return Vocabulary(pattern, byte_ids, _table(merges), whole_pieces, max(ranks.values()) + 1 + special_tokens, eod)
