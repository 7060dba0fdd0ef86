"""How far the records of a log were taken, and which records are repetitions.

In `scrape | alert` each of the two has a state file of its own. When the pipe breaks, scrape prints the same records again in
its next pass, and alert may have taken some of them. It recognises them by the begin of the pass: the same offset with the same
record. A log that was overwritten may begin like the earlier one, with the same arguments; its note `replaced`, which comes
first, distinguishes them.
"""

import dataclasses
import hashlib
import json
from typing import Any

from lt_monitor.events.records import Record


@dataclasses.dataclass
class LogState:
    """How far the records of one log were taken.

    `attempt` is the index of the attempt that the log is in, `steps` the last step of each process, `started` the start lines
    of this attempt. `head` and `batch` are offset and digest of the first record of the log and of the first one of the
    last pass, `offset` is that of the last record. A pass that begins with one of the two repeats an earlier one, which its
    reader did not finish (`repeats`), and its records up to `offset` are not taken again.
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
