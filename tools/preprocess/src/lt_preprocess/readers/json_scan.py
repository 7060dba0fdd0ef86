"""Find the texts of JSON lines, compiled: no GIL, one pass, the texts unescaped into one array.

The scan accepts only what Python's own parser accepts too, with the same result, and stops at the first line that it does not
understand; the caller reads that line with a JSON parser and resumes the scan after it. Not understood are lines with errors, and
a few that are valid but rare: a requested key that occurs twice, a lone surrogate, nesting deeper than 64, a number of more than
300 characters.

No loop compares an index with the end of the data: a line break, or the padding after the data (`chunks.Lines`), ends every
token.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.compiler.intrinsics import element_address, trailing_zeros
from lt_preprocess.compiler.jit import inner, kernel
from lt_preprocess.compiler.simd import BLOCK_BYTES, copy_block, string_stops, utf8_errors

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

NOT_UNDERSTOOD = 0
FINISHED = 1
FULL = 2

_DEEPEST = 64
_LONGEST_NUMBER = 300

_QUOTE, _BACKSLASH, _COLON, _COMMA, _MINUS, _PLUS, _POINT = (ord(character) for character in '"\\:,-+.')
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_LIST, _CLOSE_LIST, _ZERO, _NINE = (ord(character) for character in "{}[]09")
_NEWLINE, _SPACE, _TAB, _RETURN, _U, _E, _CAPITAL_I = (ord(character) for character in "\n \t\rueI")

# Other bytes than hexadecimal digits have the value 1 << 16: four digits combined are below it only if all are digits.
_HEX = np.full(256, 1 << 16, np.int64)
for _digit in "0123456789abcdefABCDEF":
    _HEX[ord(_digit)] = int(_digit, 16)

_ESCAPES = np.zeros(256, np.uint8)
for _escape, _meaning in zip('"\\/bfnrt', '"\\/\b\f\n\r\t', strict=True):
    _ESCAPES[ord(_escape)] = ord(_meaning)

# In slots of 8 bytes.
_LITERALS = np.frombuffer(b"true    false   null    NaN     Infinity", np.uint8)
_LITERAL_BYTES = np.array([4, 5, 4, 3, 8])


class Keys(NamedTuple):
    """The requested keys in UTF-8, back to back: key i is data[offsets[i]:offsets[i + 1]]."""

    data: Bytes
    offsets: Integers


class ScanResults(NamedTuple):
    """A chunk's texts; row k belongs to key k.

    `texts` uint8 [keys, bytes]; `offsets` int64 [keys, texts + 1]; `text_counts` int64 [keys]; `texts_per_document` int64
    [keys, documents]; `counts` int64 [2]: documents, lines.
    """

    texts: Bytes
    offsets: Integers
    text_counts: Integers
    texts_per_document: Integers
    counts: Integers


@inner
def _after_space(data: Bytes, at: int) -> int:
    while data[at] == _SPACE or data[at] == _TAB or data[at] == _RETURN:
        at += 1
    return at


@inner
def _code_unit(data: Bytes, at: int) -> int:
    r"""The value of \uXXXX at `at`, or less than 0."""
    value = (_HEX[data[at + 2]] << 12) | (_HEX[data[at + 3]] << 8) | (_HEX[data[at + 4]] << 4) | _HEX[data[at + 5]]
    return value if value < 1 << 16 else -1


@inner
def _string(data: Bytes, at: int, texts: Bytes, to: int) -> tuple[int, int]:
    """Read a string from after its opening quote, and write it unescaped to texts[to:].

    Returns the index in `data` after the closing quote, -1 when the string is not understood, and the end in `texts`.
    """
    # Whether the previous block had bytes above 0x7F: then a character may go on in this block, and is checked here.
    before_high = np.uint64(0)
    while True:
        block = element_address(data, at)
        stops, high = string_stops(block)
        # Copy the whole block before the end of the string is known: what lies behind it is overwritten later.
        copy_block(block, element_address(texts, to))
        size = trailing_zeros(stops)
        if high | before_high:
            errors = utf8_errors(block)
            if size < BLOCK_BYTES:
                # Bytes up to the stop itself: a cut character shows at the byte after it.
                errors &= (np.uint64(2) << np.uint64(size)) - np.uint64(1)
            if errors:
                return -1, to
        before_high = high
        at += size
        to += size
        if size == BLOCK_BYTES:
            continue
        if data[at] == _QUOTE:
            return at + 1, to
        before_high = np.uint64(0)
        while data[at] == _BACKSLASH:
            if data[at + 1] != _U:
                meaning = _ESCAPES[data[at + 1]]
                if meaning == 0:
                    return -1, to
                texts[to] = meaning
                to += 1
                at += 2
                continue
            code = _code_unit(data, at)
            at += 6
            if code < 0x80:
                if code < 0:
                    return -1, to
                texts[to] = code
                to += 1
            elif code < 0x800:
                texts[to] = 0xC0 | code >> 6
                texts[to + 1] = 0x80 | code & 0x3F
                to += 2
            elif code < 0xD800 or code >= 0xE000:
                texts[to] = 0xE0 | code >> 12
                texts[to + 1] = 0x80 | code >> 6 & 0x3F
                texts[to + 2] = 0x80 | code & 0x3F
                to += 3
            else:
                if code >= 0xDC00 or data[at] != _BACKSLASH or data[at + 1] != _U:
                    return -1, to
                second = _code_unit(data, at)
                at += 6
                if second < 0xDC00 or second >= 0xE000:
                    return -1, to
                code = 0x10000 + ((code - 0xD800) << 10 | second - 0xDC00)
                texts[to] = 0xF0 | code >> 18
                texts[to + 1] = 0x80 | code >> 12 & 0x3F
                texts[to + 2] = 0x80 | code >> 6 & 0x3F
                texts[to + 3] = 0x80 | code & 0x3F
                to += 4
        if data[at] < _SPACE:
            return -1, to


@inner
def _skip_digits(data: Bytes, at: int) -> int:
    """The index after one digit or more; -1 for none."""
    start = at
    while _ZERO <= data[at] <= _NINE:
        at += 1
    return at if at > start else -1


@inner
def _skip_literal(data: Bytes, at: int) -> int:
    for literal in range(len(_LITERAL_BYTES)):
        size = _LITERAL_BYTES[literal]
        same = 0
        while same < size and data[at + same] == _LITERALS[8 * literal + same]:
            same += 1
        if same == size:
            return int(at + size)
    return -1


@inner
def _skip_number(data: Bytes, at: int) -> int:
    start = at
    if data[at] == _MINUS:
        at += 1
        if data[at] == _CAPITAL_I:
            return _skip_literal(data, at)
    if data[at] == _ZERO:
        at += 1
    else:
        at = _skip_digits(data, at)
    if at > 0 and data[at] == _POINT:
        at = _skip_digits(data, at + 1)
    if at > 0 and data[at] | 0x20 == _E:
        at += 1
        if data[at] == _PLUS or data[at] == _MINUS:
            at += 1
        at = _skip_digits(data, at)
    return at if at - start <= _LONGEST_NUMBER else -1


@inner
def _skip_value(data: Bytes, at: int, texts: Bytes, to: int) -> int:
    """The index after one value of any kind, or -1. texts[to:] is scratch space.

    `objects` has a bit for each open level: 1 for an object, 0 for a list.
    """
    depth = 0
    objects = np.uint64(0)
    one = np.uint64(1)
    wants_key = False
    while True:
        first = data[at]
        if wants_key and first != _QUOTE:
            return -1
        if (first == _OPEN_OBJECT) | (first == _OPEN_LIST):
            if depth == _DEEPEST:
                return -1
            depth += 1
            objects <<= one
            at = _after_space(data, at + 1)
            if first == _OPEN_OBJECT:
                objects |= one
                wants_key = data[at] != _CLOSE_OBJECT
                if wants_key:
                    continue
            elif data[at] != _CLOSE_LIST:
                continue
        else:
            if first == _QUOTE:
                at, _ = _string(data, at + 1, texts, to)
            elif first == _MINUS or _ZERO <= first <= _NINE:
                at = _skip_number(data, at)
            else:
                at = _skip_literal(data, at)
            if at < 0 or depth == 0:
                return at
            at = _after_space(data, at)
            if wants_key:
                if data[at] != _COLON:
                    return -1
                at = _after_space(data, at + 1)
                wants_key = False
                continue
        while data[at] == (_CLOSE_OBJECT if objects & one else _CLOSE_LIST):
            depth -= 1
            objects >>= one
            if depth == 0:
                return at + 1
            at = _after_space(data, at + 1)
        if data[at] != _COMMA:
            return -1
        wants_key = (objects & one) != 0
        at = _after_space(data, at + 1)


@inner
def _wanted_key(keys: Keys, texts: Bytes, start: int, end: int) -> int:
    """The number of the key that equals texts[start:end], or -1."""
    for number in range(len(keys.offsets) - 1):
        first = keys.offsets[number]
        size = keys.offsets[number + 1] - first
        if size != end - start:
            continue
        same = 0
        while same < size and keys.data[first + same] == texts[start + same]:
            same += 1
        if same == size:
            return number
    return -1


@inner
def _copy_value(data: Bytes, at: int, results: ScanResults, key: int, first_text: int) -> tuple[int, int]:
    """Copy a string or a list of strings; returns the index after it, or -1, and the number of texts, -1 if `results` is full."""
    texts, offsets = results.texts[key], results.offsets[key]
    text = first_text
    is_list = data[at] == _OPEN_LIST
    if is_list:
        at = _after_space(data, at + 1)
        if data[at] == _CLOSE_LIST:
            return at + 1, 0
    while True:
        if data[at] != _QUOTE:
            return -1, 0
        if text + 1 == len(offsets):
            return at, -1
        at, to = _string(data, at + 1, texts, offsets[text])
        if at < 0:
            return -1, 0
        if to > offsets[text]:
            text += 1
            offsets[text] = to
        if not is_list:
            break
        at = _after_space(data, at)
        if data[at] == _CLOSE_LIST:
            at += 1
            break
        if data[at] != _COMMA:
            return -1, 0
        at = _after_space(data, at + 1)
    return at, text - first_text


@inner
def _scan_line(data: Bytes, at: int, keys: Keys, results: ScanResults, document: int) -> tuple[int, int]:
    """Read the object at `at`; returns the index after it, and FINISHED, FULL or NOT_UNDERSTOOD."""
    missing = len(keys.offsets) - 1
    scratch = results.texts[0]
    free = results.offsets[0, results.text_counts[0]]
    for key in range(missing):
        results.texts_per_document[key, document] = -1
    at = _after_space(data, at + 1)
    if data[at] == _CLOSE_OBJECT:
        return at, NOT_UNDERSTOOD
    while True:
        if data[at] != _QUOTE:
            return at, NOT_UNDERSTOOD
        at, to = _string(data, at + 1, scratch, free)
        if at < 0:
            return at, NOT_UNDERSTOOD
        key = _wanted_key(keys, scratch, free, to)
        at = _after_space(data, at)
        if data[at] != _COLON:
            return at, NOT_UNDERSTOOD
        at = _after_space(data, at + 1)
        if key < 0:
            at = _skip_value(data, at, scratch, free)
        else:
            if results.texts_per_document[key, document] >= 0:
                return at, NOT_UNDERSTOOD
            at, texts = _copy_value(data, at, results, key, results.text_counts[key])
            if texts < 0:
                return at, FULL
            results.texts_per_document[key, document] = texts
            missing -= 1
            if key == 0:
                free = results.offsets[0, results.text_counts[0] + texts]
        if at < 0:
            return at, NOT_UNDERSTOOD
        at = _after_space(data, at)
        if data[at] == _CLOSE_OBJECT:
            break
        if data[at] != _COMMA:
            return at, NOT_UNDERSTOOD
        at = _after_space(data, at + 1)
    return _after_space(data, at + 1), FINISHED if missing == 0 else NOT_UNDERSTOOD


@kernel
def scan(data: Bytes, at: int, end: int, keys: Keys, results: ScanResults) -> tuple[int, int]:
    """Read lines from `at` on; return the index of the stop and its reason.

    At `end` with FINISHED; at the start of a line with NOT_UNDERSTOOD, or with FULL when `results` is too small for it.
    """
    while at < end:
        start = at
        at = _after_space(data, at)
        if data[at] == _OPEN_OBJECT:
            document = results.counts[0]
            if document == results.texts_per_document.shape[1]:
                return start, FULL
            at, outcome = _scan_line(data, at, keys, results, document)
            if outcome != FINISHED or at > end or (data[at] != _NEWLINE and at < end):
                return start, FULL if outcome == FULL else NOT_UNDERSTOOD
            for key in range(len(results.text_counts)):
                results.text_counts[key] += results.texts_per_document[key, document]
            results.counts[0] += 1
        elif at < end and data[at] != _NEWLINE:
            return start, NOT_UNDERSTOOD
        results.counts[1] += 1
        at += 1
    return end, FINISHED


@kernel
def line_end(data: Bytes, at: int, end: int) -> int:
    """The index of the first line break in data[at:end], or `end`."""
    while at < end and data[at] != _NEWLINE:
        at += 1
    return at
