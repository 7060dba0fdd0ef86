"""Record the source line of each document while a part is written.

A row of five int64 in a file beside the outputs for each run of documents on consecutive lines (first document, input, its line,
the byte from which lines are counted, the kind of input), and for each line whose byte is remembered (-1, input, line, byte,
kind): an input, a bad line and 16 MiB of text have one each, so memory does not grow. When the part is published they become the
`origins` of its sidecars.
"""

from typing import IO, NamedTuple

import numpy as np

from lt_preprocess.pipeline.encoding import Encoded
from lt_shared.data.document_origins.origins import File, Kind, TokenizedLines
from lt_shared.data.document_origins.packing import Numbers
from lt_shared.files import checksums

MARK = -1
# Chunks are of about 1 MiB; a line is found by reading from the mark before it.
BYTES_BETWEEN_MARKS = 16 << 20
COLUMNS = 5
KINDS: tuple[Kind, ...] = ("line", "row", "text")
FIRST_LINE_BYTES = 3
"""A first line begins at byte 0, or after a byte order mark."""


def name(prefix: str) -> str:
    """The file of a part whose first dataset is `prefix`."""
    return f"{prefix}.origins"


class InputLines(NamedTuple):
    """How far an input has been read: `total` lines, counted from byte `counted_from` on, not its beginning in some shards."""

    total: int = 0
    counted_from: int = 0

    def at(self, encoded: Encoded) -> "InputLines":
        """Return the position at the beginning of a chunk's lines."""
        is_cut = encoded.kind == "line" and self.total == 0 and encoded.lines.offset > FIRST_LINE_BYTES
        return self._replace(counted_from=encoded.lines.offset) if is_cut and encoded.lines.total else self

    def after(self, encoded: Encoded) -> "InputLines":
        return self._replace(total=self.total + encoded.lines.total)


NOTHING_READ = InputLines()


class OriginRows:
    """Appends to `file`, which holds what an earlier process of the run left."""

    def __init__(self, file: IO[bytes], size_bytes: int = 0, crc32: int = 0):
        self.file = file
        self.size_bytes, self.crc32 = size_bytes, crc32
        runs = [row for row in self._rows().tolist() if row[0] != MARK] if size_bytes else []
        self._run = runs[-1] if runs else None

    def add(self, encoded: Encoded, before: InputLines, first: int, last: int, document: int) -> None:
        """Documents `first` to before `last` of a chunk are those from number `document` on of the part."""
        number, lines, kind = encoded.end.input, encoded.lines, KINDS.index(encoded.kind)
        rows: list[list[int]] = []
        if first == 0 and encoded.kind == "line" and _has_mark(lines.offset, lines.total, encoded.end.offset):
            rows.append([MARK, number, before.total + 1, lines.offset, kind])
        for begin, line in encoded.runs(first, last):
            run = [document + begin - first, number, before.total + line + 1, before.counted_from, kind]
            if not self._continues(run):
                self._run = run
                rows.append(run)
        if rows:
            content = np.array(rows, np.int64).tobytes()
            self.file.write(content)
            self.size_bytes += len(content)
            self.crc32 = checksums.crc32(content, self.crc32)

    def _continues(self, run: list[int]) -> bool:
        previous_run = self._run
        return previous_run is not None and previous_run[1] == run[1] and run[2] - previous_run[2] == run[0] - previous_run[0]

    def _rows(self) -> Numbers:
        self.file.seek(0)
        rows = np.frombuffer(bytearray(self.file.read(self.size_bytes)), np.int64).reshape(-1, COLUMNS)
        self.file.seek(self.size_bytes)
        return rows

    def table(self, documents: int, files: list[File], first_input: int) -> TokenizedLines:
        """The table of a part of so many documents; `files` are the inputs from `first_input` on."""
        rows = self._rows()
        rows[:, 1] -= first_input
        runs, marks = rows[rows[:, 0] != MARK], rows[rows[:, 0] == MARK]
        kinds, cut = runs[runs[:, 4] != 0], runs[runs[:, 3] != 0]
        return TokenizedLines(
            documents,
            files,
            documents_of_runs=runs[:, 0],
            files_of_runs=runs[:, 1],
            lines=runs[:, 2],
            files_of_marks=marks[:, 1],
            marked_lines=marks[:, 2],
            offsets=marks[:, 3],
            kinds={file: KINDS[kind] for file, kind in kinds[:, [1, 4]].tolist()},
            counted_from=dict(cut[:, [1, 3]].tolist()),
        )


def _has_mark(begin: int, count: int, end: int) -> bool:
    """Whether the first line of a chunk is remembered: where it has a multiple of BYTES_BETWEEN_MARKS, the beginning aside."""
    return count > 0 and begin > FIRST_LINE_BYTES and begin // BYTES_BETWEEN_MARKS != end // BYTES_BETWEEN_MARKS
