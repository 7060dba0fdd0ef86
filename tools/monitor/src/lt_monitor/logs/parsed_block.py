"""What a block of log lines says: event records, and step lines that were read by columns."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from lt_monitor.events.records import Record
from lt_monitor.logs.fast.step_rows import StepBlock, StepRows
from lt_shared import credentials

Item = tuple[int, Record]
"""A record with the offset that orders it among the others."""

Origins = Callable[..., tuple[np.ndarray, list[Record]]]
"""Gives, for positions in a text without labels, where their lines begin with labels, and what the labels say."""


@dataclasses.dataclass
class ParsedBlock:
    """The events of a block of lines. Records lack their run and have only an `offset` under `src`, unless the line had both."""

    items: list[Item]
    rows: list[StepRows]

    def records(self, path: str, run: str) -> list[Record]:
        """All events in the order of the log, complete with run and source."""
        ordered = [(order, attributed(record, path, run)) for order, record in self.ordered_items()]
        for part in self.rows:
            ordered += zip(part.offsets.tolist(), part.records(path, run), strict=True)
        if self.rows:
            ordered.sort(key=in_order)
        return [record for _, record in ordered]

    def relabelled(self, offset: int, origins: Origins) -> "ParsedBlock":
        """The events of a text from which labels came off, where their lines are in the log and with what their labels say.

        `offset` is that of the block in the log; an event that began before it keeps its place.
        """
        positions = np.array([max(0, order - offset) for order, _ in self.items], dtype=np.int64)
        begins, labels = origins(positions)
        items: list[Item] = []
        for (order, record), begin, label in zip(self.items, begins.tolist(), labels, strict=True):
            source = record["src"]
            if "file" not in source and source["offset"] >= offset:
                at = begin if source["offset"] == order else int(origins(np.array([source["offset"] - offset]))[0][0])
                record["src"] = {**source, "offset": offset + at}
            items.append((offset + begin, label | record) if order >= offset else (order, record))
        rows: list[StepRows] = []
        for part in self.rows:
            has_time = any(column.field.is_time for column in part.template.columns)
            begins, labels = origins(part.offsets - offset, not has_time)
            rows += part.relabelled(begins + offset, labels)
        return ParsedBlock(items, rows)

    def ordered_items(self) -> list[Item]:
        """The items in the order of the log: a dump is found by its first line and ends at its last."""
        return sorted(self.items, key=in_order)

    def step_block(self) -> StepBlock | None:
        """The step rows together; None when there are none."""
        return StepBlock.of(self.rows) if self.rows else None


def attributed(record: Record, path: str, run: str) -> Record:
    """A record of `ParsedBlock.items` with its run and source; those that it has already stay. Secrets in its texts are covered.

    Programs print their arguments and the requests that failed, and what they print goes to chat rooms.
    """
    source = record.pop("src")
    file = source.get("file")
    return {
        "v": record.pop("v"),
        "kind": record.pop("kind"),
        "run": record.pop("run", run),
        **credentials.covered(record),
        "src": {"file": file if isinstance(file, str) else path, "offset": source["offset"]},
    }


def in_order(item: tuple[int, Any]) -> int:
    """The key that sorts items."""
    return item[0]
