"""Choose the lines of a labelled block that may have events, because it takes long to unlabel every line.

A label never hides a keyword, so the prefilter searches the labelled block. Shippers that write JSON escape quotes, backslashes,
control characters, some punctuation and letters beyond ASCII. `escaped` replaces a keyword by a part without these characters,
or by all spellings of the keyword if the parts are too short.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from lt_monitor.logs.fast.prefilter import WINDOW_BYTES, Prefilter

# Excerpts of more than half a block, or with more candidates than one in so many bytes, save nothing.
MAXIMUM_SHARE = 0.5
BYTES_PER_CANDIDATE = 128
# The labelled text before a line whose step number comes from a progress bar, and at the end of a block.
LOOK_BACK_BYTES = 1 << 14
ESCAPED_LOOK_BACK_BYTES = 1 << 16
_BARS = (b"it/s", b"s/it")
# Container runtimes cut longer lines.
LONG_LINE_BYTES = 1 << 14
_PARTIAL = b"partial_message"

_ESCAPED_BYTES = re.compile(rb'["\\<>&\'/\x00-\x1f\x7f-\xff]')
# JSON may spell any character by its number. Shippers do this for few characters of ASCII, which the parts of keywords lack.
_UNEXPECTED = re.compile(rb"\\u00(?!3[ceCE]|2[267fF]|5[cC])[2-7]")
_GO_ESCAPES = ((b"<", rb"\u003c"), (b">", rb"\u003e"), (b"&", rb"\u0026"))


class Excerpt:
    """Some lines of a block. `text` holds them without gaps. `has_last_bar`: they include progress bars at the block's end."""

    def __init__(self, block: bytes, spans: Sequence[tuple[int, int]], has_last_bar: bool):
        self.has_last_bar = has_last_bar
        self.text = b"".join(block[begin:end] for begin, end in spans)
        self._begins = np.array([begin for begin, _ in spans], dtype=np.int64)
        lengths = [end - begin for begin, end in spans]
        self._text_begins = np.array([0, *itertools.accumulate(lengths)][: len(spans)], dtype=np.int64)

    def origins(self, positions: np.ndarray) -> np.ndarray:
        """Map positions (int64) in the text to positions in the block (int64)."""
        if not len(self._begins):
            return positions
        spans = np.searchsorted(self._text_begins, positions, side="right") - 1
        return np.asarray(positions - self._text_begins[spans] + self._begins[spans])


class LineSelection:
    """Selects lines by keywords. `keywords` maps each keyword to its parsers.

    Keywords of the parsers `with_neighbours` need the whole block; keywords of the parsers `with_bars` need the lines before.
    """

    def __init__(
        self,
        prefilter: Prefilter[list[int]],
        keywords: Mapping[bytes, list[int]],
        with_neighbours: Iterable[int],
        with_bars: Iterable[int],
    ):
        self._plain = prefilter
        self._keywords = keywords
        self._escaped: Prefilter[list[int]] | None = None
        self._with_neighbours = frozenset(with_neighbours)
        self._with_bars = frozenset(with_bars)

    def excerpt(self, block: bytes, is_escaped: bool) -> Excerpt | None:
        """Return the lines that may have events; None if the whole block is needed. `is_escaped`: the lines stand in JSON."""
        if is_escaped and self._escaped is None:
            self._escaped = Prefilter(escaped(self._keywords))
        prefilter = self._escaped if is_escaped and self._escaped is not None else self._plain
        look_back = ESCAPED_LOOK_BACK_BYTES if is_escaped else LOOK_BACK_BYTES
        candidates = prefilter.candidates(block)
        if len(candidates) > len(block) // BYTES_PER_CANDIDATE:
            return None
        spans: list[tuple[int, int]] = []
        end, total = -1, 0
        for hit, meaning in self._hits(prefilter, block, candidates, is_escaped):
            if not self._with_neighbours.isdisjoint(meaning):
                return None
            if hit < end:
                if self._with_bars.isdisjoint(meaning):
                    continue
                begin = spans[-1][0]
            else:
                begin = block.rfind(b"\n", 0, hit) + 1
                end = block.find(b"\n", hit) + 1 or len(block)
                if is_escaped and _is_cut(block, begin, end):
                    return None
            if not self._with_bars.isdisjoint(meaning):
                begin = block.rfind(b"\n", 0, max(0, begin - look_back)) + 1
            while spans and spans[-1][1] >= begin:
                earlier = spans.pop()
                total -= earlier[1] - earlier[0]
                begin = min(begin, earlier[0])
            spans.append((begin, end))
            total += end - begin
            if total > MAXIMUM_SHARE * len(block):
                return None
        return Excerpt(block, spans, _add_last_bar(block, spans, look_back))

    def _hits(
        self, prefilter: Prefilter[list[int]], block: bytes, candidates: np.ndarray, is_escaped: bool
    ) -> Iterator[tuple[int, list[int]]]:
        confirmed = prefilter.confirmed(block, candidates.tolist())
        if not is_escaped:
            return confirmed
        unexpected: list[tuple[int, list[int]]] = [(match.start(), []) for match in _UNEXPECTED.finditer(block)]
        return iter(sorted([*confirmed, *unexpected], key=_position)) if unexpected else confirmed


def _position(hit: tuple[int, list[int]]) -> int:
    return hit[0]


def _is_cut(block: bytes, begin: int, end: int) -> bool:
    """Whether a container runtime may have cut a longer line into this line and its neighbours."""
    before = begin - 1 - block.rfind(b"\n", 0, max(0, begin - 1))
    return before >= LONG_LINE_BYTES or end - begin >= LONG_LINE_BYTES or block.find(_PARTIAL, begin, end) >= 0


def _add_last_bar(block: bytes, spans: list[tuple[int, int]], look_back: int) -> bool:
    """Add the end of the block if it has progress bars, because the first step of the next block may need one."""
    first = max(0, len(block) - look_back)
    if all(block.find(bar, first) < 0 for bar in _BARS):
        return False
    begin = block.rfind(b"\n", 0, first) + 1
    while spans and spans[-1][1] >= begin:
        begin = min(begin, spans.pop()[0])
    spans.append((begin, len(block)))
    return True


def escaped(keywords: Mapping[bytes, list[int]]) -> dict[bytes, list[int]]:
    """Return what to search for in texts that stand in JSON, once or twice, to find lines with any of `keywords`."""
    parsers: dict[bytes, list[int]] = {}
    for keyword, meaning in keywords.items():
        part = max(_ESCAPED_BYTES.split(keyword), key=len)
        for spelling in [part] if len(part) >= WINDOW_BYTES else _spellings(keyword):
            parsers[spelling] = [*parsers.get(spelling, []), *meaning]
    return parsers


def _spellings(keyword: bytes) -> set[bytes]:
    """Return the forms of a keyword in JSON in JSON, in JSON, and in other text. The end of a line may be the end of its text."""
    forms = {keyword}
    for _ in range(2):
        forms |= {form for text in forms for form in _json_forms(text)}
    if keyword.endswith(b"\n"):
        forms |= {keyword[:-1] + end for end in (b'"', rb"\"", rb"\\\"")}
    return forms


def _json_forms(text: bytes) -> Iterator[bytes]:
    for is_ascii in (True, False):
        form = json.dumps(text.decode(), ensure_ascii=is_ascii)[1:-1].encode()
        yield form
        yield form.replace(b"/", rb"\/")
        for character, escape in _GO_ESCAPES:
            form = form.replace(character, escape)
        yield form
        yield form.replace(b"'", rb"\u0027")
