"""`lt-convert.json` beside a converted checkpoint: what it was made of, so that running the same command again is quick.

A source is recognised by the path, size and modification time of its files, as make does, not by their content: hashing would
read the whole checkpoint again.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, Self

from lt_shared.console import BadData

NAME = "lt-convert.json"
VERSION = 1


@dataclasses.dataclass(frozen=True)
class ConversionRecord:
    """`source` has the fingerprint of each source file, `files` maps each output file to its size in bytes.

    `tokenizer_file` is the first of the tokenizer's original files, beside which others may have been made.
    """

    options: dict[str, Any]
    source: list[dict[str, str | int]]
    files: dict[str, int]
    tokenizer_file: str | None = None

    def write(self, directory: Path) -> None:
        """Write the record into a directory that is not yet visible, with the sizes of the files that are there."""
        complete = dataclasses.replace(self, files=_sizes(directory))
        (directory / NAME).write_text(json.dumps({"v": VERSION, **dataclasses.asdict(complete)}, indent=2) + "\n")

    def made_of(self, options: dict[str, Any], source: list[dict[str, str | int]], directory: Path) -> bool:
        """Whether `directory` still is what these options make of this source."""
        return self.options == options and self.source == source and self.files == _sizes(directory)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        return cls(record["options"], record["source"], record["files"], record["tokenizer_file"])


def read(directory: Path) -> ConversionRecord | None:
    """The record in `directory`, None when there is none. Raises BadData when it is malformed."""
    path = directory / NAME
    if not path.is_file():
        return None
    try:
        return ConversionRecord.from_record(json.loads(path.read_bytes()))
    except (ValueError, KeyError, TypeError) as error:
        raise BadData(f"{path}: malformed: {error}", "delete the file") from None


def _sizes(directory: Path) -> dict[str, int]:
    return {
        str(path.relative_to(directory)): path.stat().st_size
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != NAME
    }
