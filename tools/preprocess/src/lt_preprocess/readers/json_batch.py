"""The documents of JSON lines, read by a compiled scan without the GIL.

Lines that the scan does not understand go to a JSON parser one by one; those that no parser accepts are reported as bad.
"""

import numpy as np

from lt_preprocess.compiler import jit
from lt_preprocess.readers import json_line, json_scan, text_keys, utf8
from lt_preprocess.readers.batch import BadLine, Batch, ChunkLines, Column
from lt_preprocess.readers.chunks import Lines
from lt_preprocess.readers.json_scan import Keys, ScanResults
from lt_preprocess.texts import PADDING_BYTES, Texts

_BYTES_PER_DOCUMENT = 64
"""Arrays are allocated for a document in so many bytes at first, and doubled when a chunk has more."""
_MOST_CALLS = 1000
"""A call of the scan takes 60 us, a line with an error 10 us in the JSON parser: after so many lines that the scan does not
understand, the parser reads the whole chunk if the scan has understood fewer than 10 lines a call."""


def prepare() -> None:
    """Compile or load the kernels of a batch before threads start, because threads would wait for each other."""
    json_lines(Lines.of(b'{"text": "a"}\n'), "", ("text",))
    utf8.invalid(Texts.from_list([b"a"]))


def json_lines(lines: Lines, source: str, json_keys: tuple[str, ...]) -> Batch:
    """Blank lines are no documents and no errors."""
    if any(map(text_keys.is_path, json_keys)):
        return _parsed_lines(lines, source, json_keys)
    keys = _packed(json_keys)
    results = _allocated(len(json_keys), lines.end - lines.start)
    if not jit.is_ready(json_scan.scan, lines.data, lines.start, lines.end, keys, results):
        return _parsed_lines(lines, source, json_keys)
    bad_lines: list[BadLine] = []
    left_out: list[int] = []
    at, calls = lines.start, 0
    while True:
        at, outcome = json_scan.scan(lines.data, at, lines.end, keys, results)
        if outcome == json_scan.FINISHED:
            return Batch(_columns(results), bad_lines, _chunk_lines(lines, results, left_out))
        if outcome == json_scan.FULL:
            results = _doubled(results)
            continue
        calls += 1
        if calls == _MOST_CALLS and results.counts[1] < 10 * calls:
            return _parsed_lines(lines, source, json_keys)
        line_end = json_scan.line_end(lines.data, at, lines.end)
        line = lines.data[at:line_end].tobytes()
        if line and not line.isspace():
            try:
                results = _with_document(results, json_line.texts_of(line, json_keys))
            except json_line.Unusable as reason:
                number = lines.numbered(int(results.counts[1]))
                bad_lines.append(BadLine(source, lines.offset + at - lines.start, str(reason), line, number))
                left_out.append(int(results.counts[1]))
        results.counts[1] += 1
        at = line_end + 1


def _parsed_lines(lines: Lines, source: str, json_keys: tuple[str, ...]) -> Batch:
    """Read every line with a JSON parser: the scan finds no keys in objects, and to call it for a line takes 0.1 ms."""
    texts: list[list[bytes]] = [[] for _ in json_keys]
    counts: list[list[int]] = [[] for _ in json_keys]
    bad_lines: list[BadLine] = []
    left_out: list[int] = []
    content = lines.data[lines.start : lines.end].tobytes().split(b"\n")
    if not content[-1]:
        content.pop()
    offset = lines.offset
    for number, line in enumerate(content):
        try:
            of_keys = json_line.texts_of(line, json_keys) if line and not line.isspace() else None
        except json_line.Unusable as reason:
            bad_lines.append(BadLine(source, offset, str(reason), line, lines.numbered(number)))
            of_keys = None
        if of_keys is None:
            left_out.append(number)
        else:
            for key, of_key in enumerate(of_keys):
                texts[key] += of_key
                counts[key].append(len(of_key))
        offset += len(line) + 1
    columns = [Column(Texts.from_list(of_key), np.array(count, np.int64)) for of_key, count in zip(texts, counts, strict=True)]
    return Batch(columns, bad_lines, ChunkLines(lines.offset, len(content), left_out))


def _chunk_lines(lines: Lines, results: ScanResults, bad: list[int]) -> ChunkLines:
    """`bad` are the numbers of bad lines. The scan passes over blank ones, which are looked for only where there must be some."""
    documents, count = results.counts.tolist()
    if documents + len(bad) == count:
        return ChunkLines(lines.offset, count, bad)
    chunk_lines = lines.data[lines.start : lines.end].tobytes().split(b"\n")[:count]
    blank = [number for number, line in enumerate(chunk_lines) if not line or line.isspace()]
    return ChunkLines(lines.offset, count, sorted([*bad, *blank]))


def _packed(json_keys: tuple[str, ...]) -> Keys:
    encoded = [text_keys.name_of(key).encode() for key in json_keys]
    return Keys(np.frombuffer(bytearray(b"".join(encoded)), np.uint8), np.cumsum([0, *map(len, encoded)]))


def _allocated(keys: int, size_bytes: int) -> ScanResults:
    documents = 16 + size_bytes // _BYTES_PER_DOCUMENT
    return ScanResults(
        texts=np.empty((keys, size_bytes + PADDING_BYTES), np.uint8),
        offsets=np.zeros((keys, documents + 1), np.int64),
        text_counts=np.zeros(keys, np.int64),
        texts_per_document=np.empty((keys, documents), np.int64),
        counts=np.zeros(2, np.int64),
    )


def _doubled(results: ScanResults) -> ScanResults:
    """Move the documents to arrays for twice as many documents and texts."""
    offsets, texts_per_document = (
        np.concatenate([array, np.empty_like(array)], axis=1) for array in (results.offsets, results.texts_per_document)
    )
    return results._replace(offsets=offsets, texts_per_document=texts_per_document)


def _with_document(results: ScanResults, texts: list[list[bytes]]) -> ScanResults:
    """Append a document, given its texts for each key."""
    document = int(results.counts[0])
    while document == results.texts_per_document.shape[1] or any(
        int(count) + len(of_key) >= results.offsets.shape[1] for count, of_key in zip(results.text_counts, texts, strict=True)
    ):
        results = _doubled(results)
    for key, of_key in enumerate(texts):
        text = int(results.text_counts[key])
        for content in of_key:
            start = int(results.offsets[key, text])
            results.texts[key, start : start + len(content)] = np.frombuffer(content, np.uint8)
            text += 1
            results.offsets[key, text] = start + len(content)
        results.text_counts[key] = text
        results.texts_per_document[key, document] = len(of_key)
    results.counts[0] += 1
    return results


def _columns(results: ScanResults) -> list[Column]:
    documents = int(results.counts[0])
    return [
        Column(Texts(results.texts[key], results.offsets[key, : count + 1]), results.texts_per_document[key, :documents])
        for key, count in enumerate(results.text_counts.tolist())
    ]
