"""Encode texts with the tables of a BPE model of characters, in one compiled function without the GIL.

User-defined pieces are searched first, because sentencepiece never merges them with their neighbours. The text between them is
cut wherever no piece can span the cut (`segments`), so that a segment is mostly a word with the space before it. A segment of
one character has that character's ids; other segments come from the thread's cache, or their characters are merged.
"""

import numpy as np

from lt_preprocess.compiler.jit import AnnounceCompilation, inlined, kernel
from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers.base import Encoder, Flags
from lt_preprocess.tokenizers.sentencepiece.merging import SCRATCH_TOO_SMALL, Scratch, emit, merge
from lt_preprocess.tokenizers.sentencepiece.piece_tables import Bytes, Ids, Integers, Tables
from lt_preprocess.tokenizers.sentencepiece.segment_cache import (
    LONG_BYTES,
    LONG_IDS,
    SHORT_BYTES,
    SHORT_IDS,
    Caches,
    find_long,
    find_short,
    insert_long,
    insert_short,
    long_set,
    long_tag,
    new_caches,
    short_key,
    short_set,
)
from lt_preprocess.tokenizers.sentencepiece.segments import are_neighbours, code_point, segment_end, width
from lt_preprocess.tokenizers.token_trie import longest_match
from lt_preprocess.tokenizers.vocabulary import NO_PREFIX, PREFIX, PREFIX_FIRST
from lt_shared.tokenizers.sentencepiece_proto import SPACE

_BLANK = ord(" ")
_SPACE_MARK = ord(SPACE)
_SPACE_BYTES = (0xE2, 0x96, 0x81)
_SLACK_IDS = 32
_SEGMENT_CHARACTERS = 1 << 12


@inlined
def _encode_segment(
    tables: Tables, caches: Caches, scratch: Scratch, data: Bytes, start: int, end: int, output: Ids, count: int
) -> int:
    size, before = end - start, count
    if size == width(data[start]):
        return emit(tables, tables.symbols[code_point(data, start)], output, count)
    low = high = np.uint64(0)
    set_start = 0
    if size <= SHORT_BYTES:
        low, high = short_key(data, start, end)
        set_start = short_set(low, high)
        count = find_short(caches.short, set_start, low, high, output, count)
    elif size <= LONG_BYTES:
        low = long_tag(data, start, end)
        set_start = long_set(low)
        count = find_long(caches.long, set_start, low, data, start, end, output, count)
    if count > before:
        return count
    count = merge(tables, scratch, data, start, end, False, output, count)
    if size <= SHORT_BYTES:
        if count - before <= SHORT_IDS:
            insert_short(caches.short, set_start, low, high, output, before, count)
    elif size <= LONG_BYTES and count - before <= LONG_IDS:
        insert_long(caches.long, set_start, low, data, start, end, output, before, count)
    return count


@inlined
def _encode_span(
    tables: Tables, caches: Caches, scratch: Scratch, data: Bytes, start: int, end: int, prefixed: bool, output: Ids, count: int
) -> int:
    """Encode text without user-defined pieces, `prefixed` as if a space stood before it; returns as `merge`."""
    if prefixed:
        blank = int(tables.classes[_BLANK])
        if start < end and are_neighbours(tables, blank, int(tables.classes[code_point(data, start)])):
            stop = segment_end(tables, data, start, end)
            count = merge(tables, scratch, data, start, stop, True, output, count)
            start = stop
        else:
            count = emit(tables, tables.symbols[_BLANK], output, count)
    while start < end and count != SCRATCH_TOO_SMALL:
        stop = segment_end(tables, data, start, end)
        count = _encode_segment(tables, caches, scratch, data, start, stop, output, count)
        start = stop
    return count


@inlined
def _user_defined(tables: Tables, data: Bytes, start: int, end: int) -> tuple[int, int, int]:
    """Return start, end and id of the next user-defined piece, the longest one at its start; -1 if there is none."""
    if len(tables.user_defined_ids) > 0:
        for at in range(start, end):
            if tables.user_defined.is_first[data[at]]:
                number, stop = longest_match(tables.user_defined, data, at, end)
                if number >= 0:
                    return at, stop, tables.user_defined_ids[number]
    return end, end, -1


@kernel
def _encode(
    tables: Tables,
    caches: Caches,
    scratch: Scratch,
    data: Bytes,
    offsets: Integers,
    text: int,
    output: Ids,
    count: int,
    lengths: Integers,
    is_prefixed: Bytes,
) -> tuple[int, int]:
    """Encode texts from index `text` on, with a space before those that `is_prefixed` [texts] says.

    Returns the index of the text that is too long for `scratch`, and the count of ids.
    """
    while text < len(offsets) - 1:
        start, end, before = offsets[text], offsets[text + 1], count
        prefixed = is_prefixed[text] != 0
        while start < end:
            at, stop, number = _user_defined(tables, data, start, end)
            count = _encode_span(tables, caches, scratch, data, start, at, prefixed, output, count)
            if count == SCRATCH_TOO_SMALL:
                return text, before
            if number >= 0:
                output[count] = number
                count += 1
            start, prefixed = stop, False
        lengths[text] = count - before
        text += 1
    return text, count


@kernel
def _squeeze(data: Bytes, offsets: Integers, squeezed: Bytes, squeezed_offsets: Integers) -> None:
    """Texts without the spaces at their start, after another space, and (also as U+2581) at their end."""
    size = 0
    for text in range(len(offsets) - 1):
        first = size
        squeezed_offsets[text] = first
        is_after_space = True
        for at in range(offsets[text], offsets[text + 1]):
            is_space = data[at] == _BLANK
            if not (is_space and is_after_space):
                squeezed[size] = data[at]
                size += 1
            is_after_space = is_space
        while size > first:
            if squeezed[size - 1] == _BLANK:
                size -= 1
            elif size - first >= 3 and code_point(squeezed, size - 3) == _SPACE_MARK and squeezed[size - 3] == _SPACE_BYTES[0]:
                size -= 3
            else:
                break
    squeezed_offsets[len(offsets) - 1] = size


@kernel
def _fuse_unknown(ids: Ids, lengths: Integers, unknown: int) -> int:
    """Keep one id per run of unknown characters in a text; return the number of remaining ids."""
    at = count = 0
    for text in range(len(lengths)):
        end, before = at + lengths[text], count
        while at < end:
            if ids[at] != unknown or count == before or ids[count - 1] != unknown:
                ids[count] = ids[at]
                count += 1
            at += 1
        lengths[text] = count - before
    return count


class PieceEncoder(Encoder):
    """Encodes texts for one thread; the tables are shared, the caches are its own."""

    def __init__(self, tables: Tables):
        self._tables = tables
        self._caches = new_caches()
        self._scratch = Scratch.of(_SEGMENT_CHARACTERS)
        self._output = np.empty(0, np.int32)

    def _encode(self, texts: Texts, is_prefixed: Bytes) -> tuple[Ids, Integers]:
        """The ids, which the next call overwrites, and their numbers."""
        data, offsets = texts
        most = int(offsets[-1]) + len(offsets) + _SLACK_IDS
        if len(self._output) < most:
            self._output = np.empty(most, np.int32)
        output, lengths = self._output, np.empty(len(offsets) - 1, np.int64)
        text, count, scratch = 0, 0, self._scratch
        while text < len(lengths):
            text, count = _encode(self._tables, self._caches, scratch, data, offsets, text, output, count, lengths, is_prefixed)
            if text < len(lengths):
                scratch = Scratch.of(int(offsets[text + 1] - offsets[text]) + 1)
        return output[:count], lengths


class SentencePieceBpeEncoder(PieceEncoder):
    """Encodes as sentencepiece does."""

    def __init__(self, tables: Tables, dummy_prefix: bool, removes_extra_whitespaces: bool):
        super().__init__(tables)
        self._dummy_prefix = dummy_prefix
        self._removes_extra_whitespaces = removes_extra_whitespaces

    def encode(self, texts: Texts) -> tuple[Ids, Integers]:
        if self._removes_extra_whitespaces:
            texts = self._squeezed(texts)
        ids, lengths = self._encode(texts, np.full(len(texts.offsets) - 1, self._dummy_prefix, np.uint8))
        if len(self._tables.byte_ids) == 0:
            ids = ids[: _fuse_unknown(ids, lengths, self._tables.unknown)]
        return ids.copy(), lengths

    def _squeezed(self, texts: Texts) -> Texts:
        squeezed = Texts(np.empty_like(texts.data), np.empty_like(texts.offsets))
        _squeeze(*texts, *squeezed)
        return squeezed


class ByteFallbackEncoder(PieceEncoder):
    """Encodes as Hugging Face's library does with merges of characters and byte fallback."""

    def __init__(self, tables: Tables, space_prefix: int):
        super().__init__(tables)
        self._space_prefix = space_prefix

    def encode(self, texts: Texts) -> tuple[Ids, Integers]:
        return self.encode_parts(texts, np.ones(len(texts.offsets) - 1, np.bool_))

    def encode_parts(self, texts: Texts, begins_document: Flags) -> tuple[Ids, Integers]:
        ids, lengths = self._encode(texts, self._prefixed(texts, begins_document).astype(np.uint8))
        return ids.copy(), lengths

    def _prefixed(self, texts: Texts, begins_document: Flags) -> Flags:
        if self._space_prefix in (NO_PREFIX, PREFIX):
            return np.full(len(begins_document), self._space_prefix == PREFIX)
        prefixed = ~_begins_with_space(texts)
        return prefixed & begins_document if self._space_prefix == PREFIX_FIRST else prefixed


def _begins_with_space(texts: Texts) -> Flags:
    """Return a flag for each text; no text may be empty."""
    starts = texts.offsets[:-1]
    first, second, third = (texts.data[starts + index] for index in range(3))
    mark = (first == _SPACE_BYTES[0]) & (second == _SPACE_BYTES[1]) & (third == _SPACE_BYTES[2])
    begins: Flags = (first == _BLANK) | mark
    return begins


def compile_for(encoder: Encoder) -> None:
    """Compile the encoder or load its machine code, and tell the user if that takes time."""
    with AnnounceCompilation():
        encoder.encode(Texts.from_list([b"a"]))
