"""What a block of log lines says: event records, and step lines that were read by columns."""

import dataclasses
from typing import Any

from lt_monitor.events.records import Record
from lt_monitor.logs.step_rows import StepBlock, StepRows
from lt_shared import credentials

Item = tuple[int, Record]
"""A record with the offset that orders it among the others."""


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
