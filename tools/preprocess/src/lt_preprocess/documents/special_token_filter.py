"""Turn documents into bad lines: with `--special-tokens reject` those that contain the text of a special token.

Few documents are left out, so their lines are located only when there are any: document i of a chunk is its i-th line, or row,
that is not left out.
"""

import json
from collections.abc import Iterator

import numpy as np

from lt_preprocess.readers.batch import BadLine, Batch
from lt_preprocess.readers.chunks import Chunk
from lt_preprocess.readers.jsonl import LinesChunk
from lt_preprocess.readers.plain_text import TextChunk
from lt_preprocess.readers.records import RowChunk
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


def without_documents(chunk: Chunk, batch: Batch, json_keys: tuple[str, ...], reasons: dict[int, str]) -> Batch:
    """The batch of a chunk without the documents that have a reason to be left out; their lines become bad lines."""
    if not reasons:
        return batch
    bad_lines = [*batch.bad_lines, *bad_lines_of(chunk, batch, json_keys, reasons)]
    return batch.without(reasons)._replace(bad_lines=sorted(bad_lines, key=lambda line: line.offset))


def bad_lines_of(chunk: Chunk, batch: Batch, json_keys: tuple[str, ...], reasons: dict[int, str]) -> Iterator[BadLine]:
    """Locate the lines of some documents in a chunk; `reasons` has the documents' numbers in the batch."""
    if isinstance(chunk, LinesChunk):
        yield from _lines(chunk, batch, reasons)
    elif isinstance(chunk, TextChunk):
        yield BadLine(chunk.source, 0, reasons[0], chunk.read(), lambda: 1)
    else:
        yield from _rows(chunk, batch, json_keys, reasons)


def _rows(chunk: Chunk, batch: Batch, json_keys: tuple[str, ...], reasons: dict[int, str]) -> Iterator[BadLine]:
    """Report rows as bad lines. A row has no raw bytes, so `raw` is a JSON line with the texts of the row."""
    assert isinstance(chunk, RowChunk)
    rows = (chunk.first_row + batch.lines.of_documents()).tolist()
    texts = [column.texts.to_list() for column in batch.columns]
    for document, reason in reasons.items():
        of_keys = {}
        for key, column, of_key in zip(json_keys, batch.columns, texts, strict=True):
            first = int(column.texts_per_document[:document].sum())
            of_keys[key] = [text.decode() for text in of_key[first : first + int(column.texts_per_document[document])]]
        raw = json.dumps(of_keys, ensure_ascii=False).encode()
        yield BadLine(chunk.source, rows[document], reason, raw, lambda row=rows[document]: row + 1, is_row=True)  # type: ignore[misc]


def _lines(chunk: LinesChunk, batch: Batch, reasons: dict[int, str]) -> Iterator[BadLine]:
    lines = chunk.read()
    content = lines.data[lines.start : lines.end].tobytes().split(b"\n")
    offsets = lines.offset + np.cumsum([0, *(len(line) + 1 for line in content)])
    numbers = batch.lines.of_documents()
    for document in sorted(reasons):
        number = int(numbers[document])
        yield BadLine(chunk.source, int(offsets[number]), reasons[document], content[number], lines.numbered(number))
