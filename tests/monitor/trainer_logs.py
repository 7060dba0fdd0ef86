"""Logs of real runs, each of lines that a trainer printed: samples/trainers, with their sources in SOURCES.tsv there."""

import json
from pathlib import Path
from typing import Any

from lt_monitor.logs.log_parser import LogParser

TRAINERS = Path(__file__).parent / "samples" / "trainers"


def log_path(name: str) -> Path:
    return TRAINERS / f"{name}.log"


def events(name: str, kind: str | None = None) -> list[dict[str, Any]]:
    """The events of a trainer's log in its order, or those of one kind."""
    block = LogParser().parse(log_path(name).read_bytes(), 0)
    return [record for record in block.records(name, name) if kind in (None, record["kind"])]


def events_in(text: str | bytes) -> list[dict[str, Any]]:
    """The events of some lines, without the run and where they stand."""
    raw = text if isinstance(text, bytes) else text.encode()
    return [
        {field: value for field, value in record.items() if field not in ("v", "run", "src")}
        for record in LogParser().parse(raw, 0).records("log", "run")
    ]


def values(record: dict[str, Any]) -> dict[str, Any]:
    """What the line says, without where it stands."""
    return {field: value for field, value in record.items() if field not in ("v", "kind", "run", "src")}


def summary(tool: Any, name: str) -> dict[str, Any]:
    """The one run in the output of `summarize --json`."""
    (run,) = json.loads(tool("summarize", "--json", str(log_path(name))).stdout)["runs"]
    return dict(run)
