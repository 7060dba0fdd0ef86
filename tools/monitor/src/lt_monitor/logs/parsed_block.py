"""The events of a block of log lines: single records, and step lines that were read by columns."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from lt_monitor.events.records import Record
from lt_monitor.logs.fast.step_rows import StepBlock, StepRows
from lt_shared import credentials

Item = tuple[int, Record]
"""A record and the offset that it is sorted by."""

Origins = Callable[..., tuple[np.ndarray, list[Record]]]
"""Maps positions in a text without labels to the beginnings of their labelled lines, and returns the parsed labels."""


@dataclasses.dataclass
class ParsedBlock:
    """The events of a block of lines. Records lack their run and have only an `offset` under `src`, unless the line had both."""

    items: list[Item]
    rows: list[StepRows]

    def records(self, path: str, run: str) -> list[Record]:
        """Return every event in the order of the log, complete with run and source."""
        ordered = [(order, attributed(record, path, run)) for order, record in self.ordered_items()]
        for part in self.rows:
            ordered += zip(part.offsets.tolist(), part.records(path, run), strict=True)
        if self.rows:
            ordered.sort(key=in_order)
        return [record for _, record in ordered]

    def relabelled(self, offset: int, origins: Origins) -> "ParsedBlock":
        """Move the events of an unlabelled text to their lines' offsets in the log, and add the values of the labels.

        `offset` is the block's offset in the log. An event that began in an earlier block keeps its offset.
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
        """Return the items in the order of the log; a dump is added only at its last line but belongs at its first."""
        return sorted(self.items, key=in_order)

    def step_block(self) -> StepBlock | None:
        """Join the step rows; return None if there are none."""
        return StepBlock.from_rows(self.rows) if self.rows else None


def attributed(record: Record, path: str, run: str) -> Record:
    """Add run and source to a record of `ParsedBlock.items`, unless it has them, and mask secrets in its texts.

    Programs print their arguments and failed requests, which may contain secrets, and alerts copy these texts to chat rooms. A
    node that is None tells that the label in front of the line names another node than the record is about.
    """
    source = record.pop("src")
    if record.get("node", "") is None:
        del record["node"]
    file = source.get("file")
    return {
        "v": record.pop("v"),
        "kind": record.pop("kind"),
        "run": record.pop("run", run),
        **credentials.covered(record),
        "src": {"file": file if isinstance(file, str) else path, "offset": source["offset"]},
    }


def in_order(item: tuple[int, Any]) -> int:
    """Return the sort key of an item: its offset."""
    return item[0]
