"""The state in a journal, for a later run to resume from."""

import dataclasses
from typing import Any, Self

from lt_preprocess.pipeline.origin_rows import NOTHING_READ, InputLines
from lt_preprocess.readers.chunks import BEGINNING, Position
from lt_shared.data.indexed_dataset import Extent

_NEWER_FIELDS: dict[str, Any] = {"removed": {}, "removed_before": {}, "input_documents": 0, "tokens": 0, "empty_fields": ()}


@dataclasses.dataclass(frozen=True)
class State:
    """The data on disk. Reading resumes at `position`, before which the input has `lines`.

    The first `taken` documents after `position` have been written, and the bad lines and removed documents before the next one
    counted. Before it there were `input_documents` documents, whose
    `tokens` in the datasets of the keys together; `empty_fields` counts the documents that do not fill each optional field of the
    template.

    `part` is being written. It has `extents`, one for each key, and `quarantine_bytes` and `origin_bytes` with these CRC-32, from
    the inputs with the indices `first_input` to `last_input` (None: from none yet); earlier parts had `bad_lines_before`, and
    their rules removed `removed_before` documents, by kind. `is_closed`: the part is complete and to be published; `is_last`: no
    part follows.
    """

    position: Position = BEGINNING
    taken: int = 0
    part: int = 0
    first_input: int | None = None
    last_input: int | None = None
    extents: tuple[Extent, ...] = ()
    quarantine_bytes: int = 0
    quarantine_crc32: int = 0
    origin_bytes: int = 0
    origin_crc32: int = 0
    bad_lines_before: int = 0
    bad_lines: int = 0
    removed_before: dict[str, int] = dataclasses.field(default_factory=dict)
    removed: dict[str, int] = dataclasses.field(default_factory=dict)
    reported: tuple[str, ...] = ()
    text_bytes: int = 0
    is_closed: bool = False
    is_last: bool = False
    lines: InputLines = NOTHING_READ
    input_documents: int = 0
    tokens: int = 0
    empty_fields: tuple[int, ...] = ()

    def with_input(self, number: int) -> "State":
        """Something of this input comes into the part."""
        first = number if self.first_input is None else self.first_input
        return dataclasses.replace(self, first_input=first, last_input=number)

    def next_part(self) -> "State":
        """Nothing of the next part is written."""
        return dataclasses.replace(
            self,
            part=self.part + 1,
            first_input=None,
            last_input=None,
            extents=tuple(Extent() for _ in self.extents),
            quarantine_bytes=0,
            quarantine_crc32=0,
            origin_bytes=0,
            origin_crc32=0,
            bad_lines_before=self.bad_lines,
            removed_before=self.removed,
            is_closed=False,
        )

    @property
    def is_worth_keeping(self) -> bool:
        """Documents without text are not."""
        return self.part > 0 or any(extent.tokens for extent in self.extents)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        # Earlier versions did not write all fields.
        record = _NEWER_FIELDS | record
        fields = {field.name: record[field.name] for field in dataclasses.fields(cls)}
        return cls(
            **fields
            | {
                "position": Position(*fields["position"]),
                "lines": InputLines(*fields["lines"]),
                "extents": tuple(Extent(**extent) for extent in fields["extents"]),
                "reported": tuple(fields["reported"]),
                "removed": dict(fields["removed"]),
                "removed_before": dict(fields["removed_before"]),
                "empty_fields": tuple(fields["empty_fields"]),
            }
        )

    @property
    def is_sound(self) -> bool:
        """Whether all fields are of their types, which a record from a file may not hold."""
        inputs = [number for number in (self.first_input, self.last_input) if number is not None]
        counts = [*self.position, *self.lines, self.taken, self.part, self.bad_lines_before]
        counts += [self.quarantine_bytes, self.quarantine_crc32, self.origin_bytes, self.origin_crc32]
        counts += [self.bad_lines, *inputs, self.text_bytes, *self.removed.values(), *self.removed_before.values()]
        counts += [self.input_documents, self.tokens, *self.empty_fields]
        counts += [count for extent in self.extents for count in dataclasses.astuple(extent)]
        return (
            all(type(count) is int and count >= 0 for count in counts)
            and all(isinstance(line, str) for line in self.reported)
            and isinstance(self.is_closed, bool)
            and isinstance(self.is_last, bool)
        )
