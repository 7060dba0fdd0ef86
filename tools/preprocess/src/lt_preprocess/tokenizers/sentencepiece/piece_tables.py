"""A BPE model of characters as compiled code reads it: a SentencePiece model, or a list of merges.

A symbol is a number: a piece that takes part in merging, or `len(ids)` plus the code point of a character that is no piece. The
pair table packs a merge's two symbols and number into a 64-bit integer. In a SentencePiece model two neighbours merge if their
texts together are a piece, so the table has an entry for every way to cut a piece into two symbols: 59,000 entries in 1 MiB for
Mistral's 32,000 pieces. Merges are numbered by their results, best score first. A `tokenizer.json` made from such a model lists
the same pairs, but with separate ranks: 1,230 overlapping cuts in Gemma 3's pieces come in another order.

Pieces also show which characters can never share a symbol: characters that are neighbours inside no piece. `classes` numbers the
characters that stand inside pieces of several characters, and `neighbours` is a bit matrix over these numbers. In a model with
more than 1,023 such characters, some share a number. Then an impossible pair may look possible, but never the reverse.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.compiler.jit import inlined, kernel
from lt_preprocess.tokenizers import token_trie, vocabulary_cache
from lt_preprocess.tokenizers.token_trie import TokenTrie
from lt_preprocess.tokenizers.vocabulary import Vocabulary
from lt_shared.tokenizers.sentencepiece_proto import NORMAL, SPACE, UNKNOWN, USER_DEFINED, SentencePieceModel

Bytes = npt.NDArray[np.uint8]
Shorts = npt.NDArray[np.uint16]
Words = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int32]
Integers = npt.NDArray[np.int64]

CODE_POINTS = 0x110000
NO_MERGE = -1
ASCII_CODES = 128

_FILTER_BITS_PER_PAIR = 8

_MAX_CLASSES = 1024
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_SYMBOL_BITS = np.uint64(21)
_NUMBER_BITS = np.uint64(22)
_NUMBER = np.uint64((1 << 22) - 1)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HASH_SHIFT = np.uint64(32)
_TRIE = "user_defined"


class Tables(NamedTuple):
    """Shared by all threads. A space and U+2581 are the same character here.

    `ids` int32 [symbols]: the id of a symbol. `ranks`, `results` int32 [merges]: the rank of a merge in the order of merging
    (SentencePiece's pieces with equal scores share one), and the symbol that it makes. `pairs` uint64 [slots]. `pair_filter`
    uint64, a power of two of bits, indexed by a hash shifted by `filter_shift`: one bit per pair; these 64 KiB (Mistral; Gemma
    512) reject most pairs that do not merge. `ascii_pairs` int32 [128 * 128]: the merge of two characters. `symbols` int32 and
    `classes` uint16 [code points]: the symbol of a character, and its class (0: it stands alone). `neighbours` uint64: bit `left
    << class_bits | right`. `byte_ids` int32 [256]: the ids of single bytes; without byte fallback it is empty, and every unknown
    character has the id `unknown`. `user_defined` finds user-defined pieces, `user_defined_ids` int32 [user-defined pieces] are
    their ids.
    """

    ids: Ids
    ranks: Ids
    results: Ids
    pairs: Words
    pair_filter: Words
    filter_shift: int
    ascii_pairs: Ids
    symbols: Ids
    classes: Shorts
    class_bits: int
    neighbours: Words
    byte_ids: Ids
    unknown: int
    user_defined: TokenTrie
    user_defined_ids: Ids


def build(model: SentencePieceModel) -> Tables:
    """The tables of a SentencePiece model."""
    normal = [
        (piece.text, piece.score, number)
        for number, piece in enumerate(model.pieces)
        if piece.type == NORMAL and " " not in piece.text
    ]
    normal.sort(key=lambda entry: -entry[1])
    texts = [text for text, _, _ in normal]
    symbols = _character_symbols(texts)
    user_defined = {piece.text: number for number, piece in enumerate(model.pieces) if piece.type == USER_DEFINED}
    return _assembled(
        symbols,
        np.array([number for _, _, number in normal], np.int32),
        _cuts(texts, symbols),
        np.unique([-score for _, score, _ in normal], return_inverse=True)[1].astype(np.int32),
        np.arange(len(texts), dtype=np.int32),
        texts,
        np.array(model.byte_ids if model.byte_fallback else [], np.int32),
        next(number for number, piece in enumerate(model.pieces) if piece.type == UNKNOWN),
        user_defined,
    )


def of_merges(vocabulary: Vocabulary) -> Tables:
    """The tables of a list of merges with byte fallback, from the cache on disk when it has them.

    Gemma's 515,000 merges take 2 s to build and 20 ms to read. The cache is one file, 16 MB for Gemma, beside the vocabulary's
    file and with a similar name (`vocabulary_cache`), so a readable file is never out of date.
    """
    path = vocabulary_cache.place("tables", vocabulary.cache_key) if vocabulary.cache_key else None
    if path is None:
        return _build_from_merges(vocabulary)
    with contextlib.suppress(*vocabulary_cache.DAMAGED), np.load(path, allow_pickle=False) as arrays:
        return _unpacked(arrays)
    tables = _build_from_merges(vocabulary)
    vocabulary_cache.publish(path, vocabulary_cache.npz(_packed(tables)))
    return tables


def _build_from_merges(vocabulary: Vocabulary) -> Tables:
    """The tables of a list of merges. Symbols are ids here, so that some stand for no piece."""
    ids = np.arange(1 + max(vocabulary.tokens), dtype=np.int32)
    texts = [""] * len(ids)
    for number, token in vocabulary.tokens.items():
        texts[number] = token.decode()
    rows = vocabulary.merge_rows
    numbered = np.column_stack([rows[:, :2], np.arange(len(rows))])
    merged_texts = [texts[number] for number in np.unique(rows[:, 3]).tolist()]
    ranks, results = rows[:, 2].astype(np.int32), rows[:, 3].astype(np.int32)
    return _assembled(_character_symbols(texts), ids, numbered, ranks, results, merged_texts, vocabulary.byte_ids, NO_MERGE, {})


def _packed(tables: Tables) -> dict[str, Any]:
    fields = tables._asdict()
    trie: TokenTrie = fields.pop(_TRIE)
    return fields | {f"{_TRIE}.{name}": array for name, array in trie._asdict().items()}


def _unpacked(arrays: Any) -> Tables:
    trie = TokenTrie(*(arrays[f"{_TRIE}.{name}"] for name in TokenTrie._fields))
    numbers = {name: int(arrays[name]) for name in ("class_bits", "filter_shift", "unknown")}
    fields: dict[str, Any] = {name: arrays[name] for name in Tables._fields if name not in numbers and name != _TRIE}
    return Tables(**fields | numbers, user_defined=trie)


def _assembled(
    symbols: Ids,
    ids: Ids,
    rows: Integers,
    ranks: Ids,
    results: Ids,
    merged_texts: list[str],
    byte_ids: Ids,
    unknown: int,
    user_defined: Mapping[str, int],
) -> Tables:
    """From rows [merges, 3] of left symbol, right symbol, number; `merged_texts` are the texts of several characters."""
    classes, class_bits, neighbours = _build_neighbours(merged_texts)
    trie = token_trie.build([text.encode() for text in user_defined], {ord(" "): SPACE.encode()})
    return Tables(
        ids,
        ranks,
        results,
        *_build_pairs(rows, symbols),
        symbols,
        classes,
        class_bits,
        neighbours,
        byte_ids,
        unknown,
        trie,
        np.array([*user_defined.values()], np.int32),
    )


def _character_symbols(texts: Sequence[str]) -> Ids:
    symbols = np.arange(len(texts), len(texts) + CODE_POINTS, dtype=np.int32)
    for symbol, text in enumerate(texts):
        if len(text) == 1:
            symbols[ord(text)] = symbol
    symbols[ord(" ")] = symbols[ord(SPACE)]
    return symbols


def _cuts(texts: list[str], symbols: Ids) -> Integers:
    """Each way to cut a piece into two symbols, with the number of the piece."""
    symbol_of = {text: symbol for symbol, text in enumerate(texts)}
    rows = []
    for symbol, text in enumerate(texts):
        for cut in range(1, len(text)):
            left = symbol_of.get(text[:cut], -1) if cut > 1 else int(symbols[ord(text[0])])
            right = symbol_of.get(text[cut:], -1) if cut < len(text) - 1 else int(symbols[ord(text[-1])])
            if left >= 0 and right >= 0:
                rows.append((left, right, symbol))
    return np.array(rows, np.int64).reshape(-1, 3)


def _build_pairs(rows: Integers, symbols: Ids) -> tuple[Words, Words, int, Ids]:
    slots = 1 << max(4, (2 * len(rows) - 1).bit_length())
    pairs = np.full(slots, _EMPTY, np.uint64)
    filter_bits = max(6, (_FILTER_BITS_PER_PAIR * len(rows) - 1).bit_length())
    pair_filter = np.zeros(1 << filter_bits - 6, np.uint64)
    _fill_pairs(pairs, pair_filter, 64 - filter_bits, np.ascontiguousarray(rows))
    code_of = {int(symbols[code]): code for code in range(ASCII_CODES)}
    ascii_pairs = np.full(ASCII_CODES * ASCII_CODES, NO_MERGE, np.int32)
    of_ascii = rows[np.isin(rows[:, :2], [*code_of]).all(axis=1)]
    for left, right, number in of_ascii.tolist():
        ascii_pairs[code_of[left] * ASCII_CODES + code_of[right]] = number
    return pairs, pair_filter, 64 - filter_bits, ascii_pairs


@inlined
def _pair_slot(key: np.uint64, slots: int) -> int:
    product = key * _MULTIPLIER
    return int(np.int64((product >> _HASH_SHIFT) & np.uint64(slots - 1)))


@inlined
def _filter_bit(key: np.uint64, shift: int) -> int:
    return int(np.int64((key * _MULTIPLIER) >> np.uint64(shift)))


@kernel
def _fill_pairs(pairs: Words, pair_filter: Words, filter_shift: int, rows: Integers) -> None:
    """Enter the rows' left symbols (21 bits), right symbols (21) and numbers (22). The number of slots is a power of two."""
    for row in range(len(rows)):
        key = np.uint64(rows[row, 0]) << _SYMBOL_BITS | np.uint64(rows[row, 1])
        slot = _pair_slot(key, len(pairs))
        while pairs[slot] != _EMPTY:
            slot = (slot + 1) & (len(pairs) - 1)
        pairs[slot] = key << _NUMBER_BITS | np.uint64(rows[row, 2])
        bit = _filter_bit(key, filter_shift)
        pair_filter[bit >> 6] |= np.uint64(1) << np.uint64(bit & 63)


@inlined
def find_merge(tables: Tables, left: int, right: int) -> int:
    """The number of the merge of two neighbours, or NO_MERGE."""
    key = np.uint64(left) << _SYMBOL_BITS | np.uint64(right)
    bit = _filter_bit(key, tables.filter_shift)
    if not (tables.pair_filter[bit >> 6] >> np.uint64(bit & 63)) & np.uint64(1):
        return NO_MERGE
    pairs = tables.pairs
    slot = _pair_slot(key, len(pairs))
    while True:
        entry = pairs[slot]
        if entry >> _NUMBER_BITS == key:
            return int(np.int64(entry & _NUMBER))
        if entry == _EMPTY:
            return NO_MERGE
        slot = (slot + 1) & (len(pairs) - 1)


def _build_neighbours(texts: list[str]) -> tuple[Shorts, int, Words]:
    several = [text for text in texts if len(text) > 1]
    characters = sorted(set("".join(several)))
    classes = np.zeros(CODE_POINTS, np.uint16)
    for number, character in enumerate(characters):
        classes[ord(character)] = 1 + number % (_MAX_CLASSES - 1)
    classes[ord(" ")] = classes[ord(SPACE)]
    class_bits = max(3, min(len(characters) + 1, _MAX_CLASSES).bit_length())
    neighbours = np.zeros(1 << (2 * class_bits - 6), np.uint64)
    for pair in {text[at : at + 2] for text in several for at in range(len(text) - 1)}:
        bit = int(classes[ord(pair[0])]) << class_bits | int(classes[ord(pair[1])])
        neighbours[bit >> 6] |= np.uint64(1 << (bit & 63))
    return classes, class_bits, neighbours
