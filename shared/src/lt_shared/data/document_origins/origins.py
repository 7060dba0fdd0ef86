"""The source file and line of each document in a dataset.

Documents have the order of their lines, so the table of a tokenized dataset has one run per input file, another run after every
line that was left out (bad or blank), and the byte at which some lines begin, about one every 16 MiB: 0.01 bytes per document
for a corpus without bad lines, at most 1 byte if a third of the lines is bad. The table alone gives a document's line number; the
exact byte is found by counting line breaks from the nearest known line.

Outputs of merge, shuffle and split refer to the tables of their inputs: joined, put into the order of a seed
(nothing is stored), or ranges of documents taken out (0.2 bytes a document of the large part, about 1 of a small one).
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from lt_shared.console import BadData
from lt_shared.contracts import manifest
from lt_shared.data.document_origins.packing import Numbers, pack, pack_ascending, unpack, unpack_ascending

VERSION = 1
KEY = "origins"
DELETED = "delete the sidecar to use the dataset without it"

File = dict[str, Any]
Kind = Literal["line", "row", "text"]


class Known(NamedTuple):
    """Line `line` begins at byte `offset` of the decompressed content."""

    line: int
    offset: int


@dataclasses.dataclass(frozen=True)
class Place:
    """A line of a file, a row of a Parquet file, or a whole text, numbered from 1; `near` is a line at or before it whose byte is
    known.

    `file` is its fingerprint when it was read, with its `path`. A file that was cut between shards `is_numbered` from the first
    line of the shard on, and not from its beginning: from byte `counted_from`.
    """

    file: File
    line: int
    near: Known
    kind: Kind = "line"
    is_numbered: bool = True
    counted_from: int = dataclasses.field(default=0, compare=False)

    @property
    def path(self) -> str:
        return str(self.file["path"])


class Origins(abc.ABC):
    """The origins of `documents` documents."""

    documents: int

    @abc.abstractmethod
    def locate(self, numbers: Numbers) -> "list[Place | None]":
        """Return the place of each document, or None for a document of unknown origin."""

    @abc.abstractmethod
    def to_record(self) -> dict[str, Any]:
        """Return the record for a sidecar."""


@dataclasses.dataclass(frozen=True, eq=False)
class TokenizedLines(Origins):
    """A dataset that was tokenized from `files`.

    Run i begins with document `documents_of_runs[i]`, at line `lines[i]` of file `files_of_runs[i]`; until the next run every
    document has the next line. Mark j: line `marked_lines[j]` of file `files_of_marks[j]` begins at byte `offsets[j]`; marks are
    in the order of the files. `kinds` lists files without lines. `counted_from` has the byte at which counting a file's lines
    begins, if it is not 0.
    """

    documents: int
    files: Sequence[File]
    documents_of_runs: Numbers
    files_of_runs: Numbers
    lines: Numbers
    files_of_marks: Numbers
    marked_lines: Numbers
    offsets: Numbers
    kinds: dict[int, Kind] = dataclasses.field(default_factory=dict)
    counted_from: dict[int, int] = dataclasses.field(default_factory=dict)

    def locate(self, numbers: Numbers) -> "list[Place | None]":
        runs = np.searchsorted(self.documents_of_runs, numbers, side="right") - 1
        files = self.files_of_runs[runs]
        lines = self.lines[runs] + numbers - self.documents_of_runs[runs]
        return [self._place(file, line) for file, line in zip(files.tolist(), lines.tolist(), strict=True)]

    def lines_in(self, file: int, first: int, last_line: int) -> Numbers:
        """Return the lines up to `last_line` in a file, int64 [documents], of the documents from number `first` on."""
        first_run = max(int(np.searchsorted(self.documents_of_runs, first, side="right")) - 1, 0)
        lines = [np.zeros(0, np.int64)]
        for run in range(first_run, len(self.documents_of_runs)):
            if self.files_of_runs[run] != file or self.lines[run] > last_line:
                break
            is_last = run + 1 == len(self.documents_of_runs)
            end = self.documents if is_last else int(self.documents_of_runs[run + 1])
            begin = int(self.documents_of_runs[run])
            run_lines = np.arange(max(first, begin), end) - begin + self.lines[run]
            lines.append(run_lines[run_lines <= last_line])
        return np.concatenate(lines)

    def _place(self, file: int, line: int) -> Place:
        begin, end = np.searchsorted(self.files_of_marks, [file, file + 1]).tolist()
        mark = begin + int(np.searchsorted(self.marked_lines[begin:end], line, side="right")) - 1
        start = self.counted_from.get(file, 0)
        near = Known(int(self.marked_lines[mark]), int(self.offsets[mark])) if mark >= begin else Known(1, start)
        return Place(self.files[file], line, near, self.kinds.get(file, "line"), not start, start)

    def to_record(self, in_sidecar: bool = False) -> dict[str, Any]:
        """With `in_sidecar`, the files are the `sources` of the sidecar and not repeated."""
        return {
            "v": VERSION,
            "kind": "lines",
            "documents": self.documents,
            "files": None if in_sidecar else list(self.files),
            "runs": [pack_ascending(self.documents_of_runs), pack(self.files_of_runs), pack(self.lines)],
            "marks": [pack(self.files_of_marks), pack(self.marked_lines), pack(self.offsets)],
            "kinds": sorted(self.kinds.items()),
            "counted_from": sorted(self.counted_from.items()),
        }

    @classmethod
    def from_record(cls, record: dict[str, Any], sources: Sequence[File] | None) -> "TokenizedLines":
        files = record["files"] if record["files"] is not None else sources
        documents, files_of_runs, lines = record["runs"]
        files_of_marks, marked, offsets = map(unpack, record["marks"])
        table = cls(
            _count(record),
            list(files or ()),
            unpack_ascending(documents),
            unpack(files_of_runs),
            unpack(lines),
            files_of_marks,
            marked,
            offsets,
            {int(file): kind for file, kind in record["kinds"]},
            {int(file): int(offset) for file, offset in record["counted_from"]},
        )
        if not all(isinstance(file, dict) and isinstance(file.get("path"), str) for file in table.files):
            raise ValueError("a file without a path")
        table._check()
        return table

    def _check(self) -> None:
        runs = len(self.documents_of_runs)
        if not runs == len(self.files_of_runs) == len(self.lines):
            raise ValueError("columns of several lengths")
        if not len(self.files_of_marks) == len(self.marked_lines) == len(self.offsets):
            raise ValueError("columns of several lengths")
        if self.documents and (not runs or self.documents_of_runs[0] != 0):
            raise ValueError("documents before the first run")
        if runs and int(self.lines.min()) < 1:
            raise ValueError("lines count from 1")
        used = np.concatenate([self.files_of_runs, self.files_of_marks])
        if len(used) and int(used.max()) >= len(self.files):
            raise ValueError(f"file {int(used.max())} of {len(self.files)}")


@dataclasses.dataclass(frozen=True, eq=False)
class Joined(Origins):
    """The datasets of `counts` documents one after the other; None is one that does not know."""

    parts: Sequence[Origins | None]
    counts: Sequence[int]

    @property
    def documents(self) -> int:  # type: ignore[override]
        return sum(self.counts)

    def locate(self, numbers: Numbers) -> "list[Place | None]":
        ends = np.cumsum(self.counts)
        of_part = np.searchsorted(ends, numbers, side="right")
        places: list[Place | None] = [None] * len(numbers)
        for number in np.unique(of_part).tolist():
            part, positions = self.parts[number], np.flatnonzero(of_part == number)
            if part is not None:
                begin = int(ends[number]) - self.counts[number]
                for index, place in zip(positions.tolist(), part.locate(numbers[positions] - begin), strict=True):
                    places[index] = place
        return places

    def to_record(self) -> dict[str, Any]:
        parts = [None if part is None else part.to_record() for part in self.parts]
        return {"v": VERSION, "kind": "joined", "counts": list(self.counts), "parts": parts}


@dataclasses.dataclass(frozen=True, eq=False)
class Shuffled(Origins):
    """The documents of `source` in the order of `order(seed, documents)`, which is computed when it is asked for."""

    source: Origins
    seed: int

    @property
    def documents(self) -> int:  # type: ignore[override]
        return self.source.documents

    def locate(self, numbers: Numbers) -> "list[Place | None]":
        return self.source.locate(shuffled_order(self.seed, self.documents)[numbers])

    def to_record(self) -> dict[str, Any]:
        return {"v": VERSION, "kind": "shuffled", "seed": self.seed, "of": self.source.to_record()}


def shuffled_order(seed: int, documents: int) -> Numbers:
    """The document of the source that each document is, int64 [documents]: sorted by one number of PCG64 each."""
    keys = np.asarray(np.random.PCG64(seed).random_raw(documents), np.uint64)
    return np.argsort(keys, kind="stable")


@dataclasses.dataclass(frozen=True, eq=False)
class Taken(Origins):
    """Documents of `source` in its order: range i is the `lengths[i]` documents from `starts[i]` on."""

    source: Origins
    starts: Numbers
    lengths: Numbers

    @property
    def documents(self) -> int:  # type: ignore[override]
        return int(self.lengths.sum())

    def locate(self, numbers: Numbers) -> "list[Place | None]":
        ends = np.cumsum(self.lengths)
        ranges = np.searchsorted(ends, numbers, side="right")
        return self.source.locate(self.starts[ranges] + numbers - (ends - self.lengths)[ranges])

    def to_record(self) -> dict[str, Any]:
        columns = [pack_ascending(self.starts), pack(self.lengths)]
        return {"v": VERSION, "kind": "taken", "ranges": columns, "of": self.source.to_record()}


class TakenRanges:
    """Collects the ranges of `Taken` block by block."""

    def __init__(self) -> None:
        self._seen = 0
        self._ranges: list[tuple[Numbers, Numbers]] = []

    def add(self, chosen: Numbers, documents: int) -> None:
        """Take the documents `chosen` (ascending numbers) from the next `documents` documents of the source."""
        firsts = np.flatnonzero(np.diff(chosen, prepend=-2) != 1)
        self._ranges.append((chosen[firsts] + self._seen, np.diff(np.append(firsts, len(chosen)))))
        self._seen += documents

    def of(self, source: Origins) -> Taken:
        nothing = np.zeros(0, np.int64)
        starts, lengths = (np.concatenate([nothing, *column]) for column in zip(*self._ranges, (nothing, nothing), strict=True))
        return Taken(source, starts, lengths)


def parse(record: dict[str, Any], sources: Sequence[File] | None = None) -> Origins:
    """Build the table from a sidecar's record and its `sources`. Raises ValueError, KeyError or TypeError if it is malformed."""
    if record["v"] != VERSION:
        raise ValueError(f"version {record['v']}, known is {VERSION}")
    return _KINDS[record["kind"]](record, sources)


def _count(record: dict[str, Any]) -> int:
    count = record["documents"]
    if type(count) is not int or count < 0:
        raise ValueError(f"{count!r:.40} documents")
    return count


def _joined(record: dict[str, Any], sources: Sequence[File] | None) -> Origins:
    parts = [None if part is None else parse(part, sources) for part in record["parts"]]
    counts = list(record["counts"])
    if any(type(count) is not int or count < 0 for count in counts):
        raise ValueError("counts are whole numbers")
    if any(part is not None and part.documents != count for part, count in zip(parts, counts, strict=True)):
        raise ValueError("a part has another number of documents")
    return Joined(parts, counts)


def _shuffled(record: dict[str, Any], sources: Sequence[File] | None) -> Origins:
    if type(record["seed"]) is not int or record["seed"] < 0:
        raise ValueError(f"seed {record['seed']!r:.40}")
    return Shuffled(parse(record["of"], sources), record["seed"])


def _taken(record: dict[str, Any], sources: Sequence[File] | None) -> Origins:
    starts, lengths = record["ranges"]
    source, found = parse(record["of"], sources), (unpack_ascending(starts), unpack(lengths))
    if len(found[0]) != len(found[1]) or (len(found[0]) and int((found[0] + found[1]).max()) > source.documents):
        raise ValueError("ranges beyond the documents")
    return Taken(source, *found)


_KINDS: dict[str, Callable[[dict[str, Any], Sequence[File] | None], Origins]] = {
    "lines": TokenizedLines.from_record,
    "joined": _joined,
    "shuffled": _shuffled,
    "taken": _taken,
}


def of_sidecar(record: dict[str, Any], path: str) -> Origins | None:
    """Parse the origins in the sidecar from `path`. None if it records none; raises BadData if they are malformed."""
    if record.get(KEY) is None:
        return None
    try:
        return parse(record[KEY], record.get("sources"))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise BadData(f"{path}: malformed origins of its documents: {error}", DELETED) from None


def of_dataset(prefix: str) -> Origins | None:
    """Read the origins from a dataset's sidecar. None without a sidecar or origins; raises BadData if they are malformed."""
    return of_sidecar(manifest.read_sidecar(prefix) or {}, manifest.sidecar_path(prefix))
