"""The command `dedup`: signatures of the inputs, and the list of duplicates among these and earlier signatures."""

import os
from collections.abc import Sequence
from typing import Any

from lt_preprocess.curation import duplicates, signature_files, signatures
from lt_preprocess.curation.signature_files import Compared, Method, SignatureFile
from lt_preprocess.readers.slices import Slice
from lt_shared import credentials
from lt_shared.console import UsageError, counted, note
from lt_shared.contracts import manifest
from lt_shared.files import storage

ENDING = ".duplicates"


def run(
    patterns: Sequence[str],
    output_prefix: str,
    method: Method,
    compared: Compared,
    shard: Slice | None,
    workers: int,
    anew: bool,
) -> tuple[str, dict[str, Any]]:
    """Return the path of the output, and its record for standard output.

    Raises as `signatures.plan`, `signatures.build` and `duplicates.ordered`.
    """
    paths = [path for pattern in patterns for path in _expanded(pattern)]
    signature_paths = [path for path in paths if signature_files.is_signatures(path)]
    texts = [path for path in paths if path not in signature_paths]
    if shard is not None and signature_paths:
        raise UsageError(f"{signature_paths[0]}: signatures cannot be divided into shards", "leave --shard out")
    prefix = manifest.absolute(output_prefix)
    files = [SignatureFile.read(path) for path in signature_paths]
    if texts:
        plan = signatures.plan(texts, prefix, method, compared, shard)
        made = None if anew else signatures.finished(plan)
        if made is not None:
            note(f"{plan.path}: up to date")
        files.append(made or signatures.build(plan, workers))
        if shard is not None:
            record = {"documents": files[-1].documents, "method": method}
            return plan.path, {"v": signature_files.VERSION, "kind": "signatures", "path": plan.path} | record
    return _listed(files, f"{prefix}{ENDING}", anew)


def _expanded(pattern: str) -> list[str]:
    """Files of signatures do not end as texts do, so that a pattern for them is expanded here."""
    if any(character in pattern for character in "*?[") and not storage.is_remote(pattern):
        matches = storage.expand([pattern])
        if matches and all(map(signature_files.is_signatures, matches)):
            return matches
    return [pattern]


def _listed(files: Sequence[SignatureFile], path: str, anew: bool) -> tuple[str, dict[str, Any]]:
    files = duplicates.ordered(files)
    if not anew and os.path.isfile(path) and duplicates.is_list(path):
        record = duplicates.read_record(path)[0]
        if record["plan"] == duplicates.fingerprint(files):
            note(f"{path}: up to date")
            return path, _result(path, record)
    record = duplicates.build(files, path)
    removed = ", ".join(counted(count, kind) for kind, count in record["removed"].items()) or "no duplicates"
    note(f"{counted(record['documents'], 'document')}: {removed}")
    return path, _result(path, record)


def _result(path: str, record: dict[str, Any]) -> dict[str, Any]:
    fields = {name: record[name] for name in ("documents", "removed", "method")}
    return {"v": duplicates.VERSION, "kind": "duplicates", "path": credentials.without_tokens(path)} | fields
