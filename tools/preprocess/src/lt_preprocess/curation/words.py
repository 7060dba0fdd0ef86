"""The words of a text as datatrove 0.10 compares them (`simplify_text` with its defaults), compiled.

A text is put into lower case; a number becomes 0, punctuation a space; combining marks are dropped after canonical decomposition.
A word is what stands between spaces. Scripts that put no spaces between words (Han, kana, Thai, Lao, Khmer, Burmese, Tibetan)
have a word for each character, because a sentence as one word would match nothing.

A table says what becomes of a character by itself. A text with a character that needs its neighbours (a capital sigma, marks that
change places) is handled in Python.
"""

import functools
import re
import unicodedata
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.compiler.intrinsics import element_address, load8, signed, store8
from lt_preprocess.compiler.jit import inner, kernel
from lt_preprocess.texts import PADDING_BYTES, Bytes, Lengths, Texts
from lt_preprocess.tokenizers.bpe.characters import code_point

SPACE_BYTE = 0x20
TABLE_SIZE = 0x20000
_KEPT, _SPACE, _DIGIT, _DROPPED, _HANGUL, _REPLACED, _UNCLEAR = range(7)
_ALONE = 0x100
"""Set for a character that is a word by itself."""
_REPLACEMENT_SHIFT = 16
_MOST_TIMES_LONGER = 3
_IDEOGRAPHS, _COMPATIBILITY_IDEOGRAPHS, _LAST_IDEOGRAPH = 0x20000, 0x2F800, 0x3FFFF
_COMPATIBILITY_END = 0x2FA20

_DECIMAL_SEPARATORS = ".,\u060c\u066b\u2396\u2397\u2398"
_NUMBER = re.compile(rf"\d+(?:[{_DECIMAL_SEPARATORS}]\d+)?")
# The characters that datatrove counts as punctuation, as ranges of code points.
_PUNCTUATION = (
    *((0x00, 0x08), (0x0B, 0x1F), (0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x9F), (0xAB, 0xAB), (0xB4, 0xB4)),
    *((0xBB, 0xBB), (0x2013, 0x2014), (0x2019, 0x2019), (0x201C, 0x201E), (0x2026, 0x2026), (0x2236, 0x2236)),
    *((0x2501, 0x2501), (0x25BA, 0x25BA), (0x3001, 0x3002), (0x3008, 0x300D), (0x3010, 0x3011), (0xFF01, 0xFF01)),
    *((0xFF05, 0xFF05), (0xFF08, 0xFF09), (0xFF0C, 0xFF0C), (0xFF0E, 0xFF0E), (0xFF11, 0xFF11), (0xFF1A, 0xFF1B)),
    *((0xFF1F, 0xFF1F), (0xFF5E, 0xFF5E)),
)
_SPACES_OF_PUNCTUATION = {code: " " for first, last in _PUNCTUATION for code in range(first, last + 1)}
# Thai and Lao, Tibetan, Burmese, Khmer, kana, more kana, Han, halfwidth kana, Han outside the first plane.
_UNSPACED = (
    *((0x0E00, 0x0EFF), (0x0F00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x31F0, 0x31FF)),
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0xFF66, 0xFF9D), (_IDEOGRAPHS, _LAST_IDEOGRAPH)),
)
_UNSPACED_CHARACTER = re.compile("([" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _UNSPACED) + "])")

_LOWER_LETTERS = np.frombuffer(bytes(code | 0x20 if chr(code).isalpha() and code < 0x80 else 0 for code in range(256)), np.uint8)
"""The lower case of each letter of ASCII, 0 for other bytes."""


class Words(NamedTuple):
    """The words of texts, with one space between two words: text i is data[starts[i]:ends[i]], with `counts[i]` words."""

    data: Bytes
    starts: Lengths
    ends: Lengths
    counts: Lengths


def words_of(text: str) -> list[str]:
    """Split a text into words, by the definition: the compiled pass does the same faster."""
    text = _NUMBER.sub("0", text.lower()).translate(_SPACES_OF_PUNCTUATION)
    # Whitespace goes first: a space that a dropped mark leaves behind is no border of words more.
    return _UNSPACED_CHARACTER.sub(r" \1 ", _without_marks(" ".join(text.split()))).split()


def _without_marks(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(character for character in decomposed if unicodedata.category(character) != "Mn")


def words(texts: Texts) -> Words:
    """Find the words in all texts, which are valid UTF-8."""
    count = len(texts.offsets) - 1
    size_bytes = int(texts.offsets[-1] - texts.offsets[0])
    data = np.empty(_MOST_TIMES_LONGER * size_bytes + count + PADDING_BYTES, np.uint8)
    starts, ends, counts = (np.empty(count, np.int64) for _ in range(3))
    unclear = np.zeros(count, np.bool_)
    used = _normalize(texts.data, texts.offsets, *_table(), _LOWER_LETTERS, data, starts, ends, counts, unclear)
    appended, size_bytes = [data[: used + PADDING_BYTES]], used + PADDING_BYTES
    for text in np.flatnonzero(unclear).tolist():
        content = texts.data[texts.offsets[text] : texts.offsets[text + 1]].tobytes().decode()
        in_python = words_of(content)
        joined = np.frombuffer(" ".join(in_python).encode() + bytes(PADDING_BYTES), np.uint8)
        starts[text], counts[text] = size_bytes, len(in_python)
        ends[text] = size_bytes + len(joined) - PADDING_BYTES
        appended.append(joined)
        size_bytes += len(joined)
    return Words(np.concatenate(appended) if len(appended) > 1 else data, starts, ends, counts)


@functools.cache
def _table() -> tuple[npt.NDArray[np.uint32], Bytes, Lengths]:
    """Return an entry for each character below TABLE_SIZE, and the replacements back to back with their ends."""
    table = np.zeros(TABLE_SIZE, np.uint32)
    replacements: dict[bytes, int] = {}
    for code in range(TABLE_SIZE):
        if not 0xD800 <= code < 0xE000:
            table[code] = _entry(chr(code), replacements)
    ends = np.cumsum([0, *map(len, replacements)])
    return table, np.frombuffer(b"".join(replacements) + bytes(PADDING_BYTES), np.uint8), ends


def _entry(character: str, replacements: dict[bytes, int]) -> int:
    code = ord(character)
    if character.isspace():
        return _SPACE
    if unicodedata.category(character) == "Nd":
        return _DIGIT
    lower = character.lower()
    if character == "\u03a3" or any(one.isdecimal() or one.isspace() for one in lower):
        return _UNCLEAR
    if lower.translate(_SPACES_OF_PUNCTUATION).isspace():
        return _SPACE
    if 0xAC00 <= code < 0xD7A4:
        return _HANGUL
    decomposed = unicodedata.normalize("NFD", lower)
    remaining = "".join(one for one in decomposed if unicodedata.category(one) != "Mn")
    is_alone = _UNSPACED_CHARACTER.fullmatch(character) is not None
    is_uniform = all((_UNSPACED_CHARACTER.fullmatch(one) is not None) == is_alone for one in remaining)
    moves = any(unicodedata.combining(one) for one in remaining)
    if moves or not is_uniform or len(remaining.encode()) > 2 * len(character.encode()) or (is_alone and len(remaining) > 1):
        return _UNCLEAR
    if not remaining:
        return _DROPPED
    alone = _ALONE if is_alone else 0
    if remaining == character:
        return _KEPT | alone
    number = replacements.setdefault(remaining.encode(), len(replacements))
    return _REPLACED | alone | number << _REPLACEMENT_SHIFT


@inner
def _copied(source: int, target: int, size: int) -> int:
    for offset in range(size):
        store8(target + offset, load8(source + offset))
    return target + size


@inner
def _jamo(code: int, target: int) -> int:
    """Write the character `code` of U+1100 to U+11FF, three bytes."""
    store8(target, np.uint8(0xE1))
    store8(target + 1, np.uint8(0x80 | code >> 6 & 0x3F))
    store8(target + 2, np.uint8(0x80 | code & 0x3F))
    return target + 3


@inner
def _hangul(code: int, target: int) -> int:
    """Write the canonical decomposition of a syllable: an initial, a vowel and perhaps a final."""
    syllable = code - 0xAC00
    target = _jamo(0x1100 + syllable // 588, target)
    target = _jamo(0x1161 + syllable % 588 // 28, target)
    return _jamo(0x11A7 + syllable % 28, target) if syllable % 28 else target


@inner
def _width(code: int) -> int:
    if code < 0x80:
        return 1
    if code < 0x800:
        return 2
    return 3 if code < 0x10000 else 4


@inner
def _is_decimal_separator(code: int) -> bool:
    return (code == 0x2E) | (code == 0x2C) | (code == 0x060C) | (code == 0x066B) | ((code >= 0x2396) & (code <= 0x2398))


@inner
def _entry_at(code: int, table: npt.NDArray[np.uint32]) -> int:
    if code < TABLE_SIZE:
        return signed(table[code])
    if (code < _COMPATIBILITY_IDEOGRAPHS) | ((code >= _COMPATIBILITY_END) & (code <= _LAST_IDEOGRAPH)):
        return _ALONE
    return _UNCLEAR


@inner
def _digits_end(at: int, end: int, table: npt.NDArray[np.uint32]) -> int:
    while at < end:
        code = code_point(at)
        if _entry_at(code, table) != _DIGIT:
            return at
        at += _width(code)
    return at


@inner
def _number_end(at: int, end: int, table: npt.NDArray[np.uint32]) -> int:
    """The end of the number that begins at `at`: digits, perhaps a separator and more digits."""
    at = _digits_end(at, end, table)
    if at < end:
        code = code_point(at)
        after = at + _width(code)
        if _is_decimal_separator(code):
            fraction_end = _digits_end(after, end, table)
            if fraction_end > after:
                return fraction_end
    return at


@kernel
def _normalize(
    data: Bytes,
    offsets: Lengths,
    table: npt.NDArray[np.uint32],
    replacements: Bytes,
    replacement_ends: Lengths,
    lower_letters: Bytes,
    output: Bytes,
    starts: Lengths,
    ends: Lengths,
    counts: Lengths,
    unclear: npt.NDArray[np.bool_],
) -> int:
    """Write every text's words to `output`; returns the number of bytes. `unclear` marks texts that need Python."""
    base = element_address(output, 0)
    strings = element_address(replacements, 0)
    letters = element_address(lower_letters, 0)
    target = base
    for text in range(len(starts)):
        at = element_address(data, offsets[text])
        end = element_address(data, offsets[text + 1])
        start = target
        starts[text] = target - base
        count = 0
        is_between = True
        while at < end:
            code = code_point(at)
            entry = _entry_at(code, table)
            kind = entry & 0xFF
            if kind == _SPACE:
                is_between = True
                at += _width(code)
                continue
            if kind == _DROPPED:
                at += _width(code)
                continue
            if kind == _UNCLEAR:
                unclear[text] = True
                target = start
                break
            if is_between | (entry & _ALONE != 0):
                if target > start:
                    store8(target, np.uint8(SPACE_BYTE))
                    target += 1
                count += 1
            is_between = entry & _ALONE != 0
            if kind == _DIGIT:
                store8(target, np.uint8(0x30))
                target += 1
                at = _number_end(at, end, table)
                continue
            size = _width(code)
            if kind == _KEPT:
                target = _copied(at, target, size)
            elif kind == _HANGUL:
                target = _hangul(code, target)
            else:
                number = entry >> _REPLACEMENT_SHIFT
                first = signed(replacement_ends[number])
                target = _copied(strings + first, target, signed(replacement_ends[number + 1]) - first)
            at += size
            if not is_between:
                # Most words are letters of ASCII to their end: without the large table, 1.4 times as fast.
                while at < end and load8(letters + load8(at)):
                    store8(target, load8(letters + load8(at)))
                    target += 1
                    at += 1
        ends[text] = target - base
        counts[text] = count
    return signed(target - base)
