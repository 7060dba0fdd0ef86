"""Turn documents into bad lines: with `--special-tokens reject` those that contain the text of a special token.

A filter takes a chunk and its batch and returns the batch without some documents. Few documents are left out, so their lines are
located only when there are any: document i of a chunk is its i-th line, or row, that is neither blank nor already bad.
"""

import json
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from lt_preprocess.readers.batch import BadLine, Batch
from lt_preprocess.readers.chunks import Chunk
from lt_preprocess.readers.jsonl import LinesChunk
from lt_preprocess.readers.plain_text import TextChunk
from lt_preprocess.tokenizers.base import Encoder


def without_forbidden(chunk: Chunk, batch: Batch, encoder: Encoder, json_keys: tuple[str, ...]) -> Batch:
    """The batch of a chunk without the documents that the encoder must not encode."""
    reasons: dict[int, str] = {}
    for texts, texts_per_document in batch.columns:
        forbidden_tokens = encoder.forbidden(texts)
        if forbidden_tokens:
            document_of_text = np.repeat(np.arange(len(texts_per_document)), texts_per_document)
            for forbidden in forbidden_tokens:
                reasons.setdefault(int(document_of_text[forbidden.text]), str(forbidden))
    return without_documents(chunk, batch, json_keys, reasons)


def without_documents(chunk: Chunk, batch: Batch, json_keys: tuple[str, ...], reasons: Mapping[int, str]) -> Batch:
    """The batch of a chunk without the documents that have a reason to be left out; their lines become bad lines."""
    return batch.without(reasons.keys(), list(_bad_lines(chunk, batch, json_keys, reasons))) if reasons else batch


def _bad_lines(chunk: Chunk, batch: Batch, json_keys: tuple[str, ...], reasons: Mapping[int, str]) -> Iterator[BadLine]:
    if isinstance(chunk, LinesChunk):
        yield from _lines(chunk, batch, reasons)
    elif isinstance(chunk, TextChunk):
        yield BadLine(chunk.source, 0, reasons[0], chunk.read(), lambda: 1)
    else:
        yield from _rows(chunk, batch, json_keys, reasons)


def _rows(chunk: Chunk, batch: Batch, json_keys: tuple[str, ...], reasons: Mapping[int, str]) -> Iterator[BadLine]:
    """Report Parquet rows as bad lines. A row has no raw bytes, so `raw` is a JSON line with the texts of the row."""
    from lt_preprocess.readers.parquet import RowsChunk

    assert isinstance(chunk, RowsChunk)
    bad_before = {row.offset for row in batch.bad_lines}
    rows = [row for row in range(chunk.first_row, chunk.end.offset) if row not in bad_before]
    texts = [column.texts.to_list() for column in batch.columns]
    for document, reason in reasons.items():
        of_keys = {}
        for key, column, of_key in zip(json_keys, batch.columns, texts, strict=True):
            first = int(column.texts_per_document[:document].sum())
            of_keys[key] = [text.decode() for text in of_key[first : first + int(column.texts_per_document[document])]]
        raw = json.dumps(of_keys, ensure_ascii=False).encode()
        yield BadLine(chunk.source, rows[document], reason, raw, lambda row=rows[document]: row + 1, is_row=True)  # type: ignore[misc]


def _lines(chunk: LinesChunk, batch: Batch, reasons: Mapping[int, str]) -> Iterator[BadLine]:
    lines = chunk.read()
    bad_before = {line.offset for line in batch.bad_lines}
    document, offset = 0, lines.offset
    for index, line in enumerate(lines.data[lines.start : lines.end].tobytes().split(b"\n")):
        if line and not line.isspace() and offset not in bad_before:
            if document in reasons:
                yield BadLine(chunk.source, offset, reasons[document], line, _number(lines.first_line, index))
            document += 1
        offset += len(line) + 1


def _number(first_line: Callable[[], int | None], lines_before: int) -> Callable[[], int | None]:
    def line_number() -> int | None:
        first = first_line()
        return None if first is None else first + lines_before

    return line_number
