"""Unicode's normal form C, applied to the few texts that are not in it.

A compiled scan decides, by Unicode's quick check, which texts may change: those with a character that composition can touch, or
with combining marks out of order. The library normalizes these, so the result is that of its version of Unicode, whatever
Python's is: characters that Python does not know are for the library to judge, and of those it knows Unicode never changes what
the check looks at. The scan runs at about 1 GB/s, the library at 57 MB/s; of the scripts in wide use, Tamil and Bengali need it
in every text.
"""

import functools
import unicodedata
from typing import Any

import numpy as np
import numpy.typing as npt

from lt_preprocess.kernels.jit import AnnounceCompilation, kernel
from lt_preprocess.tokenizers.base import Bytes, Encoder, Ids, Lengths, Texts, Wrapper

UNCERTAIN = 255
_FIRST_LEAD_BYTE = 0xCC
_JAMO = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))
# Ideographs and Hangul syllables: never touched. From U+32400 no plane has characters but the private ones.
_UNTOUCHED = ((0x0000, 0x00C0), (0x3400, 0xA000), (0xAC00, 0xD7A4), (0x17000, 0x18D00), (0x20000, 0x2A6E0))
_END_OF_ASSIGNED, _FIRST_PRIVATE = 0x32400, 0xF0000


@functools.cache
def classes() -> npt.NDArray[np.uint8]:
    """For each code point its combining class, or UNCERTAIN where normalization depends on more than that; shape [0x110000].

    Made from Python's tables in about 0.1 s. Characters below U+0300 are never looked up.
    """
    table = np.zeros(0x110000, np.uint8)
    table[_END_OF_ASSIGNED:_FIRST_PRIVATE] = UNCERTAIN
    composed = set(_JAMO)
    starts = [end for _, end in _UNTOUCHED]
    ends = [*(start for start, _ in _UNTOUCHED[1:]), _END_OF_ASSIGNED]
    for start, end in zip(starts, ends, strict=True):
        for point, character in enumerate(map(chr, range(start, end)), start):
            if unicodedata.category(character) == "Cn":
                table[point] = UNCERTAIN
            elif decomposed := unicodedata.decomposition(character):
                if not unicodedata.is_normalized("NFC", character):
                    table[point] = UNCERTAIN
                if decomposed[0] != "<":
                    composed.update(int(part, 16) for part in decomposed.split()[1:])
            elif unicodedata.combining(character):
                table[point] = unicodedata.combining(character)
    table[list(composed)] = UNCERTAIN
    return table


@kernel
def _find_uncertain(data: Bytes, offsets: Lengths, classes: Bytes, is_uncertain: npt.NDArray[np.bool_]) -> None:
    """Mark the texts that may not be in normal form C; `is_uncertain` [texts]."""
    for text in range(len(offsets) - 1):
        at, end = offsets[text], offsets[text + 1]
        before, found = np.uint8(0), False
        while at < end and not found:
            if data[at] < _FIRST_LEAD_BYTE:  # before U+0300, or the second byte of such a character
                before = np.uint8(0)
                at += 1
                continue
            size = 2 if data[at] < 0xE0 else 3 if data[at] < 0xF0 else 4
            point = np.int64(data[at]) & (0x7F >> size)
            for index in range(1, size):
                point = point << 6 | np.int64(data[at + index] & 0x3F)
            kind = classes[point]
            found = kind == UNCERTAIN or (kind != 0 and kind < before)
            before = kind
            at += size
        is_uncertain[text] = found


class NormalizingEncoder(Encoder):
    """Encodes the normal form C of texts."""

    def __init__(self, encoder: Encoder, classes: Bytes, library: Any):
        self._encoder = encoder
        self._classes = classes
        self._library = library

    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        is_uncertain = np.zeros(len(texts.offsets) - 1, np.bool_)
        _find_uncertain(texts.data, texts.offsets, self._classes, is_uncertain)
        if not is_uncertain.any():
            return self._encoder.encode(texts)
        contents = texts.to_list()
        for number in np.flatnonzero(is_uncertain).tolist():
            contents[number] = self._library.normalize_str(contents[number].decode()).encode()
        return self._encoder.encode(Texts.of(contents))


class Normalizing(Wrapper):
    """A tokenizer of texts in normal form C."""

    def new_encoder(self) -> NormalizingEncoder:
        from tokenizers import normalizers

        made = NormalizingEncoder(self._wrapped.new_encoder(), classes(), normalizers.NFC())
        with AnnounceCompilation():
            made.encode(Texts.of([]))
        return made
