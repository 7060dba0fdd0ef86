"""Track which records of a log were taken, and recognise repetitions.

In `scrape | alert`, each command has a state file. When the pipe breaks, scrape prints the same records again in its next pass,
and alert may have taken some of them already. alert recognises a repeated pass by its first record: same offset, same content. An
overwritten log may begin like the earlier one, with the same arguments. Its first note, `replaced`, distinguishes the two.
"""

import dataclasses
import hashlib
import json
from typing import Any

from lt_monitor.events.records import Record


@dataclasses.dataclass
class LogState:
    """The progress in a log's records.

    `attempt` is the index of the log's present attempt, `steps` has the processes' last steps, `started` the attempt's start
    lines. `head` is the offset and digest of the log's first record, `batch` of the last pass's first record. `offset` is
    the offset of the last record. A pass that begins with `head` or `batch` repeats a pass that its reader did not finish
    (`repeats`); its records up to `offset` are not taken again.
    """

    attempt: int
    steps: dict[str, int] = dataclasses.field(default_factory=dict)
    started: dict[str, None] = dataclasses.field(default_factory=dict)
    head: list[Any] | None = None
    batch: list[Any] | None = None
    offset: int = -1
    repeats: bool = False

    def is_repeated(self, record: Record, first: bool) -> bool:
        """Whether this record was taken before; otherwise it is now. `first`: it is the first one of this log in a pass."""
        recorded_offset = record["src"].get("offset")
        offset = recorded_offset if type(recorded_offset) is int else 0
        identity = [offset, _digest(record)] if first or self.head is None else None
        if record["kind"] == "note" and record.get("note") == "replaced" and not (first and self.head and identity == self.batch):
            self.offset, self.head, self.batch, self.repeats = -1, None, identity, False
            return False
        if self.head is None:
            self.head = identity
            self.batch = identity if first else self.batch
        elif first:
            self.repeats = offset <= self.offset and identity in (self.head, self.batch)
            if not self.repeats:
                self.batch = identity
                if offset <= self.offset:
                    self.head = identity
        if self.repeats and offset <= self.offset:
            return True
        self.repeats = False
        self.offset = offset
        return False


def _digest(record: Record) -> str:
    text = json.dumps(record, sort_keys=True, default=str).encode(errors="replace")
    return hashlib.blake2b(text, digest_size=8).hexdigest()
