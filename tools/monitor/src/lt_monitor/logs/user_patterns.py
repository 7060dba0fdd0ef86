"""Patterns that a user gives for a trainer of their own, so that its logs need no code here.

A pattern is a regular expression whose named groups are fields of the record. It is searched in whole blocks by `re`, which reads
about 100 MB/s beside the 2 GB/s of the built-in keywords; lines of steps that differ only in digits are read by columns as those
of all trainers.

    [[step]]
    pattern = 'update (?P<step>\\d+) of (?P<total_steps>\\d+), loss (?P<loss>\\S+), (?P<step_milliseconds>[\\d.]+) ms'

    [[fault]]
    pattern = 'loader ran out of shards'
    severity = "critical"
"""

import contextlib
import dataclasses
import re
import tomllib
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

# What a kind of record has in every line: the default, and which values may be given.
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
# Other units of a field, by the name that a group then has.
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
    """One pattern, the kind of record that its matches are, and what these have besides their groups."""

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
    """The field of a group; a name that records do not have is a metric."""
    known = LABELS.get(name) or UNITS.get(name)
    if known is not None:
        return known
    return Field(name, is_count=name in COUNTS, is_metric=name not in COUNTS | NUMBERS | TEXTS)


def _without(labels: Iterable[Value], values: Iterable[Value]) -> list[Value]:
    """The labels of a line that no group of the pattern gives."""
    given = {field for field, _, _ in values}
    return [label for label in labels if label[0] not in given]


def _around(match: re.Match[bytes]) -> list[Value]:
    """What stands around a match may have other digits in other lines."""
    return [(None, 0, match.start()), (None, match.end(), len(match.string))]


def step_pattern(text: str) -> UserPattern:
    """The pattern of `--generic`. Raises BadConfig for what is none."""
    return _pattern("step", {"pattern": text}, "--generic")


def read(path: str) -> list[UserPattern]:
    """The patterns of a TOML file: arrays of tables named by the kind of record.

    Raises NoInput when there is no such file, BadConfig for what is no pattern.
    """
    with storage.open_read(path) as file:
        content = file.read(MAXIMUM_BYTES + 1)
    try:
        if len(content) > MAXIMUM_BYTES:
            raise ValueError(f"longer than {MAXIMUM_BYTES} bytes")
        tables = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise BadConfig(f"{path}: not TOML: {printable(error)}", "[[step]] and pattern = '...'") from None
    found = []
    for kind, entries in tables.items():
        if kind not in SETTINGS or not isinstance(entries, list):
            raise BadConfig(f"{path}: {printable(repr(kind), 60)} is not a kind of event", f"[[{']], [['.join(SETTINGS)}]]")
        found += [_pattern(kind, entry, f"{path}: [[{kind}]]") for entry in entries]
    if not found:
        raise BadConfig(f"{path}: no patterns", "[[step]] and pattern = '...'")
    return found


def _pattern(kind: str, entry: Any, where: str) -> UserPattern:
    text = entry.get("pattern") if isinstance(entry, dict) else None
    if not isinstance(text, str):
        raise BadConfig(f"{where}: no pattern", EXAMPLE)
    try:
        expression = re.compile(text.encode(), re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadConfig(f"{where}: not a regular expression: {printable(error)}", EXAMPLE) from None
    missing = [name for name in REQUIRED.get(kind, ()) if name not in expression.groupindex]
    if missing:
        raise BadConfig(f"{where}: no group named {missing[0]}", EXAMPLE)
    if expression.search(b"") is not None:
        raise BadConfig(f"{where}: matches an empty line", EXAMPLE)
    settings: Record = {}
    for name, (default, allowed) in SETTINGS[kind].items():
        settings[name] = entry.get(name, default)
        if settings[name] not in allowed:
            raise BadConfig(f"{where}: {name} = {printable(repr(settings[name]), 60)}", f"one of {', '.join(allowed)}")
    unknown = sorted(entry.keys() - {"pattern", *SETTINGS[kind]})
    if unknown:
        raise BadConfig(f"{where}: {printable(unknown[0], 60)} is no setting", f"there are {', '.join(['pattern', *settings])}")
    return UserPattern(kind, expression, settings)


_ACTIVE: list[tuple[UserPattern, ...]] = [()]


def active() -> tuple[UserPattern, ...]:
    """The patterns with which logs are read now."""
    return _ACTIVE[-1]


@contextlib.contextmanager
def using(patterns: Iterable[UserPattern]) -> Iterator[None]:
    """Read logs with these patterns, too, and before all others."""
    _ACTIVE.append(tuple(patterns))
    try:
        yield
    finally:
        _ACTIVE.pop()
