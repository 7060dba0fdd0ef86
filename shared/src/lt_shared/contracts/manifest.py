"""The lines that pass through pipes: one JSON object each, ended by a line that proves that the producer was not cut off.

    {"v":1,"kind":"dataset","prefix":"/fsx/data/web_text_document","documents":79000,"tokens":61234567, ...}
    {"v":1,"kind":"end","count":1}

A line is printed only after the files it names are durable. Readers also take bare prefixes and Megatron's `weight prefix`
pairs, so `--plain` output, a hand-written file and Megatron's own `--data-path` list all work.
"""

import dataclasses
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from lt_shared.console import BadData, NoInput, UsageError, note, print_json
from lt_shared.files import storage, strict_json
from lt_shared.files.checksums import FileChecksum, crc32

VERSION = 1
# Version of the sidecar. Older sidecars are read, too, because the fields read here have not changed.
SIDECAR_VERSION = 2
# Its last field: the CRC-32 of everything in it, with zeros in this place.
SEAL, UNSEALED = "own_crc32", "0" * 8
_SEALED = re.compile(rf'"{SEAL}": "([0-9a-f]{{8}})"\n}}\n\Z'.encode())
_WITHOUT_SIDECAR = "delete it to use the prefix without one"


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """The identity of a tokenizer: `sha256` as in `tokenizer_files`, `path` where its files were seen last."""

    name: str
    sha256: str
    path: str | None = None


@dataclasses.dataclass(frozen=True)
class Dataset:
    """One `.bin/.idx` pair. Only `prefix` and `weight` are known for a prefix that came without a description.

    Where it is `packed`, each sequence is one sample of so many tokens, and the one behind them, or shorter.
    `stream` is the name of the stream that it is part number `part` of, counted from 0. `removed` counts the documents that its
    writer left out, by kind. With `loss_mask`, a mask beside it says which tokens count in the loss
    (`indexed_dataset.loss_mask`). Older versions ignore all five.
    """

    prefix: str
    documents: int | None = None
    tokens: int | None = None
    dtype: str | None = None
    vocab_size: int | None = None
    eod: int | None = None
    tokenizer: Tokenizer | None = None
    weight: float = 1.0
    packed: int | None = None
    stream: str | None = None
    part: int | None = None
    removed: dict[str, int] | None = None
    loss_mask: bool | None = None

    kind = "dataset"

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Build a Dataset from a JSON object. Raises KeyError, TypeError or ValueError if it is not a dataset line."""
        if not isinstance(record, dict):
            raise ValueError(f"it is {record!r}, expected an object")
        tokenizer = record.get("tokenizer")
        field_names = {field.name for field in dataclasses.fields(cls)} - {"tokenizer"}
        _require_text(record, "prefix")
        for field in ("documents", "tokens", "vocab_size", "eod", "packed", "part"):
            if not isinstance(record.get(field), int | None) or isinstance(record.get(field), bool):
                raise ValueError(f"{field} is {record[field]!r}, expected a whole number")
        for field in ("dtype", "stream"):
            if not isinstance(record.get(field), str | None):
                raise ValueError(f"{field} is {record[field]!r}")
        if not isinstance(record.get("loss_mask"), bool | None):
            raise ValueError(f"loss_mask is {record['loss_mask']!r}, expected true or false")
        removed = record.get("removed")
        if removed is not None and not (isinstance(removed, dict) and all(type(count) is int for count in removed.values())):
            raise ValueError(f"removed is {removed!r}, expected whole numbers by kind")
        if (record.get("stream") is None) != (record.get("part") is None):
            raise ValueError("one of stream and part without the other")
        if not isinstance(tokenizer, dict | None):
            raise ValueError(f"tokenizer is {tokenizer!r}, expected an object")
        if tokenizer:
            _require_text(tokenizer, "name")
            _require_text(tokenizer, "sha256")
            if not isinstance(tokenizer.get("path"), str | None):
                raise ValueError(f"the tokenizer's path is {tokenizer['path']!r}")
        if not 0 < record.get("weight", 1.0) < math.inf:
            raise ValueError(f"weight {record['weight']} is not positive")
        return cls(
            **{key: value for key, value in record.items() if key in field_names},
            tokenizer=Tokenizer(tokenizer["name"], tokenizer["sha256"], tokenizer.get("path")) if tokenizer else None,
        )


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One checkpoint directory, complete on disk. `format` is one of lt-convert's formats, such as megatron-dist or hf."""

    path: str
    format: str
    iteration: int | None = None
    loss: float | None = None

    kind = "checkpoint"

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        field_names = {field.name for field in dataclasses.fields(cls)}
        _require_text(record, "path")
        _require_text(record, "format")
        return cls(**{key: value for key, value in record.items() if key in field_names})


def _require_text(record: dict[str, Any], key: str) -> None:
    if not isinstance(record[key], str) or not record[key]:
        raise ValueError(f"{key} is {record[key]!r}")


Entry = Dataset | Checkpoint


def record_of(entry: Entry) -> dict[str, Any]:
    """The JSON object of an entry, without unknown fields and without numbers that JSON cannot represent (a loss of NaN)."""
    fields = {key: value for key, value in dataclasses.asdict(entry).items() if value is not None and not _is_not_finite(value)}
    if "tokenizer" in fields:
        fields["tokenizer"] = {key: value for key, value in fields["tokenizer"].items() if value is not None}
    return {"v": VERSION, "kind": entry.kind, **fields}


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


class Writer:
    """Prints entries to stdout and the closing line at the end; `plain` prints bare prefixes and paths, and no closing line."""

    def __init__(self, plain: bool = False):
        self.plain = plain
        self.count = 0

    def write(self, entry: Entry) -> None:
        self.count += 1
        if self.plain:
            sys.stdout.write((entry.prefix if isinstance(entry, Dataset) else entry.path) + "\n")
            sys.stdout.flush()
        else:
            print_json(record_of(entry))

    def end(self) -> None:
        if not self.plain:
            print_json({"v": VERSION, "kind": "end", "count": self.count})


def read(sources: Sequence[str]) -> list[Entry]:
    """Read entries from arguments: `-` is stdin, `@FILE` a file, anything else is itself a line (or `weight prefix` pairs).

    Raises: UsageError in a rank that is asked to read stdin, NoInput for an empty or unfinished manifest, BadData for a line
    that is not understood.
    """
    entries: list[Entry] = []
    words: list[str] = []
    for source in sources:
        if source == "-":
            entries.extend(parse(standard_input(sys.stdin), "standard input"))
        elif source.startswith("@"):
            text = storage.read_bytes(source[1:]).decode("utf-8", "surrogateescape")
            entries.extend(parse(text.split("\n"), source[1:]))
        else:
            words.extend(_words(source))
    entries.extend(_from_words(words, "arguments"))
    return entries


def standard_input(lines: Iterable[str]) -> Iterator[str]:
    """`lines`, which a pipe has, unless this is a rank. Raises UsageError, as `read`."""
    for variable in ("LOCAL_RANK", "RANK"):
        if variable in os.environ:
            raise UsageError(
                f"- (standard input) cannot be read by a rank ({variable} is set): a pipe reaches one arbitrary rank only",
                "write the manifest to a file before the launcher starts and pass @FILE",
            )
    if sys.stdin.isatty():
        note("waiting for a manifest on standard input")
    yield from lines


def parse(lines: Iterable[str], source: str) -> list[Entry]:
    """Parse manifest lines, JSON or bare; several manifests may follow one another.

    `source` names the origin in messages. Raises as `read`.
    """
    entries: list[Entry] = []
    # Bare lines need no end.
    ended, since_end = True, 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        if not text.startswith("{"):
            entries.extend(_from_words(_words(text), f"{source}, line {number}"))
            continue
        record = record_in(text, source, number)
        if record["kind"] == "end":
            if record.get("count", since_end) != since_end:
                raise NoInput(f"{source}: {since_end} entries, but its end line says {record['count']}")
            ended, since_end = True, 0
        else:
            ended = False
            since_end += 1
            entries.append(entry_in(record, source, number))
    if not ended:
        raise NoInput(f"{source}: the manifest has no end line", "its producer failed or was cut off; see its messages")
    if not entries:
        raise NoInput(f"{source}: the manifest is empty", "the command before the pipe failed, or wrote nothing")
    return entries


def record_in(text: str, source: str, number: int) -> dict[str, Any]:
    """The JSON object of line `number` of `source`. Raises BadData if the line is not of a manifest."""
    try:
        record: dict[str, Any] = json.loads(text, object_pairs_hook=strict_json.object_of)
    except (ValueError, RecursionError) as error:
        raise BadData(f"{source}, line {number}: not JSON: {error}") from None
    if "kind" not in record:
        hint = "a document? lt-preprocess makes a dataset of them, and prints its manifest" if number == 1 else None
        raise BadData(f"{source}, line {number}: not a manifest line: no kind", hint)
    if record.get("v") != VERSION:
        raise BadData(f"{source}, line {number}: manifest version {record.get('v')}, this tool reads version {VERSION}")
    return record


def entry_in(record: dict[str, Any], source: str, number: int) -> Entry:
    """Parse a manifest line. Raises BadData when it is malformed."""
    for entry_type in (Dataset, Checkpoint):
        if record["kind"] == entry_type.kind:
            try:
                return entry_type.from_record(record)
            except KeyError as error:
                raise BadData(f"{source}, line {number}: {entry_type.kind} line without {error}") from None
            except (TypeError, ValueError) as error:
                raise BadData(f"{source}, line {number}: malformed {entry_type.kind} line: {error}") from None
    raise BadData(f"{source}, line {number}: unknown kind {record['kind']!r}")


def _words(text: str) -> list[str]:
    """Split a line into prefixes and weights. A path with spaces is one word when something is there."""
    first, _, remainder = text.partition(" ")
    for words in ([text], [first, remainder] if is_number(first) else []):
        if words and any(storage.exists(place) for place in (words[-1], f"{words[-1]}.idx")):
            return words
    return text.split()


def _from_words(words: Sequence[str], source: str) -> list[Dataset]:
    """Bare prefixes, each optionally preceded by its weight, as in Megatron's --data-path."""
    datasets: list[Dataset] = []
    weight: float | None = None
    for word in words:
        if weight is None and is_number(word):
            weight = float(word)
            if not 0 < weight < float("inf"):
                raise BadData(f"{source}: weight {word} is not positive")
            continue
        described = describe(word)
        datasets.append(described if weight is None else dataclasses.replace(described, weight=weight))
        weight = None
    if weight is not None:
        raise BadData(f"{source}: weight {weight:g} is not followed by a prefix")
    return datasets


def is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def sidecar_path(prefix: str) -> str:
    """The file beside a dataset that keeps its manifest line, so that a bare prefix still carries its tokenizer."""
    return f"{prefix}.json"


def check_sidecar_version(record: dict[str, Any], path: str) -> None:
    """Raise BadData, naming `path`, for a sidecar of a newer version than `SIDECAR_VERSION`. One without a version is old."""
    version = record.get("v", SIDECAR_VERSION)
    if not isinstance(version, int) or version > SIDECAR_VERSION:
        raise BadData(f"{path}: version {version}, known is {SIDECAR_VERSION}", "it was written by a newer lt-preprocess: update")


def sidecar_content(record: dict[str, Any]) -> bytes:
    """Serialize a sidecar. Its last field is the CRC-32 of the content without that field."""
    text = json.dumps(record | {SEAL: UNSEALED}, indent=2, ensure_ascii=False) + "\n"
    content = text.encode(errors="backslashreplace")
    return _with_seal(content, f"{crc32(content):08x}")


def is_sealed(content: bytes) -> bool | None:
    """Whether a sidecar is as it was written, by its own checksum; None when it has none, as those before 2026-11-24."""
    seal = _SEALED.search(content)
    return None if seal is None else f"{crc32(_with_seal(content, UNSEALED)):08x}".encode() == seal[1]


def _with_seal(content: bytes, seal: str) -> bytes:
    return _SEALED.sub(f'"{SEAL}": "{seal}"\n}}\n'.encode(), content)


def read_sidecar(prefix: str) -> dict[str, Any] | None:
    """Read the sidecar of a dataset, or return None if there is none. Raises BadData for an invalid or newer sidecar."""
    path = sidecar_path(prefix)
    return parse_sidecar(storage.read_record(path), path) if storage.exists(path) else None


def parse_sidecar(content: bytes, path: str) -> dict[str, Any]:
    """Parse `content`, the sidecar at `path`. Raises as `read_sidecar`."""
    try:
        record = strict_json.loads(content, has_paths=True)
    except ValueError as error:
        raise BadData(f"{path}: not a dataset description: {error}", _WITHOUT_SIDECAR) from None
    if not isinstance(record, dict):
        raise BadData(f"{path}: not a dataset description: not an object", _WITHOUT_SIDECAR)
    check_sidecar_version(record, path)
    return record


def describe(prefix: str) -> Dataset:
    """The dataset at `prefix` with what its sidecar says, or with nothing but the prefix when it has none.

    Raises BadData when the sidecar is malformed or of a newer version.
    """
    record = read_sidecar(prefix)
    if record is None:
        return Dataset(prefix)
    try:
        entry = Dataset.from_record(record["dataset"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadData(f"{sidecar_path(prefix)}: not a dataset description: {error}", _WITHOUT_SIDECAR) from None
    return dataclasses.replace(entry, prefix=prefix)


def recorded_checksums(prefix: str) -> dict[str, FileChecksum] | None:
    """Return the sizes and CRC-32s that the writer recorded for a dataset's files, by their ending ("bin", "idx").

    None when there is no sidecar or an older version wrote it without checksums. Raises as `describe`.
    """
    return checksums_in(read_sidecar(prefix) or {}, sidecar_path(prefix))


def checksums_in(sidecar: dict[str, Any], path: str) -> dict[str, FileChecksum] | None:
    """Return `recorded_checksums` for a parsed `sidecar` that was read from `path`."""
    record = sidecar.get("crc32")
    if record is None:
        return None
    try:
        checksums = {ending: FileChecksum(*record[ending]) for ending in ("bin", "idx")}
        if any(type(number) is not int or number < 0 for checksum in checksums.values() for number in checksum):
            raise ValueError("sizes and checksums are whole numbers")
    except (ValueError, KeyError, TypeError) as error:
        raise BadData(f"{path}: malformed checksums: {error}", _WITHOUT_SIDECAR) from None
    return checksums


def checkpoints(entries: Iterable[Entry], source: str) -> list[Checkpoint]:
    entries = list(entries)
    checkpoint_entries = [entry for entry in entries if isinstance(entry, Checkpoint)]
    if not checkpoint_entries:
        hint = "it has datasets, as lt-preprocess prints them: lt-train trains on those" if entries else None
        raise NoInput(f"{source}: no checkpoint in the manifest", hint)
    return checkpoint_entries


def datasets(entries: Iterable[Entry], source: str) -> list[Dataset]:
    entries = list(entries)
    dataset_entries = [entry for entry in entries if isinstance(entry, Dataset)]
    if not dataset_entries:
        hint = "it has checkpoints, as lt-train prints them: --load starts from one, lt-convert converts it" if entries else None
        raise NoInput(f"{source}: no dataset in the manifest", hint)
    return dataset_entries


def absolute(path: str | os.PathLike[str]) -> str:
    """The path as printed in manifests: absolute for local files, unchanged for remote ones."""
    return os.fspath(path) if storage.is_remote(path) else str(Path(path).absolute())
