"""The file of signatures: a line of JSON, then columns of 8 bytes a document, one after the other.

The columns are the input's number, the position in it, the two halves of the text's BLAKE2b-128, and with MinHash a hash for each
band. A reader needs one band at a time, and reads 8 bytes a document, not all.
"""

import dataclasses
import json
import os
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lt_preprocess.curation.minhash import BANDS
from lt_preprocess.readers.inputs import SampleBy
from lt_shared.console import BadData
from lt_shared.files import storage

Method = Literal["exact", "minhash"]
VERSION = 1
MAGIC = b'{"v": 1, "kind": "signatures"'
COLUMN_BYTES = 8
DOCUMENTS_AT_ONCE = 1 << 17
INPUT, POSITION, EXACT_HIGH, EXACT_LOW = range(4)
FIRST_BAND = 4
_LONGEST_HEADER_BYTES = 1 << 28


class Compared(NamedTuple):
    """Which texts of the inputs are compared: the options of the tokenizing run."""

    json_keys: tuple[str, ...] = ("text",)
    sample_by: SampleBy = "document"
    template: str | None = None

    def to_record(self) -> dict[str, Any]:
        return {"json_keys": list(self.json_keys), "sample_by": self.sample_by, "template": self.template}


Column = npt.NDArray[np.uint64]


def columns(method: Method) -> int:
    return FIRST_BAND + (BANDS if method == "minhash" else 0)


def is_signatures(path: str) -> bool:
    if storage.is_remote(path) or not os.path.isfile(path):
        return False
    with storage.open_read(path) as file:
        return file.read(len(MAGIC)) == MAGIC


def first_line(record: dict[str, Any]) -> bytes:
    """Return a line of JSON, padded so that the columns after it are aligned."""
    line = json.dumps(record, ensure_ascii=False).encode(errors="surrogateescape")
    return line + b" " * (-(len(line) + 1) % COLUMN_BYTES) + b"\n"


@dataclasses.dataclass(frozen=True)
class SignatureFile:
    """An open file of signatures. `record` is its first line."""

    path: str
    record: dict[str, Any]
    data_offset: int

    @classmethod
    def read(cls, path: str) -> Self:
        """Raises BadData for a file that is truncated or not of signatures."""
        with storage.open_read(path) as file:
            line = file.readline(_LONGEST_HEADER_BYTES)
        try:
            if not line.startswith(MAGIC):
                raise ValueError("not a file of signatures")
            record = json.loads(line)
            if missing := [field for field in ("plan", "shard", *Compared._fields, "sources") if field not in record]:
                raise ValueError(f"no field {missing[0]!r}")
            signatures = cls(path, record, len(line))
            size_bytes = len(line) + columns(record["method"]) * COLUMN_BYTES * record["documents"]
            if storage.size_bytes(path) != size_bytes:
                raise ValueError(f"{storage.size_bytes(path):,} bytes, expected {size_bytes:,}")
        except (ValueError, KeyError, TypeError) as error:
            raise BadData(f"{path}: damaged signatures: {error}", "make it again with lt-preprocess dedup") from None
        return signatures

    @property
    def documents(self) -> int:
        return int(self.record["documents"])

    def column(self, number: int) -> Column:
        """Map a column, uint64 [documents]."""
        if self.documents == 0:
            return np.zeros(0, np.uint64)
        offset = self.data_offset + number * COLUMN_BYTES * self.documents
        return np.memmap(self.path, np.uint64, "r", offset, (self.documents,))

    def blocks(self, number: int) -> Iterator[Column]:
        """Yield a column in blocks of at most DOCUMENTS_AT_ONCE documents, read from the file."""
        with storage.open_read(self.path) as file:
            file.seek(self.data_offset + number * COLUMN_BYTES * self.documents)
            for first in range(0, self.documents, DOCUMENTS_AT_ONCE):
                count = min(DOCUMENTS_AT_ONCE, self.documents - first)
                yield np.frombuffer(file.read(count * COLUMN_BYTES), np.uint64)
