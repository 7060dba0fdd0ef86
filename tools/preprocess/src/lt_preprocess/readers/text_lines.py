"""Plain text with a document a line. Lines that are empty or white space are no documents, as among JSON lines."""

import numpy as np
import numpy.typing as npt

from lt_preprocess.readers import json_line, utf8
from lt_preprocess.readers.batch import BadLine, Batch, ChunkLines, Column
from lt_preprocess.readers.chunks import Bytes, Lines
from lt_preprocess.texts import PADDING_BYTES, Texts

Numbers = npt.NDArray[np.int64]

_LINE_FEED, _CARRIAGE_RETURN = 10, 13
_IS_SPACE = np.isin(np.arange(256), list(b" \t\n\r\x0b\x0c"))


def text_lines(lines: Lines, source: str) -> Batch:
    """Make a document of every line, without its line break."""
    data = lines.data[lines.start : lines.end]
    line_ends = np.flatnonzero(data == _LINE_FEED)
    if len(data) and data[-1] != _LINE_FEED:
        line_ends = np.append(line_ends, len(data))
    line_starts = np.append(0, line_ends[:-1] + 1) if len(line_ends) else line_ends
    blank = _blank(data, line_starts, line_ends)
    is_document = ~blank
    texts = _texts(data, line_starts[is_document], line_ends[is_document])
    numbers = np.flatnonzero(is_document)
    bad_lines = []
    for text in utf8.invalid(texts):
        number = int(numbers[text])
        raw = data[line_starts[number] : line_ends[number]].tobytes()
        offset = lines.offset + int(line_starts[number])
        bad_lines.append(BadLine(source, offset, json_line.invalid_utf8(raw, "line"), raw, lines.numbered(number)))
        is_document[number] = False
    if bad_lines:
        texts = _texts(data, line_starts[is_document], line_ends[is_document])
    left_out = np.flatnonzero(~is_document).tolist()
    column = Column(texts, np.ones(int(is_document.sum()), np.int64))
    return Batch([column], bad_lines, ChunkLines(lines.offset, len(line_ends), left_out))


def _blank(data: Bytes, starts: Numbers, ends: Numbers) -> npt.NDArray[np.bool_]:
    """Whether each line holds only white space. Few lines begin with white space, so only these are looked into."""
    blank: npt.NDArray[np.bool_] = starts == ends
    begins_with_space = np.flatnonzero(~blank)
    begins_with_space = begins_with_space[_IS_SPACE[data[starts[begins_with_space]]]]
    for line in begins_with_space.tolist():
        blank[line] = data[starts[line] : ends[line]].tobytes().isspace()
    return blank


def _texts(data: Bytes, starts: Numbers, ends: Numbers) -> Texts:
    """Copy the lines into one array, without the carriage return before a line feed."""
    ends = ends - ((ends > starts) & (data[ends - 1] == _CARRIAGE_RETURN)) if len(ends) else ends
    lengths = ends - starts
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    kept = np.zeros(len(data) + 1, np.int8)
    kept[starts] += 1
    np.subtract.at(kept, ends, 1)
    texts = np.zeros(int(offsets[-1]) + PADDING_BYTES, np.uint8)
    texts[: offsets[-1]] = data[np.cumsum(kept[:-1], dtype=np.int8).view(bool)]
    return Texts(texts, offsets)
