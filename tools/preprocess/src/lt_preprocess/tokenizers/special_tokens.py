"""Search the text for tokens before it is cut into pieces: added tokens, and special tokens on request.

The search is a compiled walk over a trie of the tokens. If several tokens match, the leftmost and then the longest one counts,
as in Hugging Face's tokenizers. A token that strips also takes the white space beside it. Blocks of 64 bytes without the first
byte of any token are skipped at several GB/s; a tokenizer without tokens to look for is not wrapped at all. A text with a match
is encoded in parts.
"""

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from lt_preprocess.compiler.intrinsics import element_address, trailing_zeros
from lt_preprocess.compiler.jit import AnnounceCompilation, inlined, kernel
from lt_preprocess.compiler.simd import BLOCK_BYTES, bytes_between
from lt_preprocess.texts import Bytes, Lengths, Texts
from lt_preprocess.tokenizers import token_trie
from lt_preprocess.tokenizers.base import Encoder, Flags, ForbiddenToken, Ids, Tokenizer, Wrapper
from lt_preprocess.tokenizers.bpe.blocks import low_bits
from lt_preprocess.tokenizers.token_trie import TokenTrie, longest_match

SKIPPED = -1
_INITIAL_MATCHES = 1024


@kernel
def _find(data: Bytes, offsets: Lengths, trie: TokenTrie, matches: Lengths) -> int:
    """Write the matches' text, start, end and token number to `matches` [capacity, 4]; return the number of matches."""
    least, most = np.uint8(255), np.uint8(0)
    for byte in range(256):
        if trie.is_first[byte]:
            least, most = min(least, np.uint8(byte)), max(most, np.uint8(byte))
    count = 0
    for text in range(len(offsets) - 1):
        after_last, end = offsets[text], offsets[text + 1]
        for block in range(after_last, end, BLOCK_BYTES):
            candidates = bytes_between(element_address(data, block), least, most) & low_bits(end - block)
            while candidates:
                at = block + trailing_zeros(candidates)
                candidates &= candidates - np.uint64(1)
                if at < after_last or not trie.is_first[data[at]]:
                    continue
                number, stop = longest_match(trie, data, at, end)
                if number < 0:
                    continue
                if count < len(matches):
                    matches[count, 0], matches[count, 1], matches[count, 2], matches[count, 3] = text, at, stop, number
                count += 1
                after_last = stop
    return count


@inlined
def _white_space(data: Bytes, at: int, end: int) -> int:
    r"""The bytes of the white space character at `at`, what `\s` matches; 0 for another character."""
    first = data[at]
    if first < 0x80:
        return 1 if first == 0x20 or 0x09 <= first <= 0x0D else 0
    if first == 0xC2:
        return 2 if data[at + 1] == 0x85 or data[at + 1] == 0xA0 else 0
    if first < 0xE1 or first > 0xE3 or at + 2 >= end:
        return 0
    tail = int(data[at + 1]) << 8 | int(data[at + 2])
    if first == 0xE1:
        return 3 if tail == 0x9A80 else 0
    if first == 0xE3:
        return 3 if tail == 0x8080 else 0
    return 3 if 0x8080 <= tail <= 0x808A or tail in (0x80A8, 0x80A9, 0x80AF, 0x819F) else 0


@kernel
def _strip(data: Bytes, offsets: Lengths, matches: Lengths, strips: Bytes) -> None:
    """Let matches take the white space beside them, up to other matches. `strips` [tokens]: 1 before, 2 after them."""
    for match in range(len(matches)):
        text, sides = matches[match, 0], strips[matches[match, 3]]
        if sides & 1:
            first = offsets[text]
            if match > 0 and matches[match - 1, 0] == text:
                first = matches[match - 1, 2]
            start = before = matches[match, 1]
            while before > first:
                before -= 1
                if data[before] & 0xC0 != 0x80:
                    if before + _white_space(data, before, start) != start:
                        break
                    start = before
            matches[match, 1] = start
        if sides & 2:
            last = offsets[text + 1]
            if match + 1 < len(matches) and matches[match + 1, 0] == text:
                last = matches[match + 1, 1]
            stop = matches[match, 2]
            while stop < last:
                size = _white_space(data, stop, last)
                if size == 0:
                    break
                stop += size
            matches[match, 2] = stop


class Search:
    """Finds any of some tokens in texts. `contents` are not empty and differ."""

    def __init__(self, contents: Sequence[str]):
        self.contents = contents

    @functools.cached_property
    def _trie(self) -> TokenTrie:
        # Built for the first encoder: a short run encodes in the library, and Gemma 3's trie takes 0.12 s.
        return token_trie.build([content.encode() for content in self.contents])

    def find(self, texts: Texts) -> Lengths:
        """The matches in order, int64 [matches, 4]: number of the text, start and end in `texts.data`, number of the token."""
        capacity = _INITIAL_MATCHES
        while True:
            matches = np.empty((capacity, 4), np.int64)
            count = _find(texts.data, texts.offsets, self._trie, matches)
            if count <= capacity:
                return matches[:count]
            capacity = count

    def compile(self) -> None:
        with AnnounceCompilation():
            self.find(Texts.from_list([b"a"]))


class SplittingEncoder(Encoder):
    """Encodes special tokens as their ids, and the text between them by an inner encoder."""

    def __init__(self, search: Search, ids: Ids, strips: Bytes, between: Encoder):
        self._search = search
        self._ids = ids
        self._strips = strips
        self._between = between

    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        return self.encode_parts(texts, np.ones(len(texts.offsets) - 1, np.bool_))

    def encode_parts(self, texts: Texts, begins_document: Flags) -> tuple[Ids, Lengths]:
        matches = self._search.find(texts)
        matches = np.ascontiguousarray(matches[self._ids[matches[:, 3]] != SKIPPED])
        if not len(matches):
            return self._between.encode_parts(texts, begins_document)
        if self._strips.any():
            _strip(*texts, matches, self._strips)
        starts, ends = matches[:, 1], matches[:, 2]
        bounds = np.sort(np.concatenate([texts.offsets, starts, ends]))
        ids, lengths = self._between.encode_parts(
            Texts(texts.data, bounds), _begin_documents(bounds[:-1], texts, begins_document)
        )
        # Of the parts that begin where a match begins, the last is the match; the others are empty.
        matched = np.searchsorted(bounds, starts, side="right") - 1
        is_kept = np.ones(len(lengths), np.bool_)
        is_kept[matched] = False
        part_lengths = lengths.copy()
        part_lengths[matched] = 1
        positions = np.concatenate([[0], np.cumsum(part_lengths)])
        output = np.empty(positions[-1], np.int32)
        is_between = np.ones(len(output), np.bool_)
        is_between[positions[matched]] = False
        output[is_between] = ids[np.repeat(is_kept, lengths)]
        output[positions[matched]] = self._ids[matches[:, 3]]
        return output, np.diff(positions[np.searchsorted(bounds, texts.offsets, side="left")])


def _begin_documents(starts: Lengths, texts: Texts, begins_document: Flags) -> Flags:
    """Which parts begin a document, by where they start; an empty part is one of any text there."""
    text = np.minimum(np.searchsorted(texts.offsets, starts, side="right") - 1, len(begins_document) - 1)
    begins: Flags = begins_document[text] & (starts == texts.offsets[text])
    return begins


class Splitting(Wrapper):
    """A tokenizer whose texts are searched for tokens first. `ids` of the tokens; SKIPPED tokens only hide overlapping ones.

    `strips`: 1 for tokens that take the white space before them, 2 for the white space after them, 3 for both.
    """

    def __init__(self, between: Tokenizer, ids: Mapping[str, int], strips: Mapping[str, int] = MappingProxyType({})):
        super().__init__(between)
        self._search = Search(list(ids))
        self._ids = np.array(list(ids.values()), np.int32)
        self._strips = np.array([strips.get(content, 0) for content in ids], np.uint8)

    def new_encoder(self) -> SplittingEncoder:
        self._search.compile()
        return SplittingEncoder(self._search, self._ids, self._strips, self._wrapped.new_encoder())


class RejectingEncoder(Encoder):
    """Names the tokens that stand in texts, and encodes them as text."""

    def __init__(self, search: Search, encoder: Encoder):
        self._search = search
        self._encoder = encoder

    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        return self._encoder.encode(texts)

    def forbidden(self, texts: Texts) -> list[ForbiddenToken]:
        matches = self._search.find(texts)
        first = matches[np.unique(matches[:, 0], return_index=True)[1]]
        return [
            ForbiddenToken(text, start - int(texts.offsets[text]), self._search.contents[number])
            for text, start, _, number in first.tolist()
        ]


class Rejecting(Wrapper):
    """A tokenizer that names its special tokens in texts, for the caller to refuse them."""

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer)
        self._search = Search(list(tokenizer.special_tokens))

    def new_encoder(self) -> RejectingEncoder:
        self._search.compile()
        return RejectingEncoder(self._search, self._wrapped.new_encoder())
