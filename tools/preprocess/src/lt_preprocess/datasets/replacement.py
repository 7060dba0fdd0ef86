"""Decide whether an output may replace an existing dataset: only with the same tokenizer and the same documents.

A dataset with other documents or another tokenizer may be hours of work, and the name of the output a mistake. Tokenizing
compares the text files (`pipeline.sidecar`). The commands on finished datasets compare the datasets that they read.
"""

from typing import Any

from lt_preprocess.datasets import provenance
from lt_preprocess.datasets.provenance import Derivation
from lt_shared.console import BadData, CannotCreate
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset
from lt_shared.files import storage

OF_ANOTHER_TOOL = "documents that another tool wrote"
HINT = "choose another output, or pass --force to replace it"


def check_tokenizer(prefix: str, tokenizer: manifest.Tokenizer | None) -> None:
    """Raise CannotCreate if the dataset at `prefix` was made with a different tokenizer."""
    try:
        stored = manifest.describe(prefix).tokenizer
    except BadData:
        return
    if stored is None or tokenizer is None or not storage.exists(indexed_dataset.idx_path(prefix)):
        return
    if stored.sha256 != tokenizer.sha256:
        raise CannotCreate(
            f"{prefix}: was made with another tokenizer, {stored.name} ({stored.sha256[:12]}), "
            f"not {tokenizer.name} ({tokenizer.sha256[:12]})",
            HINT,
        )


def check_documents(prefix: str, unread_documents: str | None) -> None:
    """Raise CannotCreate if the dataset at `prefix` holds `unread_documents`, a phrase for documents that the command lacks."""
    if unread_documents is not None:
        raise CannotCreate(f"{prefix}: holds {unread_documents}, which this command does not read", HINT)


def name_missing(paths: list[str], kind: str) -> str | None:
    """Return a phrase for documents that no source of the command holds; None if `paths` is empty."""
    if not paths:
        return None
    return f"the documents of {paths[0]}" + (f" and {len(paths) - 1:,} more {kind}" if len(paths) > 1 else "")


def check_derived(result: manifest.Dataset, derivation: Derivation, text_files: list[dict[str, Any]] | None) -> None:
    """Raise CannotCreate if the output of a command on finished datasets would replace other documents.

    An earlier output may be replaced if it came from these datasets, also moved or extended, or was tokenized from `text_files`.
    """
    check_tokenizer(result.prefix, result.tokenizer)
    check_documents(result.prefix, _documents_not_read(result.prefix, derivation, text_files))


def _documents_not_read(prefix: str, derivation: Derivation, text_files: list[dict[str, Any]] | None) -> str | None:
    if not storage.exists(indexed_dataset.idx_path(prefix)):
        return None
    if not storage.exists(manifest.sidecar_path(prefix)):
        return OF_ANOTHER_TOOL
    try:
        record = provenance.read_sidecar(prefix) or {}
    except BadData:
        return None
    stored = record.get("derivation")
    if not isinstance(stored, dict) or not isinstance(stored.get("sources"), list):
        planned_paths = {file["path"] for file in text_files or ()}
        stored_files = record.get("sources") or []
        missing = [file["path"] for file in stored_files if file["path"] not in planned_paths]
        return name_missing(missing, "inputs") if stored_files else "documents of other datasets"
    unread = [source for source in stored["sources"] if not _is_read(source, derivation)]
    return name_missing([str(source.get("prefix")) for source in unread], "datasets")


def _is_read(stored: dict[str, Any], derivation: Derivation) -> bool:
    """Whether the command reads a recorded dataset, by its name, or moved: then the sizes and times of its files are the same."""
    return any(source["prefix"] == stored.get("prefix") or _unnamed(source) == _unnamed(stored) for source in derivation.sources)


def _unnamed(source: dict[str, Any]) -> list[dict[str, Any]]:
    files = [source.get(name) or {} for name in ("bin", "idx")]
    return [{key: value for key, value in file.items() if key != "path"} for file in files]
