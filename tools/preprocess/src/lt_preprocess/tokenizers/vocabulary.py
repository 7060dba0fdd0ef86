"""BPE vocabularies, byte-level or with byte fallback, reduced to the tables of the encoder.

The tables hold the bytes' ids, and for pairs that merge the rank and the merged id. Files that list merges give the merges'
ranks. In files that rank tokens (tiktoken, Tekken), any two neighbours whose bytes together are a token merge, the lowest rank
first, and a piece that is itself a token stays whole. Llama 3's 280,147 pairs are all ways to split its 128,000 tokens in two.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lt_shared.tokenizers.byte_symbols import BYTE_OF_SYMBOL


class Unrecognised(Exception):
    """A well-formed tokenizer that the compiled encoder does not cover; the message names the unknown part."""


class AddedToken(NamedTuple):
    """A token that is looked for in the text before it is cut into pieces.

    A special one only when the user says so. A normalized one is looked for in the normalized text. One that strips takes the
    white space before or after it along. A single word is matched only between words.
    """

    content: str
    id: int
    is_special: bool
    is_normalized: bool = False
    strips_left: bool = False
    strips_right: bool = False
    is_single_word: bool = False


MOST_PIECES = (1 << 21) - 0x110000
"""So many that 21 bits number them and all characters, for the tokenizers that merge characters."""

NO_PREFIX, PREFIX, PREFIX_BEFORE_TEXT, PREFIX_FIRST = range(4)
"""Where a space is added: nowhere; before each text between added tokens; before each such text that does not begin with a space;
or before such a text only if it begins its document and does not begin with a space."""


MergeRows = npt.NDArray[np.int64]


class ListedMerges:
    """Merges of a file, looked up in its vocabulary when the first encoder is made; the file's content is released then.

    Gemma 3's 515,000 take 0.7 s. A short run does not need them, because it encodes in the library.
    """

    def __init__(self, look_up: Callable[[], MergeRows]):
        self._look_up: Callable[[], MergeRows] | None = look_up
        self._rows: MergeRows = np.zeros((0, 4), np.int64)

    def rows(self) -> MergeRows:
        if self._look_up is not None:
            self._rows, self._look_up = self._look_up(), None
        return self._rows


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Tables for the encoder.

    `byte_ids` int32 [256]; `merges` has the rows int64 [merges, 4] with the columns left id, right id, rank, merged id;
    `whole_pieces` are the tokens that a piece becomes without merging, by id. `vocab_size` counts the whole id space, special
    tokens included.
    `pattern` is a code of `pretokenizer` for `regex`, or `split_patterns.NOT_COMPILED`. `tokens` has the bytes of all ids except
    `added_tokens`. With `is_nfc`, texts are converted to Unicode's normal form C first. `cache_key` identifies it in
    `vocabulary_cache`, "" when it does not come from there.

    With `pattern` BYTE_FALLBACK, characters are merged, not bytes: `byte_ids` stand for a character that is no token (-1 for
    bytes that no text has), `tokens` has every token of the model as the file spells it, and `space_prefix` is one of the four
    above. `strips_prefix`: decoding takes a space from the start.
    """

    pattern: int
    byte_ids: npt.NDArray[np.int32]
    merges: MergeRows | ListedMerges
    whole_pieces: Mapping[bytes, int]
    vocab_size: int
    eod: int | None
    regex: str = ""
    tokens: Mapping[int, bytes] = dataclasses.field(default_factory=dict)
    added_tokens: tuple[AddedToken, ...] = ()
    is_nfc: bool = False
    space_prefix: int = NO_PREFIX
    strips_prefix: bool = False
    cache_key: str = ""

    @property
    def merge_rows(self) -> MergeRows:
        """Raises BadData for a merge of tokens that the vocabulary does not have."""
        return self.merges.rows() if isinstance(self.merges, ListedMerges) else self.merges


def token_bytes(tokens: Mapping[str, int]) -> dict[int, bytes]:
    """Return the bytes by id for tokens spelled in GPT-2's symbols; a token with another character is its UTF-8."""
    numbers = {ord(symbol): byte for symbol, byte in BYTE_OF_SYMBOL.items()}
    # Characters beyond the symbols keep their number, which is no byte.
    to_latin = str.maketrans(numbers | {point: 0x100 for point in range(0x100) if point not in numbers})
    return {number: _latin(token.translate(to_latin), token) for token, number in tokens.items()}


def _latin(translated: str, token: str) -> bytes:
    try:
        return translated.encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


Column = Sequence[int] | npt.NDArray[np.int64]


def table(left: Column, right: Column, ranks: Column, merged: Column) -> npt.NDArray[np.int64]:
    """Merges in the shape that `Vocabulary` takes. Of several for one pair the last counts."""
    columns = [np.array(column, np.int64) for column in (left, right, ranks, merged)]
    pairs = np.sort(columns[0] << 32 | columns[1])
    if not (pairs[1:] == pairs[:-1]).any():
        return np.stack(columns, axis=1)
    rows = np.stack(columns, axis=1)[::-1]
    _, first = np.unique(rows[:, 0] << 32 | rows[:, 1], return_index=True)
    return np.ascontiguousarray(rows[np.sort(first)][::-1])


def from_ranks(ranks: dict[bytes, int], pattern: int, special_tokens: int, eod: int | None) -> Vocabulary:
    """A vocabulary with tiktoken's meaning of ranks; ids for `special_tokens` special tokens follow the highest rank."""
    lefts: list[int] = []
    rights: list[int] = []
    merged: list[int] = []
    find = ranks.get
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            if (left := find(token[:cut])) is not None and (right := find(token[cut:])) is not None:
                lefts.append(left)
                rights.append(right)
                merged.append(rank)
    byte_ids = np.array([ranks[bytes([byte])] for byte in range(256)], np.int32)
    return Vocabulary(
        pattern,
        byte_ids,
        table(lefts, rights, merged, merged),
        whole_pieces={token: rank for token, rank in ranks.items() if len(token) > 1},
        vocab_size=max(ranks.values()) + 1 + special_tokens,
        eod=eod,
        tokens={rank: token for token, rank in ranks.items()},
    )
