"""Records: documents of formats that are read from their beginning, such as rows of a table or samples of an archive.

A reader of a format yields its records one after the other; they are joined into chunks of about 1 MiB, and the worker that
encodes a chunk parses them. A document's row is the number of its record in the file, from 1.
"""

import abc
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from lt_preprocess.readers import chunks, json_line, text_keys
from lt_preprocess.readers.batch import BadLine, Batch, ChunkLines, Column
from lt_preprocess.readers.chunks import Chunk, Position
from lt_preprocess.texts import Texts
from lt_shared.console import BadData
from lt_shared.data.document_origins.origins import Kind

_OVERHEAD_BYTES = 256
"""Memory of a record besides its text."""


class Record(abc.ABC):
    """One document, not parsed yet. `size_bytes` is about what it takes in memory."""

    size_bytes: int

    @abc.abstractmethod
    def texts(self, json_key: str) -> list[bytes]:
        """Return the texts of a key in UTF-8, without empty texts. Raises json_line.Unusable."""

    @abc.abstractmethod
    def raw(self) -> bytes:
        """Return the record as a quarantine file keeps it."""


class TextRecord(Record):
    """One text, whatever the key is called."""

    def __init__(self, text: bytes):
        self._text = text
        self.size_bytes = len(text)

    def texts(self, json_key: str) -> list[bytes]:
        if text_keys.is_record(json_key):
            raise json_line.Unusable("not a JSON object")
        return [self._text] if self._text else []

    def raw(self) -> bytes:
        return self._text


class FieldsRecord(Record):
    """Texts by the names of their columns; None is a null."""

    def __init__(self, fields: Mapping[str, bytes | None]):
        self._fields = fields
        self.size_bytes = sum(len(value) for value in fields.values() if value is not None)

    def texts(self, json_key: str) -> list[bytes]:
        if text_keys.is_record(json_key):
            return [self.raw()]
        name = text_keys.name_of(json_key)
        value = self._fields.get(name)
        if value is None and text_keys.is_optional(json_key):
            return []
        if name not in self._fields:
            raise json_line.Unusable(json_line.missing_key(json_key, self._fields))
        if value is None:
            raise json_line.Unusable(json_line.wrong_type(json_key, None))
        return [value] if value else []

    def raw(self) -> bytes:
        values = {name: None if value is None else value.decode(errors="replace") for name, value in self._fields.items()}
        return json.dumps(values, ensure_ascii=False).encode()


class JsonRecord(Record):
    """An object in JSON."""

    def __init__(self, line: bytes):
        self._line = line
        self.size_bytes = len(line)

    def texts(self, json_key: str) -> list[bytes]:
        [of_key] = json_line.texts_of(self._line, (json_key,))
        return of_key

    def raw(self) -> bytes:
        return self._line


class UnusableRecord(Record):
    """A record that holds no document, with the reason."""

    def __init__(self, reason: str, raw: bytes = b""):
        self._reason, self._raw = reason, raw
        self.size_bytes = len(raw)

    def texts(self, json_key: str) -> list[bytes]:
        raise json_line.Unusable(self._reason)

    def raw(self) -> bytes:
        return self._raw


@dataclasses.dataclass(frozen=True)
class RowChunk(Chunk):
    """Rows of a file from number `first_row` (from 0) on."""

    first_row: int

    kind: ClassVar[Kind] = "row"


@dataclasses.dataclass(frozen=True)
class RecordsChunk(RowChunk):
    records: list[Record]

    def batch(self, json_keys: tuple[str, ...]) -> Batch:
        by_key: list[list[list[bytes]]] = [[] for _ in json_keys]
        reasons: dict[int, str] = {}
        for number, record in enumerate(self.records):
            try:
                of_record = [record.texts(json_key) for json_key in json_keys]
                reason = next((reason for texts in of_record for text in texts if (reason := _invalid(text))), None)
            except json_line.Unusable as unusable:
                reason = str(unusable)
            if reason is not None:
                reasons[number] = reason
                continue
            for texts, documents in zip(of_record, by_key, strict=True):
                documents.append(texts)
        bad_lines = [self._bad_line(number, reason) for number, reason in reasons.items()]
        return Batch([_column(of_key) for of_key in by_key], bad_lines, self._lines(reasons))

    def _lines(self, reasons: dict[int, str]) -> ChunkLines:
        return ChunkLines(self.first_row, len(self.records), sorted(reasons))

    def _bad_line(self, number: int, reason: str) -> BadLine:
        row = self.first_row + number
        return BadLine(self.source, row, reason, self.records[number].raw(), lambda: row + 1, is_row=True)


def _invalid(text: bytes) -> str | None:
    try:
        text.decode()
    except UnicodeDecodeError:
        return json_line.invalid_utf8(text, "text")
    return None


def _column(documents: list[list[bytes]]) -> Column:
    texts = [text for of_document in documents for text in of_document]
    return Column(Texts.from_list(texts), np.array([len(of_document) for of_document in documents], np.int64))


def record_chunks(source: str, records: Iterator[Record], start: Position) -> Iterator[RecordsChunk]:
    """Join the records from `start` on, whose offset counts records, to chunks of about CHUNK_BYTES."""
    waiting: list[Record] = []
    size_bytes = 0
    row = 0
    for record in records:
        row += 1
        if row <= start.offset:
            continue
        record_bytes = record.size_bytes + _OVERHEAD_BYTES
        if waiting and size_bytes + record_bytes > chunks.CHUNK_BYTES:
            yield _chunk(source, start.input, row - 1, waiting)
            waiting, size_bytes = [], 0
        waiting.append(record)
        size_bytes += record_bytes
    if waiting:
        yield _chunk(source, start.input, row, waiting)


def _chunk(source: str, input_number: int, next_row: int, records: list[Record]) -> RecordsChunk:
    return RecordsChunk(source, Position(input_number, next_row, next_row + 1), next_row - len(records), records)


def too_long(source: str, subject: str) -> BadData:
    return BadData(f"{source}: {subject} of more than {chunks.LONGEST_LINE_BYTES >> 30} GiB", "split it, or leave it out")
