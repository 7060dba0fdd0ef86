"""The list of duplicates, which the tokenizing pass reads: a line of JSON, then a row of five int64 for each removed document.

A row has the document's input and position, the input and position of the document that stays, and 1 if their texts are equal.
Rows are in the order of the inputs. The list names its inputs with their fingerprints: a changed input is refused, and a run may
read some inputs only, in any order.
"""

import dataclasses
import hashlib
import json
import os
import shlex
import tempfile
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lt_preprocess.curation import clusters, signature_files
from lt_preprocess.curation.clusters import Duplicate
from lt_preprocess.curation.signature_files import Compared, SignatureFile
from lt_preprocess.texts import Lengths
from lt_shared.console import BadConfig, BadData
from lt_shared.files import checksums, storage

VERSION = 1
MAGIC = b'{"v": 1, "kind": "duplicates"'
EXACT, NEAR = "exact_duplicate", "near_duplicate"
ROW = 5
_ROW_BYTES = 8 * ROW
_FIELDS = ("plan", "documents", "crc32", "method", *Compared._fields, "sources")
_LONGEST_HEADER_BYTES = 1 << 28

Rows = npt.NDArray[np.int64]


def fingerprint(files: Sequence[SignatureFile]) -> str:
    return hashlib.sha256(json.dumps([VERSION, *(file.record["plan"] for file in files)]).encode()).hexdigest()


def ordered(files: Sequence[SignatureFile]) -> list[SignatureFile]:
    """Put the shards of a run in order. Raises BadConfig for a missing shard and for signatures that cannot be compared."""
    first = files[0].record
    for file in files:
        for field in ("method", "json_keys", "sample_by", "template"):
            if file.record[field] != first[field]:
                raise BadConfig(
                    f"{file.path}: {field} is {file.record[field]}, in {files[0].path} {first[field]}", "make all of them alike"
                )
    runs: dict[str, list[SignatureFile]] = {}
    for file in files:
        runs.setdefault(json.dumps([file.record["sources"], (file.record["shard"] or {}).get("count")]), []).append(file)
    for shards in runs.values():
        shards.sort(key=lambda file: (file.record["shard"] or {"index": 0})["index"])
        indices = [(file.record["shard"] or {"index": 0})["index"] for file in shards]
        count = (shards[0].record["shard"] or {"count": 1})["count"]
        if indices != list(range(count)):
            missing = [index for index in range(count) if index not in indices]
            problem = f"shard {missing[0]} of {count} is missing" if missing else "a shard is given twice"
            raise BadConfig(f"{shards[0].path}: {problem}", "name the signatures of every shard once")
    return [file for shards in runs.values() for file in shards]


def build(files: Sequence[SignatureFile], path: str) -> dict[str, Any]:
    """Find duplicates in all files, write their list, and return its record."""
    files = ordered(files)
    sources, first_inputs = _numbered_sources(files)
    begins = np.cumsum([0, *(file.documents for file in files)])
    counts: Counter[str] = Counter()
    crc32 = 0
    directory = os.path.dirname(path)
    with tempfile.TemporaryFile(dir=directory) as spool:
        for duplicate in clusters.duplicates(files, directory):
            content = _rows(duplicate, files, first_inputs, begins).tobytes()
            spool.write(content)
            crc32 = checksums.crc32(content, crc32)
            counts[EXACT] += int(duplicate.is_exact.sum())
            counts[NEAR] += int((~duplicate.is_exact).sum())
        record = {
            "plan": fingerprint(files),
            "documents": int(begins[-1]),
            "removed": {kind: counts[kind] for kind in (EXACT, NEAR) if counts[kind]},
            "crc32": crc32,
            **{field: files[0].record[field] for field in ("method", "json_keys", "sample_by", "template")},
            "sources": sources,
        }
        spool.seek(0)
        with storage.publish(path) as file:
            file.write(signature_files.first_line({"v": VERSION, "kind": "duplicates"} | record))
            while block := spool.read(1 << 20):
                file.write(block)
    return record


def _numbered_sources(files: Sequence[SignatureFile]) -> tuple[list[dict[str, Any]], list[int]]:
    """List all runs' inputs, and the number of every file's first input: shards share their inputs."""
    sources: list[dict[str, Any]] = []
    first_inputs: list[int] = []
    for number, file in enumerate(files):
        shard = file.record["shard"]
        if number and shard is not None and shard["index"] > 0:
            first_inputs.append(first_inputs[-1])
        else:
            first_inputs.append(len(sources))
            sources += file.record["sources"]
    return sources, first_inputs


def _rows(duplicate: Duplicate, files: Sequence[SignatureFile], first_inputs: Sequence[int], begins: Lengths) -> Rows:
    rows = np.empty((len(duplicate.documents), ROW), np.int64)
    for documents, column in ((duplicate.documents, 0), (duplicate.kept, 2)):
        of_file = np.searchsorted(begins, documents, side="right") - 1
        for number in np.unique(of_file).tolist():
            is_here = of_file == number
            local = documents[is_here] - begins[number]
            rows[is_here, column] = files[number].column(signature_files.INPUT)[local].astype(np.int64) + first_inputs[number]
            rows[is_here, column + 1] = files[number].column(signature_files.POSITION)[local]
    rows[:, 4] = duplicate.is_exact
    return rows


def is_list(path: str) -> bool:
    with storage.open_read(path) as file:
        return file.read(len(MAGIC)) == MAGIC


def read_record(path: str) -> tuple[dict[str, Any], int]:
    """Return the first line of a list, and its length. Raises BadData for another or a truncated file,
    BadConfig for signatures."""
    storage.require_local(path, "the list of duplicates")
    if signature_files.is_signatures(path):
        raise BadConfig(
            f"{path}: signatures of documents, not a list of duplicates",
            f"lt-preprocess dedup {shlex.quote(path)} -o PREFIX makes it",
        )
    with storage.open_read(path) as file:
        line = file.readline(_LONGEST_HEADER_BYTES)
    try:
        if not line.startswith(MAGIC):
            raise ValueError("not a list of duplicates")
        record: dict[str, Any] = json.loads(line)
        if missing := [field for field in _FIELDS if field not in record]:
            raise ValueError(f"no field {missing[0]!r}")
        size_bytes = len(line) + _ROW_BYTES * sum(record["removed"].values())
        if storage.size_bytes(path) != size_bytes:
            raise ValueError(f"{storage.size_bytes(path):,} bytes, expected {size_bytes:,}")
    except (ValueError, KeyError, TypeError) as error:
        raise BadData(f"{path}: damaged: {error}", "make it with lt-preprocess dedup") from None
    return record, len(line)


@dataclasses.dataclass
class DuplicateList:
    """The removed documents of a run's inputs, mapped from the file: a chunk touches its own rows only.

    Raises: BadData for a damaged list, BadConfig if it does not fit the run: another key, an input that is not in it or changed.
    """

    path: str
    sources: Sequence[dict[str, Any]] | None
    compared: Compared

    def __post_init__(self) -> None:
        record, header_bytes = read_record(self.path)
        self.record = record
        for field, value in self.compared.to_record().items():
            if record[field] != value:
                raise BadConfig(
                    f"{self.path}: made {_as_option(field, record[field])}, this run is {_as_option(field, value)}",
                    "deduplicate and tokenize with the same options",
                )
        self._names = [source["path"] for source in record["sources"]]
        if self.sources is None:
            raise BadConfig(f"{self.path}: standard input and pipes are not in the list", "name the files that were deduplicated")
        self._numbers = [self._number(index, source) for index, source in enumerate(self.sources)]
        count = sum(record["removed"].values())
        self._rows: Rows = np.zeros((0, ROW), np.int64)
        if count:
            self._rows = np.memmap(self.path, np.int64, "r", header_bytes, (count, ROW))
        self._bounds = np.searchsorted(self._rows[:, 0], np.arange(len(self._names) + 1))

    def _number(self, index: int, source: dict[str, Any]) -> int:
        """Return the number in the list of the run's input `index`. The second copy of an input is the second one in the list."""
        earlier_copies = list(self.sources or ())[:index].count(source)
        numbers = [number for number, listed in enumerate(self.record["sources"]) if listed == source]
        if earlier_copies < len(numbers):
            return numbers[earlier_copies]
        problem = "has changed since" if source["path"] in self._names and not numbers else "was not among the inputs when"
        raise BadConfig(f"{source['path']}: {problem} {self.path} was made", "run lt-preprocess dedup on it again")

    def check(self) -> None:
        """Read all rows. Raises BadData if they do not have the recorded checksum."""
        crc32 = 0
        for first in range(0, len(self._rows), 1 << 16):
            crc32 = checksums.crc32(self._rows[first : first + (1 << 16)].tobytes(), crc32)
        if crc32 != self.record["crc32"]:
            raise BadData(f"{self.path}: damaged: its checksum differs", "make it again with lt-preprocess dedup")

    def removals(self, input_number: int, positions: Lengths) -> dict[int, tuple[str, str]]:
        """Return the kind and the reason for each duplicate among documents of an input at ascending `positions`."""
        if len(positions) == 0:
            return {}
        number = self._numbers[input_number]
        begin, end = int(self._bounds[number]), int(self._bounds[number + 1])
        of_input = self._rows[begin:end, 1]
        first = int(np.searchsorted(of_input, positions[0], "left"))
        last = int(np.searchsorted(of_input, positions[-1], "right"))
        rows = self._rows[begin + first : begin + last]
        is_removed = np.isin(positions, rows[:, 1], assume_unique=True)
        removals = {}
        for document, row in zip(np.flatnonzero(is_removed).tolist(), rows.tolist(), strict=True):
            kind = EXACT if row[4] else NEAR
            removals[document] = kind, f"{kind}: of {self._names[row[2]]} at {row[3]:,}"
        return removals


def _as_option(field: str, value: str | list[str] | None) -> str:
    """Describe an option of two commands that differ in it: "with --template {a}"."""
    option = f"--{field.replace('_', '-')}"
    if value is None:
        return f"without {option}"
    return f"with {option} {value if isinstance(value, str) else ' '.join(value)}"
