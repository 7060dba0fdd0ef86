"""The interface of line parsers, and the functions that the modules of `formats` and `trainers` share.

A parser takes a `lines.Line`. It returns a `StepLine` for a training step, a record with `kind` and fields for any other event,
and None for a line that it does not recognise. `formats.table.PARSERS` lists the parsers with their keywords.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lt_monitor.events.records import MESSAGE_CHARACTERS, Record
from lt_monitor.logs.fields import RANK, TASK, TIME, Field, Value, decimal
from lt_monitor.logs.lines import Line
from lt_shared.lazy_patterns import regex as regex

LABELS = frozenset(label.name for label in (RANK, TASK, TIME))


class StepLine(NamedTuple):
    """A training step's line: the positions of its values, and the begin and end of the trainer's own text in the line.

    The defaults of `begin` and `end` are the first and the last value. Text outside was printed by other processes and is parsed
    separately. `record` is the step if the values alone do not determine it; such lines are read one by one.
    """

    values: list[Value]
    begin: int | None = None
    end: int | None = None
    record: Record | None = None

    def span(self) -> tuple[int, int]:
        if self.begin is not None and self.end is not None:
            return self.begin, self.end
        fields = [(begin, end) for field, begin, end in self.values if field is None or field.name not in LABELS] or [(0, 0)]
        begin = min(begin for begin, _ in fields) if self.begin is None else self.begin
        return begin, max(end for _, end in fields) if self.end is None else self.end


class ManyLines(NamedTuple):
    """A training step that is printed over many lines.

    `head` parses the first line to a record. `below` parses a line after it (without a launcher's prefix) to fields; None means
    that the step has ended. A step has at most `most_lines` lines below its head. The steps of an engine (`is_engine`) count
    until the trainer that uses it prints steps itself. `needs_values`: the first line alone is no step.
    """

    head: Callable[[Line], Record | None]
    below: Callable[[bytes], Record | None]
    most_lines: int = 1000
    is_engine: bool = False
    needs_values: bool = False


Parser = Callable[[Line], StepLine | Record | None]


# Prefixes with a node's name: the kernel's log, NCCL (HOST:PID:TID [GPU]).
_NODE = regex(
    rb"(?P<kernel>[A-Za-z0-9][\w.-]{0,252}) kernel: |(?:^|[\s\]])(?P<nccl>[A-Za-z][\w.-]{0,252}):\d{1,8}:\d{1,8} \[\d{1,3}\] "
)
_LEVEL = rb"(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|[DIWEF])\b"
# The label [HOST:RANK] of launchers. Loggers write [MODULE.FUNCTION:LINE], [FILE.py:LINE] and [PID:NUMBER] in the same form, but
# beside a time, a level or other fields.
_LAUNCHED = regex(
    rb"(?:\[(?!\d{2,4}[-/:]|" + _LEVEL + rb")[^\[\]\r\n]{1,80}\](?:<std\w{3}>)?:? ?){0,2}"
    rb"\[(?P<launcher>(?!\w{1,60}\.(?:py|cc?|cpp|cu|h|rs|go)\b)[A-Za-z][\w.-]{0,252}):\d{1,6}\]"
    rb"(?!:? ?(?:- |\| )?(?:\[?" + _LEVEL + rb"|\[[A-Z][\w.]{0,60}:\d))"
)
_NO_NODES = (b"localhost", b"GPU")
_FIELDS = regex(rb"(?i)(?:(?:\w{1,20}_)?rank|[pt]?id|[gnhtx]pu|line|file|func|thread|step|epoch|device|worker|task|[dtpce]p|pg)$")
# A warning may name an error that has not happened, or explain how to search for one.
_WARNING = regex(rb"Warning: |\[W\d{0,4}[ \]]|\bWARNING\b|\b[Cc]onsider |For debugging|\bW\d{4} \d\d:\d\d")
_BEFORE_BYTES = 300

# Bracketed labels of launchers in any form, but not the level of a logger.
BRACKETS = rb"(?:\[(?![A-Z]{4,8}\])[\w .,:/@-]{1,80}\]:? ?){0,3}"

MINIMUM_DIGITS = 3


def pair(fields: Mapping[bytes, Field], key: bytes, text: bytes) -> Record:
    """Convert a key and its text to a field of `fields`, or to a metric if `fields` does not have the key.

    A rate with less than MINIMUM_DIGITS digits is too inexact for a step's time and gives no field.
    """
    field = fields.get(key)
    if field is None:
        return {"metrics": {key.decode(errors="replace"): decimal(text.replace(b",", b""))}}
    if not field.is_rate:
        return {field.name: field.read(text)}
    rate = decimal(text)
    return {field.name: 1 / rate} if rate and rate > 0 and significant_digits(text) >= MINIMUM_DIGITS else {}


def significant_digits(text: bytes) -> int:
    return len(text.lower().partition(b"e")[0].replace(b".", b"").lstrip(b"+-0"))


def fault(line: Line, name: str, cause: str, severity: str, begin: int | None = None, **fields: Any) -> Record:
    """Build a fault record whose message is the line from `begin`, by default from the end of the launcher's prefixes.

    The node comes from `fields`, or else from the line's prefix.
    """
    if fields.get("node") is None:
        fields["node"] = node(line)
    return {
        "kind": "fault",
        "fault": name,
        "cause": cause,
        "severity": severity,
        "message": message(line, begin),
        **{field: value for field, value in fields.items() if value is not None},
    }


def node(line: Line) -> str | None:
    """Return the node that the line's prefix names, or None."""
    match = _NODE.search(line.text, 0, _BEFORE_BYTES) or _LAUNCHED.match(line.text, line.body) or _LAUNCHED.match(line.text)
    name = match[match.lastgroup] if match is not None and match.lastgroup else None
    return None if name is None or name in _NO_NODES or _FIELDS.match(name) is not None else name.decode()


def is_warning(line: Line, begin: int) -> bool:
    """Whether the text at `begin` is part of a warning or an advice, which is never evidence of a failure."""
    return _WARNING.search(line.text, max(0, begin - _BEFORE_BYTES), begin) is not None


def note(line: Line, name: str, fields: Record, begin: int | None = None) -> Record:
    return {"kind": "note", "note": name, "message": message(line, begin), "fields": fields}


def last_match(pattern: re.Pattern[bytes], text: bytes) -> re.Match[bytes] | None:
    """Return the last match of a pattern, because an unfinished line of a dead process may come before it."""
    last = None
    for match in pattern.finditer(text):
        last = match
    return last


def message(line: Line, begin: int | None = None) -> str:
    return line.decode(line.body if begin is None else begin).strip()[:MESSAGE_CHARACTERS]
