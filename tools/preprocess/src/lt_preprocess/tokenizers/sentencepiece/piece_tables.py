"""A SentencePiece BPE model as compiled code reads it.

A symbol is a number: a piece that takes part in merging, best score first, or `len(ids)` plus the code point for a character that
is no piece. Two neighbours merge when their texts together are a piece, so the pair table holds each way to cut each piece into
two symbols: one integer of 64 bits for left, right and result, 59,000 of them in 1 MiB for Mistral's 32,000 pieces.

Pieces also say which characters can never be parts of one symbol: those that are neighbours inside no piece. `classes` numbers
the characters that stand inside pieces of several characters and `neighbours` is a bit matrix over these numbers. In a model with
more than 1,023 such characters several share a number: then some pairs look possible that are not, never the reverse.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.kernels.jit import inlined, kernel
from lt_preprocess.tokenizers import token_trie
from lt_preprocess.tokenizers.token_trie import TokenTrie
from lt_shared.tokenizers.sentencepiece_proto import NORMAL, SPACE, UNKNOWN, USER_DEFINED, SentencePieceModel

Bytes = npt.NDArray[np.uint8]
Shorts = npt.NDArray[np.uint16]
Words = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int32]
Integers = npt.NDArray[np.int64]

CODE_POINTS = 0x110000
NO_MERGE = -1
ASCII_CODES = 128

_FILTER_BITS = 1 << 19
_FILTER_SHIFT = np.uint64(64 - 19)

_MAX_CLASSES = 1024
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_SYMBOL_BITS = np.uint64(21)
_RESULT_BITS = np.uint64(22)
_RESULT = np.uint64((1 << 22) - 1)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HASH_SHIFT = np.uint64(32)


class Tables(NamedTuple):
    """Shared by all threads. A space and U+2581 are the same character here.

    `ids`, `ranks` int32 [pieces]: the id of a symbol, and its rank in the order of merging (pieces with equal scores share one).
    `pairs` uint64 [slots]. `pair_filter` uint64: a bit for the hash of each pair; these 64 KiB answer for most pairs that do not
    merge. `ascii_pairs` int32 [128 * 128]: what two characters become. `symbols` int32 and `classes` uint16 [code points]: the
    symbol of a character, and its class (0: it stands alone). `neighbours` uint64: bit `left << class_bits | right`. `byte_ids`
    int32 [256], or [0] when characters that the model does not know are the one id `unknown`. `user_defined` finds
    user-defined pieces, `user_defined_ids` int32 [user-defined pieces] are their ids.
    """

    ids: Ids
    ranks: Ids
    pairs: Words
    pair_filter: Words
    ascii_pairs: Ids
    symbols: Ids
    classes: Shorts
    class_bits: int
    neighbours: Words
    byte_ids: Ids
    unknown: int
    dummy_prefix: bool
    user_defined: TokenTrie
    user_defined_ids: Ids


def build(model: SentencePieceModel) -> Tables:
    normal = [
        (piece.text, piece.score, number)
        for number, piece in enumerate(model.pieces)
        if piece.type == NORMAL and " " not in piece.text
    ]
    normal.sort(key=lambda entry: -entry[1])
    texts = [text for text, _, _ in normal]
    ids = np.array([number for _, _, number in normal], np.int32)
    ranks = np.unique([-score for _, score, _ in normal], return_inverse=True)[1].astype(np.int32)
    symbols = np.arange(len(texts), len(texts) + CODE_POINTS, dtype=np.int32)
    for symbol, text in enumerate(texts):
        if len(text) == 1:
            symbols[ord(text)] = symbol
    symbols[ord(" ")] = symbols[ord(SPACE)]
    classes, class_bits, neighbours = _build_neighbours(texts)
    user_defined = {piece.text: number for number, piece in enumerate(model.pieces) if piece.type == USER_DEFINED}
    unknown = next(number for number, piece in enumerate(model.pieces) if piece.type == UNKNOWN)
    return Tables(
        ids,
        ranks,
        *_build_pairs(texts, symbols),
        symbols,
        classes,
        class_bits,
        neighbours,
        np.array(model.byte_ids if model.byte_fallback else [], np.int32),
        unknown,
        model.add_dummy_prefix,
        token_trie.build([text.encode() for text in user_defined], {ord(" "): SPACE.encode()}),
        np.array([*user_defined.values()], np.int32),
    )


def _build_pairs(texts: list[str], symbols: Ids) -> tuple[Words, Words, Ids]:
    symbol_of = {text: symbol for symbol, text in enumerate(texts)}
    rows = []
    for symbol, text in enumerate(texts):
        for cut in range(1, len(text)):
            left = symbol_of.get(text[:cut], -1) if cut > 1 else int(symbols[ord(text[0])])
            right = symbol_of.get(text[cut:], -1) if cut < len(text) - 1 else int(symbols[ord(text[-1])])
            if left >= 0 and right >= 0:
                rows.append((left, right, symbol))
    slots = 1 << max(4, (2 * len(rows) - 1).bit_length())
    pairs = np.full(slots, _EMPTY, np.uint64)
    pair_filter = np.zeros(_FILTER_BITS // 64, np.uint64)
    _fill_pairs(pairs, pair_filter, np.array(rows, np.int64).reshape(-1, 3))
    code_of = {int(symbols[code]): code for code in range(ASCII_CODES)}
    ascii_pairs = np.full(ASCII_CODES * ASCII_CODES, NO_MERGE, np.int32)
    for left, right, symbol in rows:
        if left in code_of and right in code_of:
            ascii_pairs[code_of[left] * ASCII_CODES + code_of[right]] = symbol
    return pairs, pair_filter, ascii_pairs


@inlined
def _pair_slot(key: np.uint64, slots: int) -> int:
    product = key * _MULTIPLIER
    return int(np.int64((product >> _HASH_SHIFT) & np.uint64(slots - 1)))


@inlined
def _filter_bit(key: np.uint64) -> int:
    return int(np.int64((key * _MULTIPLIER) >> _FILTER_SHIFT))


@kernel
def _fill_pairs(pairs: Words, pair_filter: Words, rows: Integers) -> None:
    """Enter left symbol (21 bits), right symbol (21) and resulting symbol (22) of each row. The slots are a power of two."""
    for row in range(len(rows)):
        key = np.uint64(rows[row, 0]) << _SYMBOL_BITS | np.uint64(rows[row, 1])
        slot = _pair_slot(key, len(pairs))
        while pairs[slot] != _EMPTY:
            slot = (slot + 1) & (len(pairs) - 1)
        pairs[slot] = key << _RESULT_BITS | np.uint64(rows[row, 2])
        bit = _filter_bit(key)
        pair_filter[bit >> 6] |= np.uint64(1) << np.uint64(bit & 63)


@inlined
def find_merge(tables: Tables, left: int, right: int) -> int:
    """The symbol that two neighbours become, or NO_MERGE."""
    key = np.uint64(left) << _SYMBOL_BITS | np.uint64(right)
    bit = _filter_bit(key)
    if not (tables.pair_filter[bit >> 6] >> np.uint64(bit & 63)) & np.uint64(1):
        return NO_MERGE
    pairs = tables.pairs
    slot = _pair_slot(key, len(pairs))
    while True:
        found = pairs[slot]
        if found >> _RESULT_BITS == key:
            return int(np.int64(found & _RESULT))
        if found == _EMPTY:
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
