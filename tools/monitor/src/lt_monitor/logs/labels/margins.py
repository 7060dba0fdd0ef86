"""Recognise labels of any logger and launcher by their shape: times, brackets, levels and names that repeat before the lines.

A program's own logger prints such labels too, and step parsers read those lines as they are. So a label is removed only if lines
behind it are no logger's messages: they are indented, like the frames of a traceback, or are a traceback's heading. A name counts
only if it repeats.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lt_monitor.events.records import Record
from lt_monitor.logs.labels import envelopes
from lt_shared.lazy_patterns import regex

MINIMUM_LINES = 4
MINIMUM_SHARE = 0.9
MAXIMUM_TOKENS = 8
MAXIMUM_NAMES = 64
MAXIMUM_SPELLINGS = 8
MAXIMUM_LABEL_BYTES = 240
# Loggers fill the level up to eight characters, and a space follows.
PADDED_BYTES = 9

_CLOCK = rb"\d\d:\d\d:\d\d(?:[.,:]\d{1,9})?"
_ZONE = rb"(?: ?(?:Z|UTC|GMT|CET|[+-]\d\d:?\d\d)\b)?"
_MONTH = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_TIME = (
    rb"(?:(?:\d{4}[-/.]\d\d[-/.]\d\d|\d\d[-/.]\d\d[-/.]\d{2,4})[T _-]{1,2}" + _CLOCK + _ZONE + rb"|"
    rb"(?:[A-Z][a-z]{2},? )?" + _MONTH + rb" [ \d]\d " + _CLOCK + rb"(?: \d{4})?|" + _CLOCK + rb"|\d{1,10}\.\d{3,9})"
)
_LEVEL = (
    rb"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL|SEVERE|debug|info|notice|warn|warning|error|critical|fatal"
    rb"|Info|Warning|Error)(?!\w)"
)
_BRACKET = (
    rb"(?:\[(?:[^\[\]\n]|\[[^\[\]\n]{0,60}\]){1,120}\]|\((?:[^()\n]|\([^()\n]{0,60}\)){1,120}\)|<{1,2}[^<>\n]{1,80}>{1,2}"
    # Loki's labels.
    rb"|\{(?:[\w.]{1,60}=\"[^\"\n]{0,300}\"(?:, ?)?){0,20}\})"
)
_PADDED_LEVEL = rb"(?:CRITICAL|WARNING |ERROR {3}|DEBUG {3}|INFO {4}|TRACE {3}|NOTICE {2}|SUCCESS )"
# glog, absl and klog.
_GLOG = rb"[IWEFD]\d{4,8} " + _CLOCK + rb" {1,9}\d{1,20} [^\s\]]{1,200}:\d{1,6}\]"
_NAME = rb"[A-Za-z0-9_][\w./@#$-]{0,120}(?::\d{1,6}(?![\w-]))?"
_NUMBER = rb"\d{1,20}(?![\w.])"
_KINDS: dict[str, bytes] = {
    "time": rb"\[" + _TIME + rb"\]|\(" + _TIME + rb"\)|<" + _TIME + rb">|" + _TIME + rb"(?!\d)",
    "glog": _GLOG,
    "bracket": _BRACKET,
    "level": _LEVEL,
    "number": _NUMBER,
    "name": _NAME,
}
# What stands between two parts of a label, and behind the last.
_PUNCTUATION = rb"(?: {0,60}(?:\|{1,2}|\xe2\x94\x82|>{1,2}|\xe2\x80\xba)|:{1,2}(?=[ \[<({\w\"]|$)|,(?= )| -(?= |$)|\](?= |$))?"
_COLOUR = rb"(?:\x1b\[[\d;]{0,20}m){0,3}"
_TOKEN = regex(
    _COLOUR + rb"(?:" + rb"|".join(b"(?P<%s>%s)" % (kind.encode(), source) for kind, source in _KINDS.items()) + rb")"
    rb"(?P<punctuation>" + _COLOUR + _PUNCTUATION + rb")(?:\t| {0,60})" + _COLOUR
)
# No message of a logger: a line of a traceback, of a stack or of a list.
_NO_MESSAGE = regex(rb"(?: {2,60}|\t)[^\s\d]|Traceback \(most recent call last\)")
_DIGITS = regex(rb"\d+")
_RANK = regex(rb"(?i)\brank[ :=_-]{0,2}(?P<rank>\d{1,7})\b")
_ALONE = regex(rb"\[(?P<rank>\d{1,7})\]")
_HOST = regex(rb"[\[<(]{0,2}(?P<host>[a-z](?=[\w.-]{0,200}\d)[\w-]{0,200}(?:\.[\w-]{1,60}){0,6})(?::\d{1,6})?[\])>]{0,2}")
_DATE = regex(
    rb"(?P<year>\d{4})[-/.](?P<month>\d\d)[-/.](?P<day>\d\d)[T _-]"
    rb"(?P<clock>\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_SECONDS = regex(rb"[\[(<]?(?P<seconds>\d{9,10}\.\d{3,9})[\])>]?$")
# Levels of messages that end nothing.
_QUIET = regex(rb"(?i)(?:trace|debug|info|notice|warn|warning)$")
# Words of step lines.
_NO_LABEL = regex(rb"(?i)(?:global[_ ]?)?(?:iter|iteration|step|steps|epoch|batch|loss|lm|consumed|progress)(?:[\d:/.]{1,20})?$")
# A name that needs no punctuation behind it.
_MARKED = regex(rb"[\d/.:-]")
# Names that are no hosts.
_NO_HOST = regex(rb"(?:(?:rank|step|iter|epoch|local_rank|device|default|worker_?id|proc|pid|thread)[_ -]?|gpu|cuda)\d{1,7}$")


_NAMELESS = frozenset({"time", "level", "number"})
# Parts that end by themselves, and the beginnings of the next part that need no space before them.
_CLOSED = frozenset({"bracket", "glog", "time"})
_OPENING = b"[<("


class Token(NamedTuple):
    """One part of a label: `text` without the punctuation behind it, `end` behind the punctuation, `next` behind the spaces."""

    kind: str
    text: bytes
    end: int
    next: int
    has_punctuation: bool

    def is_bare(self) -> bool:
        """Whether this is a word or a number like any in a sentence."""
        return not self.has_punctuation and (self.kind == "number" or _MARKED.search(self.text) is None)


class Margin(NamedTuple):
    """The label before the lines of a log.

    `kinds` are the kinds of its parts, `names` the patterns of the names at the places of names. `spaces` separate the label from
    the line. `is_padded`: a logger fills levels up to eight characters. `spellings` are patterns of the frequent labels.
    """

    kinds: tuple[str, ...]
    names: tuple[tuple[bytes, ...], ...]
    spaces: int
    is_padded: bool
    spellings: tuple[bytes, ...] = ()

    def pattern(self) -> re.Pattern[bytes]:
        """Return a pattern for a newline and the label behind it. The spellings are for speed."""
        names = iter(self.names)
        parts = [b"(?:" + (b"|".join(next(names)) if kind == "name" else _KINDS[kind]) + b")" for kind in self.kinds]
        if self.is_padded:
            parts[-1] = _PADDED_LEVEL
        between = _COLOUR + _PUNCTUATION + rb"(?:\t| {0,60})" + _COLOUR
        general = _COLOUR + between.join(parts) + _COLOUR + _PUNCTUATION
        return re.compile(rb"\n(?:" + b"|".join((*self.spellings, general)) + rb")(?:\t| {0,%d})" % self.spaces + _COLOUR)

    def names_nobody(self) -> bool:
        """Whether the label has neither a rank nor a node."""
        return _NAMELESS.issuperset(self.kinds)

    def read(self, line: bytes) -> Record:
        """Parse `time`, `rank` and `node` from the label in front of a line."""
        labels: Record = {}
        parts = list(itertools.islice(tokens(line), len(self.kinds)))
        first = next(iter(parts), None)
        for token, kind in zip(parts, self.kinds, strict=False):
            if token.kind != kind:
                break
            if kind == "time" or (kind == "bracket" and "time" not in labels):
                labels |= _time(token.text)
            if kind in ("bracket", "name") and (rank := _RANK.search(token.text)) is not None:
                labels["rank"] = int(rank["rank"])
            elif token is first and (alone := _ALONE.fullmatch(token.text)) is not None:
                labels["rank"] = int(alone["rank"])
            host = _HOST.fullmatch(token.text) if kind in ("bracket", "name") and "node" not in labels else None
            if host is not None and _NO_HOST.match(host["host"]) is None:
                labels["node"] = host["host"].decode()
        return labels


def tokens(line: bytes, begin: int = 0) -> Iterator[Token]:
    """Split the beginning of a line into parts that a label may have, up to MAXIMUM_TOKENS."""
    for _ in range(MAXIMUM_TOKENS):
        match = _TOKEN.match(line, begin)
        if match is None or match.end() > MAXIMUM_LABEL_BYTES:
            return
        kind = next(name for name in _KINDS if match[name] is not None)
        is_apart = match.end() > match.end(kind) or match.end() == len(line) or line[match.end()] in _OPENING
        if not is_apart and kind not in _CLOSED:
            return
        yield Token(
            kind,
            match[kind],
            match.end("punctuation"),
            match.end(),
            match.end("punctuation") > match.end(kind) or b"\t" in match[0],
        )
        begin = match.end()


def recognise(lines: Sequence[bytes]) -> Margin | None:
    """Return the label before nearly all `lines`; None if there is none, or if the program's own logger may print it."""
    filled = [line for line in lines if line.strip()]
    if len(filled) < MINIMUM_LINES:
        return None
    misses = int((1 - MINIMUM_SHARE) * len(filled) + 1e-9)
    rows: list[list[Token]] = []
    first_kinds: Counter[str] = Counter()
    for line in filled:
        row = list(tokens(line))
        first_kinds[row[0].kind if row else ""] += 1
        # Most logs have other lines between, and are no further examined.
        if first_kinds.total() - first_kinds.most_common(1)[0][1] + first_kinds[""] * (len(first_kinds) == 1) > misses:
            return None
        rows.append(row)
    counts = Counter(tuple(token.kind for token in row[:length]) for row in rows for length in range(1, len(row) + 1))
    kinds = max((kinds for kinds, count in counts.items() if count >= len(filled) - misses), key=len, default=())
    alike = [index for index, row in enumerate(rows) if tuple(token.kind for token in row[: len(kinds)]) == kinds]
    rows, filled = [rows[index] for index in alike], [filled[index] for index in alike]
    names: list[tuple[bytes, ...]] = []
    for index, kind in enumerate(kinds):
        if kind != "name":
            continue
        spellings = Counter(_DIGITS.sub(rb"\\d+", re.escape(row[index].text)) for row in rows)
        repeated = [name for name, count in spellings.most_common(MAXIMUM_NAMES) if count > 1]
        if any(_NO_LABEL.match(row[index].text) for row in rows) or sum(
            spellings[name] for name in repeated
        ) < MINIMUM_SHARE * len(rows):
            kinds = kinds[:index]
            break
        names.append(tuple(repeated))
    for length in range(len(kinds), 0, -1):
        margin = _margin(kinds[:length], tuple(names[: kinds[:length].count("name")]), rows, filled)
        if margin is not None:
            return margin
    return None


def _margin(
    kinds: tuple[str, ...], names: tuple[tuple[bytes, ...], ...], rows: list[list[Token]], lines: Sequence[bytes]
) -> Margin | None:
    """Return the label of these `kinds` if lines behind it are indented or head a traceback."""
    last = [row[len(kinds) - 1] for row in rows]
    if kinds[-1] in ("name", "number") and any(token.is_bare() for token in last):
        return None
    spaces = [token.next - token.end for token in last]
    is_padded = kinds[-1] == "level" and min(len(token.text) + token.next - token.end for token in last) >= PADDED_BYTES
    least = (
        1
        if is_padded
        else min((count for count, token, line in zip(spaces, last, lines, strict=True) if token.next < len(line)), default=0)
    )
    if not any(
        _NO_MESSAGE.match(line, token.end + min(least, count)) is not None or _is_shipped(line[token.next :])
        for count, token, line in zip(spaces, last, lines, strict=True)
    ):
        return None
    labels = Counter(_DIGITS.sub(rb"\\d+", re.escape(line[: token.end])) for token, line in zip(last, lines, strict=True))
    spellings = () if is_padded else tuple(label for label, count in labels.most_common(MAXIMUM_SPELLINGS) if count > 1)
    return Margin(kinds, names, least, is_padded, spellings)


def _is_shipped(line: bytes) -> bool:
    """Whether a shipper wrote the line, as JSON or with its text in quotes."""
    return envelopes.is_envelope(line) or envelopes.quoted_text(line) is not None


def boundaries(line: bytes, begin: int) -> Iterator[int]:
    """Yield the offsets behind each part of a possible label, where a crash may begin; none behind the level of a message."""
    for token in tokens(line, begin):
        if token.kind == "level" and _QUIET.match(token.text) is not None:
            return
        if token.kind not in ("name", "number") or not token.is_bare():
            yield token.next


def is_quiet(line: bytes) -> bool:
    """Whether a label in front of the line has the level of a message that ends nothing."""
    return any(token.kind == "level" and _QUIET.match(token.text) is not None for token in tokens(line))


def _time(text: bytes) -> Record:
    """Parse a date with a time, or seconds since 1970."""
    date = _DATE.search(text)
    if date is not None:
        parts = b"-".join((date["year"], date["month"], date["day"])) + b"T" + date["clock"] + (date["zone"] or b"")
        return {"time": parts.decode().replace(",", ".")}
    seconds = _SECONDS.match(text)
    time = envelopes.time_of(float(seconds["seconds"])) if seconds is not None else None
    return {} if time is None else {"time": time}
