"""Sidecars of derived datasets: merged, shuffled, split or packed from finished datasets.

A derived sidecar has the manifest line, the tokenizing options that all source datasets share, and a `derivation`: the command,
the sources (sizes and modification times, which show a change) and the command's options. A later run of the same command on the
same sources has nothing to do.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lt_preprocess.datasets.block_reader import BlockReader, Shape
from lt_shared import version_of
from lt_shared.console import BadData, CannotCreate, NoInput, warn
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data.document_origins import origins
from lt_shared.data.document_origins.origins import Origins
from lt_shared.data.indexed_dataset import bin_path, idx_path, mask_prefix
from lt_shared.files import checksums, ownership, storage
from lt_shared.files.checksums import FileChecksum


@dataclasses.dataclass(frozen=True)
class Derivation:
    """`options` are those that change the result; `sources` are fingerprints."""

    command: str
    options: dict[str, Any]
    sources: list[dict[str, Any]]

    @classmethod
    def of(cls, command: str, options: dict[str, Any], sources: Sequence[Dataset]) -> "Derivation":
        """Raises NoInput when a file of a source is missing."""
        return cls(command, options, [fingerprint(source.prefix, bool(source.loss_mask)) for source in sources])


def fingerprint(prefix: str, has_mask: bool = False) -> dict[str, Any]:
    """Fingerprint the files of a dataset, to notice later that the dataset was replaced or changed."""
    files = {"bin": bin_path(prefix), "idx": idx_path(prefix)}
    if has_mask:
        files["loss_mask"] = bin_path(mask_prefix(prefix))
    return {"prefix": manifest.absolute(prefix)} | {name: storage.fingerprint(path) for name, path in files.items()}


def read_sidecar(prefix: str) -> dict[str, Any] | None:
    """Read the sidecar; None if it does not exist. Raises BadData if it is not JSON, malformed or from a newer version."""
    path = manifest.sidecar_path(prefix)
    return parse_sidecar(storage.read_record(path), path) if storage.exists(path) else None


def parse_sidecar(content: bytes, path: str) -> dict[str, Any]:
    """As `read_sidecar`, from the content of `path`."""
    record = manifest.parse_sidecar(content, path)
    if wrong := [name for name, is_sound in _SHAPES.items() if record.get(name) is not None and not is_sound(record[name])]:
        raise BadData(f"{path}: not a dataset description: {wrong[0]} is malformed", "delete it to use the dataset without it")
    manifest.checksums_in(record, path)
    return record


def _has(record: object, **types: type) -> bool:
    """Whether `record` is an object whose fields, if present, have these types or are null."""
    return isinstance(record, dict) and all(
        record.get(name) is None or (isinstance(record[name], kind) and isinstance(record[name], bool) == (kind is bool))
        for name, kind in types.items()
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_options(record: Any) -> bool:
    if not _has(record, json_keys=list, json_key=str, append_eod=bool, special_tokens=str, sample_by=str, template=str):
        return False
    if not _has(record, bos=int, max_document_tokens=int, limit_documents=int, limit_tokens=int, fim=dict, dtype=str, chat=dict):
        return False
    keys, shard = record.get("json_keys"), record.get("shard")
    is_key_known = keys is None or (keys != [] and record.get("json_key", keys[0]) in keys and all(map(_is_text, keys)))
    return is_key_known and (shard is None or (_has(shard, index=int, count=int) and None not in map(shard.get, _SLICE)))


_SLICE = ("index", "count")
_SHAPES: dict[str, Callable[[Any], bool]] = {
    "options": _are_options,
    "sources": lambda files: isinstance(files, list) and all(_has(file, path=str) and file.get("path") for file in files),
    "part": lambda part: _has(part, index=int, is_last=bool) and part.get("is_last") is not None,
    "counts": lambda counts: _has(counts, documents=int, sequences=int, tokens=int, bad_lines=int),
    "run": _is_text,
}
"""What must hold for the fields that other modules read."""


def tokenizing_options(prefix: str) -> dict[str, Any]:
    """Return the tokenizing options that the sidecar records; empty if it records none."""
    return (read_sidecar(prefix) or {}).get("options") or {}


def shared_options(sources: Sequence[Dataset]) -> dict[str, Any]:
    """Return the tokenizing options that all sources share. Warns if only some sources end their documents with a token."""
    options_by_source = [tokenizing_options(source.prefix) for source in sources]
    endings = {options["append_eod"] for options in options_by_source if "append_eod" in options}
    if len(endings) > 1:
        warn("some of the datasets were made with --append-eod and some without")
    return {
        key: value
        for key, value in options_by_source[0].items()
        if all(key in one and one[key] == value for one in options_by_source)
    }


def shared_sources(sources: Sequence[Dataset]) -> list[dict[str, Any]] | None:
    """List the sources' text files in order; None if a source does not record its files.

    Shards and parts from one run share files, and a shared file counts once. So every shard and part must be present, in order.
    """
    files: list[dict[str, Any]] = []
    of_run: dict[str, dict[str, Any]] = {}
    expected = _BEGIN
    for source in sources:
        record = read_sidecar(source.prefix) or {}
        position = _position_in_run(record)
        if position is None or (position.shard, position.part) != expected:
            return None
        of_run |= {file["path"]: file for file in record["sources"]}
        expected = position.next()
        if expected == _BEGIN:
            files += of_run.values()
            of_run = {}
    return files if expected == _BEGIN else None


class _RunPosition(NamedTuple):
    """The position of a dataset among the shards and parts of its run."""

    shard: int
    part: int
    is_last_part: bool
    shards: int

    def next(self) -> tuple[int, int]:
        """Return shard and part of the next dataset; after the last dataset of a run, the first shard and part."""
        if not self.is_last_part:
            return self.shard, self.part + 1
        return _BEGIN if self.shard + 1 == self.shards else (self.shard + 1, 0)


_BEGIN = (0, 0)


def _position_in_run(record: dict[str, Any]) -> _RunPosition | None:
    sources, part, options = record.get("sources"), record.get("part"), record.get("options")
    if not isinstance(sources, list) or not isinstance(part, dict) or not isinstance(options, dict):
        return None
    if part.get("index") is None or len({file["path"] for file in sources}) < len(sources):
        return None
    shard = options.get("shard") or {"index": 0, "count": 1}
    return _RunPosition(shard["index"], part["index"], part["is_last"], shard["count"])


def sidecar(
    dataset: Dataset,
    crc32: dict[str, FileChecksum],
    derivation: Derivation,
    options: dict[str, Any],
    files: list[dict[str, Any]] | None = None,
    documents: Origins | None = None,
) -> tuple[str, bytes]:
    """Return the sidecar's path and content.

    `files` are the dataset's text files, complete and in order; `documents` has the documents' known origins.
    """
    record = {
        "v": manifest.SIDECAR_VERSION,
        "dataset": manifest.record_of(dataset),
        "crc32": crc32,
        "sources": files,
        "options": options,
        "derivation": dataclasses.asdict(derivation),
        **({} if documents is None else {origins.KEY: documents.to_record()}),
        "made_by": {"lt-preprocess": version_of("lt-preprocess")},
    }
    return manifest.sidecar_path(dataset.prefix), manifest.sidecar_content(record)


def finished(prefix: str, derivation: Derivation) -> Dataset | None:
    """Describe the complete dataset from an earlier run of the same command on the same sources; None if there is none.

    Raises CannotCreate as `check_not_planted`.
    """
    try:
        record = read_sidecar(prefix)
        if record is None or record.get("derivation") != dataclasses.asdict(derivation):
            return None
        dataset = manifest.describe(prefix)
        with BlockReader(prefix) as reader:
            same = (reader.documents, reader.tokens, reader.dtype.name) == (dataset.documents, dataset.tokens, dataset.dtype)
        is_sound = same and is_index_sound(prefix, record) and (not dataset.loss_mask or _is_mask_sound(prefix))
    except (BadData, NoInput):
        return None
    if is_sound:
        check_not_planted(prefix)
    return dataset if is_sound else None


def _is_mask_sound(prefix: str) -> bool:
    mask = mask_prefix(prefix)
    return is_index_sound(mask, read_sidecar(mask) or {})


@dataclasses.dataclass(frozen=True)
class OneSourcePlan:
    """A checked plan to derive `result` from one `source`. `options` are the tokenizing options of the source."""

    source: Dataset
    shape: Shape
    result: Dataset
    options: dict[str, Any]
    derivation: Derivation

    @property
    def files(self) -> list[dict[str, Any]] | None:
        """The text files that the source was tokenized from, None when they are not known."""
        return shared_sources([self.source])

    def to_record(self) -> dict[str, Any]:
        """The plan as `--dry-run` prints it, with the command's own options."""
        return {
            "v": manifest.SIDECAR_VERSION,
            "kind": "plan",
            "command": self.derivation.command,
            "source": manifest.record_of(self.source),
            "result": manifest.record_of(self.result),
            **self.derivation.options,
            "up_to_date": finished(self.result.prefix, self.derivation) is not None,
        }


def is_index_sound(prefix: str, record: dict[str, Any]) -> bool:
    """Whether the index has the size and checksum that its sidecar records, and the tokens their size.

    A remote index is not read. Raises NoInput when a file is missing.
    """
    recorded = manifest.checksums_in(record, manifest.sidecar_path(prefix))
    if recorded is None:
        return storage.size_bytes(idx_path(prefix)) > 0
    sizes = storage.size_bytes(bin_path(prefix)), storage.size_bytes(idx_path(prefix))
    if sizes != (recorded["bin"].size_bytes, recorded["idx"].size_bytes):
        return False
    return storage.is_remote(prefix) or checksums.crc32_of_path(idx_path(prefix)) == recorded["idx"].crc32


def check_not_planted(prefix: str) -> None:
    """Raise CannotCreate for a dataset that another user made where this user's is expected: anyone can copy a fingerprint."""
    if storage.is_remote(prefix):
        return
    for path in (bin_path(prefix), idx_path(prefix), manifest.sidecar_path(prefix)):
        status = os.stat(path)
        other = None if status.st_uid == 0 else ownership.belongs_to_other(status, os.path.dirname(path))
        if other is not None:
            raise CannotCreate(f"{path}: {other}", "name that dataset if you trust it, choose another output, or remove it")
