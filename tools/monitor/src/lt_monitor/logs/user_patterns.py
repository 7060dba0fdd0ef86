"""Read logs of further trainers by the user's patterns, without new code.

A pattern is a regular expression whose named groups are fields of the record. `re` searches whole blocks at about 100 MB/s; the
built-in keywords reach 2 GB/s. Step lines that differ only in digits are read by columns like other trainers' step lines.

    [[step]]
    pattern = 'update (?P<step>\\d+) of (?P<total_steps>\\d+), loss (?P<loss>\\S+), (?P<step_milliseconds>[\\d.]+) ms'

    [[fault]]
    pattern = 'loader ran out of shards'
    severity = "critical"
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any

from lt_monitor.events.escaping import printable
from lt_monitor.events.records import CAUSES, COUNTS, END_REASONS, FAULTS, NUMBERS, SEVERITIES, TEXTS, Record
from lt_monitor.logs.fields import RANK, TASK, TIME, Field, Value, read_values
from lt_monitor.logs.line_parsers import StepLine, fault
from lt_monitor.logs.lines import Line
from lt_shared.console import BadConfig
from lt_shared.contracts.run_log import GIB
from lt_shared.files import storage

# The settings of a pattern by kind of record: the default and the allowed values.
SETTINGS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "step": {},
    "eval": {"split": ("validation", ("validation", "test"))},
    "checkpoint": {},
    "load": {},
    "end": {"reason": ("completed", END_REASONS)},
    "fault": {
        "fault": ("traceback", FAULTS),
        "severity": ("critical", SEVERITIES),
        "cause": ("root", CAUSES),
    },
}
REQUIRED = {"step": ("step",), "eval": ("step", "loss")}
# Group names for a field in another unit.
UNITS = {
    "step_milliseconds": Field("step_seconds", divisor=1000.0),
    "steps_per_second": Field("step_seconds", is_rate=True),
    "mfu_percent": Field("mfu", divisor=100.0),
    "memory_gib": Field("memory_bytes", is_count=True, factor=float(GIB)),
}
LABELS = {"time": TIME, "rank": RANK, "task": TASK}
MAXIMUM_BYTES = 1 << 20
EXAMPLE = r"e.g. 'step (?P<step>\d+) .* loss (?P<loss>[\d.]+)'"


@dataclasses.dataclass(frozen=True)
class UserPattern:
    """One pattern, the kind of record of its matches, and the settings that every record gets."""

    kind: str
    expression: re.Pattern[bytes]
    settings: Record

    def parse(self, line: Line) -> StepLine | Record | None:
        match = self.expression.search(line.text)
        if match is None:
            return None
        values: list[Value] = [(field_named(name), *match.span(name)) for name in match.groupdict() if match[name] is not None]
        if self.kind == "step":
            return StepLine([*values, *_without(line.labels, values), *_around(match)], *match.span())
        if self.kind == "fault":
            return fault(line, self.settings["fault"], self.settings["cause"], self.settings["severity"], match.start())
        texts = {name: match[name].decode(errors="replace") for name in match.groupdict() if name in TEXTS and match[name]}
        numbers = [value for value in values if value[0] is not None and value[0].name not in TEXTS]
        try:
            return {"kind": self.kind, **self.settings, **read_values(line.text, numbers), **texts}
        except ValueError:
            return None


def field_named(name: str) -> Field:
    """Return the field of a group; a name that records do not have becomes a metric."""
    field = LABELS.get(name) or UNITS.get(name)
    if field is not None:
        return field
    return Field(name, is_count=name in COUNTS, is_metric=name not in COUNTS | NUMBERS | TEXTS)


def _without(labels: Iterable[Value], values: Iterable[Value]) -> list[Value]:
    """Return the labels of a line whose field no group of the pattern has."""
    group_fields = {field for field, _, _ in values}
    return [label for label in labels if label[0] not in group_fields]


def _around(match: re.Match[bytes]) -> list[Value]:
    """Mark the text around a match, whose digits may differ between lines."""
    return [(None, 0, match.start()), (None, match.end(), len(match.string))]


def step_pattern(text: str) -> UserPattern:
    """Compile the pattern of `--generic`. Raises BadConfig for an invalid pattern."""
    return _pattern("step", {"pattern": text}, "--generic")


def read(path: str) -> list[UserPattern]:
    """Read the patterns of a TOML file, whose arrays of tables are named by the kind of record.

    Raises NoInput when there is no such file, BadConfig for an invalid pattern.
    """
    # 3 ms, for few runs.
    import tomllib

    with storage.open_read(path) as file:
        content = file.read(MAXIMUM_BYTES + 1)
    try:
        if len(content) > MAXIMUM_BYTES:
            raise ValueError(f"longer than {MAXIMUM_BYTES} bytes")
        tables = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise BadConfig(f"{path}: not TOML: {printable(error)}", "[[step]] and pattern = '...'") from None
    patterns = []
    for kind, entries in tables.items():
        if kind not in SETTINGS or not isinstance(entries, list):
            raise BadConfig(f"{path}: {printable(repr(kind), 60)} is not a kind of event", f"[[{']], [['.join(SETTINGS)}]]")
        patterns += [_pattern(kind, entry, f"{path}: [[{kind}]]") for entry in entries]
    if not patterns:
        raise BadConfig(f"{path}: no patterns", "[[step]] and pattern = '...'")
    return patterns


def _pattern(kind: str, entry: Any, place: str) -> UserPattern:
    text = entry.get("pattern") if isinstance(entry, dict) else None
    if not isinstance(text, str):
        raise BadConfig(f"{place}: no pattern", EXAMPLE)
    try:
        expression = re.compile(text.encode(), re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadConfig(f"{place}: not a regular expression: {printable(error)}", EXAMPLE) from None
    missing = [name for name in REQUIRED.get(kind, ()) if name not in expression.groupindex]
    if missing:
        raise BadConfig(f"{place}: no group named {missing[0]}", EXAMPLE)
    if expression.search(b"") is not None:
        raise BadConfig(f"{place}: matches an empty line", EXAMPLE)
    settings: Record = {}
    for name, (default, allowed) in SETTINGS[kind].items():
        settings[name] = entry.get(name, default)
        if settings[name] not in allowed:
            raise BadConfig(f"{place}: {name} = {printable(repr(settings[name]), 60)}", f"one of {', '.join(allowed)}")
    unknown = sorted(entry.keys() - {"pattern", *SETTINGS[kind]})
    if unknown:
        raise BadConfig(f"{place}: {printable(unknown[0], 60)} is no setting", f"there are {', '.join(['pattern', *settings])}")
    return UserPattern(kind, expression, settings)


_ACTIVE: list[tuple[UserPattern, ...]] = [()]


def active() -> tuple[UserPattern, ...]:
    """Return the patterns that are in use now."""
    return _ACTIVE[-1]


@contextlib.contextmanager
def using(patterns: Iterable[UserPattern]) -> Iterator[None]:
    """Use these patterns inside the block. They come before the built-in parsers."""
    _ACTIVE.append(tuple(patterns))
    try:
        yield
    finally:
        _ACTIVE.pop()
