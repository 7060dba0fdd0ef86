"""Find the digits in front of a step that no parser reads, such as the time that a logger prints before each line.

Step lines that differ in such digits share a line template, so a log behind any label is read by columns. No table of labels is
needed: the line is parsed again with other digits, and the digits are unread if the parser returns the same values.
"""

import re
from collections.abc import Callable

from lt_monitor.events.records import Record
from lt_monitor.logs.line_parsers import StepLine
from lt_monitor.logs.lines import Line
from lt_shared.lazy_patterns import regex

MAXIMUM_LABEL_BYTES = 400

_DIGIT = re.compile(rb"\d")
# `Line` takes a date for a label only if its year begins with 20, so these two digits stay as they are.
_CENTURY = re.compile(rb"\d\d(?=\d\d-\d\d-\d\d[ T])")
_TRIALS = [bytes((byte,)) for byte in b"0123456789"]


def unread_digits(
    raw: bytes, line: Line, step: StepLine, parse: Callable[[Line], StepLine | Record | None], keywords: re.Pattern[bytes]
) -> list[int]:
    """Return the indexes in `raw` of the digits before the step that may be any digits without a change of the step.

    `raw` is the line that `parse` read as `step`; `keywords` are the other keywords with digits. The list is empty if a digit
    before the step matters in a way that its position in the values does not show.
    """
    first, last = line.raw_index(line.body), line.raw_index(step.span()[0])
    if first >= last or last > MAXIMUM_LABEL_BYTES or keywords.search(raw) is not None:
        return []
    used = {line.raw_index(index) for _, begin, end in step.values for index in range(begin, end)}
    used |= {index for century in _CENTURY.finditer(raw, first, last) for index in range(*century.span())}
    indexes = [match.start() for match in _DIGIT.finditer(raw, first, last) if match.start() not in used]
    if not indexes or not all(_is_same(_with_digit(raw, indexes, digit), line, step, parse) for digit in _TRIALS):
        return []
    return indexes


def _with_digit(raw: bytes, indexes: list[int], digit: bytes) -> bytes:
    text = bytearray(raw)
    for index in indexes:
        text[index : index + 1] = digit
    return bytes(text)


def _is_same(text: bytes, line: Line, step: StepLine, parse: Callable[[Line], StepLine | Record | None]) -> bool:
    other = Line(text, line.offset)
    return parse(other) == step and other.node == line.node


def keyword_pattern(keywords: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Return a pattern for the `keywords` that have digits, with any digits in their places."""
    numbered = (_DIGIT.sub(rb"\\d", re.escape(keyword)) for keyword in keywords if _DIGIT.search(keyword) is not None)
    return regex(b"|".join(dict.fromkeys(numbered)))
