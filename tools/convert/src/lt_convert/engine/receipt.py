"""`lt-convert.json` beside a converted checkpoint: its sources, and the checksum of every byte range.

With this record a repeated command is quick, and `lt-convert verify` finds later changes. A changed source is noticed by the
path, size and modification time of its files, as in make, not by content: hashing would read the whole checkpoint again.
"""

import dataclasses
import json
from typing import Any, Self

from lt_convert.tensors.checksums import Checksums
from lt_shared.console import BadData, NoInput
from lt_shared.files import storage, strict_json

# Of version 2, each digest is a SHA-256.
VERSION, READ_VERSIONS = 3, (2, 3)
# The option of a merge that has its checkpoints, each with its path and weight.
MERGED = "merged"


@dataclasses.dataclass(frozen=True)
class ConversionRecord:
    """`source` has the source files' fingerprints, `files` the written files' checksums.

    `tokenizer_file` is the first of the tokenizer's original files; the conversion may have added others, such as tokenizer.json.
    """

    options: dict[str, Any]
    source: list[dict[str, str | int]]
    files: Checksums
    tokenizer_file: str | None = None
    iteration: int | None = None
    loss: float | None = None

    def to_bytes(self) -> bytes:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return (json.dumps({"v": VERSION, **fields, "files": self.files.to_record()}) + "\n").encode()

    def is_up_to_date(self, options: dict[str, Any], source: list[dict[str, str | int]], directory: str) -> bool:
        """Whether the record has these options and this source, and `directory` still has all files with their sizes."""
        same = json.loads(json.dumps(options)) == self.options and source == self.source
        return same and self.files.sizes == _sizes(directory, self.files.sizes)

    @property
    def merged(self) -> list[dict[str, Any]]:
        """The checkpoints of a merge, each with its `path` and, if it has one, `weight`; empty for a conversion."""
        return list(self.options.get(MERGED, ()))

    def check(self) -> None:
        """Raises ValueError, TypeError, KeyError or AttributeError for what no command has written."""
        if not isinstance(self.iteration, int | None) or not isinstance(self.loss, int | float | None):
            raise ValueError("iteration or loss is no number")
        if not all(isinstance(one["path"], str) and isinstance(one.get("weight", 0), int | float) for one in self.merged):
            raise ValueError(f"{MERGED} does not list checkpoints with weights")

    @classmethod
    def read(cls, directory: str) -> Self | None:
        """The record in `directory`, None when there is none. Raises BadData when it is malformed."""
        path = f"{directory}/{Checksums.RECORD}"
        try:
            content = storage.read_record(path)
        except NoInput:
            return None
        try:
            record = dict(strict_json.loads(content))
            if record.pop("v") not in READ_VERSIONS:
                return None
            read = cls(**{**record, "files": Checksums.from_record(record["files"])})
            read.check()
            return read
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadData(f"{path}: malformed: {error}", "delete the file") from None


def _sizes(directory: str, names: Any) -> dict[str, int]:
    if storage.is_remote(directory):
        stored_sizes = storage.sizes_below(directory)
        return {name: stored_sizes[name] for name in names if name in stored_sizes}
    sizes = {}
    for name in names:
        try:
            sizes[name] = storage.size_bytes(f"{directory}/{name}")
        except NoInput:
            continue
    return sizes
