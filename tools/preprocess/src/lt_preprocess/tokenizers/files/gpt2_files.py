"""GPT-2's two files: `vocab.json` (token to id) and `merges.txt` (pairs in the order of their ranks; ids need not follow it)."""

import operator
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lt_preprocess.tokenizers import pattern_codes, split_patterns
from lt_preprocess.tokenizers.files import json_files
from lt_preprocess.tokenizers.vocabulary import AddedToken, Vocabulary, table, token_bytes
from lt_shared.console import BadData
from lt_shared.tokenizers.byte_symbols import BYTE_OF_SYMBOL, SYMBOL_OF_BYTE
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

END_OF_TEXT = "<|endoftext|>"


def read(files: TokenizerFiles) -> Vocabulary:
    """Raises BadData when a file is malformed, or its configuration says that it is another model's."""
    vocabulary_path, merges_path = files.files
    check_class(files)
    ids = json_files.check_ids(vocabulary_path, json_files.read_object(vocabulary_path))
    missing = [f"0x{byte:02X}" for symbol, byte in BYTE_OF_SYMBOL.items() if symbol not in ids]
    if missing:
        raise BadData(f"{vocabulary_path}: no token for byte {missing[0]} ({len(missing)} bytes have none): not byte-level BPE")
    end_of_text = ids.get(END_OF_TEXT)
    return Vocabulary(
        pattern_codes.GPT2,
        byte_ids(ids),
        _read_merges(merges_path, ids),
        whole_pieces={},
        vocab_size=max(ids.values()) + 1,
        eod=end_of_text,
        regex=split_patterns.GPT2,
        tokens=token_bytes(ids),
        added_tokens=() if end_of_text is None else (AddedToken(END_OF_TEXT, end_of_text, is_special=True),),
    )


def merge_table(pairs: Sequence[Sequence[str]], ranks: Sequence[int], ids: dict[str, int]) -> npt.NDArray[np.int64]:
    """The merges of pairs of tokens that are all in the vocabulary."""
    lefts, rights = [left for left, _ in pairs], [right for _, right in pairs]
    columns = (lefts, rights, map(operator.add, lefts, rights))
    left_ids, right_ids, merged_ids = (np.fromiter(map(ids.__getitem__, column), np.int64, len(lefts)) for column in columns)
    return table(left_ids, right_ids, ranks, merged_ids)


def byte_ids(ids: dict[str, int]) -> npt.NDArray[np.int32]:
    """Return the bytes' ids, int32 [256]; 0 for bytes without an id, which must not occur in text."""
    return np.array([ids.get(symbol, 0) for symbol in SYMBOL_OF_BYTE], np.int32)


def check_class(files: TokenizerFiles) -> None:
    """Other models use the same two files with another pre-tokenizer; their configuration says so."""
    name = json_files.configuration(files.companions).get("tokenizer_class")
    if isinstance(name, str) and not name.startswith("GPT2"):
        raise BadData(
            f"{files.directory / 'tokenizer_config.json'}: tokenizer class {name}, which may cut text otherwise than GPT-2",
            "use its tokenizer.json instead; AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers makes one",
        )


def merges_of(path: Path, ids: dict[str, int]) -> list[list[str]]:
    """The pairs of a merges.txt in their order. Raises BadData for a malformed one."""
    return [[*pair] for pair, _ in _numbered_merges(path, ids)]


def _read_merges(path: Path, ids: dict[str, int]) -> npt.NDArray[np.int64]:
    numbered = _numbered_merges(path, ids)
    return merge_table([pair for pair, _ in numbered], [number for _, number in numbered], ids)


def _numbered_merges(path: Path, ids: dict[str, int]) -> list[tuple[tuple[str, str], int]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise BadData(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from None
    numbered: list[tuple[tuple[str, str], int]] = []
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
        numbered.append(((left, right), number))
    return numbered
