"""What holds for the fixture of every trainer in samples/trainers: real lines, each with its source."""

import csv
from pathlib import Path

import pytest

from lt_monitor.events import records
from lt_monitor.events.records import Record
from lt_monitor.logs.fast.step_templates import MINIMUM_ALIKE_LINES
from lt_monitor.logs.log_parser import LogParser

TRAINERS = Path(__file__).parents[2] / "samples" / "trainers"
LOGS = sorted(TRAINERS.glob("*.log"))


def without_offset(record: Record) -> Record:
    return {field: value for field, value in record.items() if field != "src"}


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_every_line_has_a_source(log: Path) -> None:
    with (TRAINERS / "SOURCES.tsv").open() as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["file"] == log.name]
    covered: list[int] = []
    for row in rows:
        first, _, last = row["lines"].partition("-")
        covered += range(int(first), int(last or first) + 1)
        assert row["source"] and row["licence"]
    assert sorted(covered) == list(range(1, log.read_bytes().count(b"\n") + 1))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_its_events_are_of_the_schema(log: Path) -> None:
    events = LogParser().parse(log.read_bytes(), 0).records(log.name, log.stem)
    assert any(event["kind"] == "step" for event in events)
    for event in events:
        assert records.problem(dict(event)) is None


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_columns_and_single_lines_are_read_alike(log: Path) -> None:
    """A parser that has seen a line often reads the next ones by columns; they must be what one line alone gives."""
    for line in log.read_bytes().splitlines(keepends=True):
        parser = LogParser()
        once = parser.parse(line, 0).records("log", "run")
        often = parser.parse(line * 2 * MINIMUM_ALIKE_LINES, 0).records("log", "run")
        if once and once[0]["kind"] == "step" and not once[0].get("step_is_counted"):
            assert [without_offset(record) for record in often] == [without_offset(once[0])] * 2 * MINIMUM_ALIKE_LINES
