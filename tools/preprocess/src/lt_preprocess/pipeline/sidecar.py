"""The sidecar, the file beside a dataset that records its sources: `PREFIX.json`.

`dataset` is its manifest line, which other tools read; `crc32` has size and CRC-32 of the `.bin` and the `.idx`. `sources` are
the inputs with size, modification time and the hash of the first 64 KiB (remote inputs with the store's version), `options` the
options that change the result, `origins` the documents' source lines, `counts` the numbers of stored and excluded documents,
`made_by` the versions of the software. `plan` is the plan's fingerprint: a later run with an equal fingerprint has nothing to
do. `run` is equal for every shard of a run, so that shards of different runs are not joined.
"""

import dataclasses
import glob
import hashlib
import platform
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from lt_preprocess.datasets import provenance, replacement
from lt_preprocess.pipeline.origin_rows import OriginRows
from lt_preprocess.pipeline.plan import REQUESTS_AT_ONCE, Plan
from lt_preprocess.pipeline.state import State
from lt_preprocess.readers import inputs
from lt_shared import credentials, installed_versions
from lt_shared.console import BadData, CannotCreate, NoInput, counted, warn
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset
from lt_shared.data.document_origins.origins import KEY, File
from lt_shared.data.indexed_dataset import Extent
from lt_shared.files import storage
from lt_shared.files.checksums import FileChecksum

HEAD_BYTES = 1 << 16
PACKAGES = ("lt-shared", "numba", "numpy", "orjson", "pyarrow", "sentencepiece", "tokenizers")


def origins(plan: Plan, rows: OriginRows, state: State) -> dict[str, Any]:
    """Return the record of where the documents of a closed part come from. Its files are the `sources` of the part's sidecars."""
    first, last = state.first_input, state.last_input
    paths = [] if first is None or last is None else plan.paths[first : last + 1]
    files: list[File] = [{"path": credentials.without_tokens(inputs.display_name(path))} for path in paths]
    table = rows.table(state.extents[0].documents, files, first or 0)
    return table.to_record(in_sidecar=plan.sources is not None)


def content(
    plan: Plan,
    dataset: manifest.Dataset,
    extent: Extent,
    crc32: dict[str, FileChecksum],
    state: State,
    origins: dict[str, Any] | None,
) -> bytes:
    """Build the sidecar of a dataset in a closed part."""
    options = {"json_key": _json_key(plan, dataset.prefix, state.part)} | plan.options.to_record()
    record = {
        "v": manifest.SIDECAR_VERSION,
        "dataset": manifest.record_of(dataset),
        "crc32": crc32,
        "plan": plan.fingerprint,
        "run": _fingerprint_of_all_shards(plan),
        "part": {"index": state.part, "is_last": state.is_last},
        "sources": _sources(plan, state),
        "options": options,
        KEY: origins,
        "counts": extent.counts()
        | {"bad_lines": state.bad_lines - state.bad_lines_before}
        | ({} if dataset.removed is None else {"removed": dataset.removed})
        | _empty_fields(plan, state),
        "made_by": {"python": platform.python_version()} | installed_versions(("lt-preprocess", *PACKAGES)),
    }
    return manifest.sidecar_content(record)


def _empty_fields(plan: Plan, state: State) -> dict[str, Any]:
    """The documents up to the end of this part that do not fill an optional field, by field."""
    counts = dict(zip(plan.optional_fields, state.empty_fields, strict=False))
    return {"empty_fields": counts} if counts else {}


def _json_key(plan: Plan, prefix: str, part: int) -> str:
    return plan.options.json_keys[plan.dataset_prefixes(part).index(prefix.removesuffix(indexed_dataset.MASK_SUFFIX))]


def _fingerprint_of_all_shards(plan: Plan) -> str | None:
    return dataclasses.replace(plan, options=dataclasses.replace(plan.options, shard=None)).fingerprint


def _sources(plan: Plan, state: State) -> list[dict[str, Any]] | None:
    """Describe the inputs of this part, with the hash of their first bytes."""
    if plan.sources is None:
        return None
    if state.first_input is None or state.last_input is None:
        return []
    read = plan.sources[state.first_input : state.last_input + 1]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        return list(pool.map(_unchanged, read))


def _unchanged(source: dict[str, Any]) -> dict[str, Any]:
    """The source with its hash. Raises BadData if the file is not the one that was planned: it changed before it was read."""
    if not storage.is_remote(source["path"]) and storage.fingerprint(source["path"]) != source:
        raise BadData(f"{source['path']}: changed while it was read", "start again when nothing writes to it any more")
    return _with_hash(source)


def _with_hash(source: dict[str, Any]) -> dict[str, Any]:
    if storage.is_remote(source["path"]):
        return source | {"path": credentials.without_tokens(source["path"])}
    with storage.open_read(source["path"]) as file:
        return source | {"head_sha256": hashlib.sha256(file.read(HEAD_BYTES)).hexdigest()}


def read(prefix: str) -> dict[str, Any] | None:
    """Read the sidecar of a dataset; None if it is missing or this version cannot parse it."""
    try:
        return provenance.read_sidecar(prefix)
    except BadData:
        return None


def up_to_date(plan: Plan) -> list[manifest.Dataset] | None:
    """Describe all datasets of a plan if an earlier run completed them, else None.

    The first bytes reveal an input that was replaced by a file with equal size and modification time (`cp -p`, `rsync -t`).
    """
    datasets: list[manifest.Dataset] = []
    stored_sources: list[dict[str, Any]] = []
    part = 0
    while plan.fingerprint is not None:
        outcomes = [_made(prefix, plan, part) for prefix in plan.output_prefixes(part)]
        whole = [outcome for outcome in outcomes if outcome is not None]
        if len(whole) < len(outcomes):
            return None
        datasets += [
            dataclasses.replace(outcome.dataset, tokenizer=plan.identity)
            for outcome in whole
            if not indexed_dataset.is_mask(outcome.dataset.prefix)
        ]
        # All datasets of a part have the same sources.
        stored_sources += whole[0].sources
        if whole[-1].is_last:
            return datasets if _begin_alike(stored_sources, plan) else None
        part += 1
    return None


def _begin_alike(stored_sources: list[dict[str, Any]], plan: Plan) -> bool:
    """Return whether the plan's local inputs still begin with the recorded bytes. Reads 64 KiB per input, once."""
    heads = {source["path"]: source["head_sha256"] for source in stored_sources if "head_sha256" in source}
    planned = [source for source in plan.sources or () if source["path"] in heads]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        return all(source.get("head_sha256") == heads[source["path"]] for source in pool.map(_with_hash, planned))


def is_whole(prefix: str, plan: Plan, part: int) -> bool:
    """Whether a run of the plan has left this dataset of a part whole."""
    return _made(prefix, plan, part) is not None


class _Made(NamedTuple):
    dataset: manifest.Dataset
    is_last: bool
    sources: list[dict[str, Any]]


def _made(prefix: str, plan: Plan, part: int) -> _Made | None:
    record = read(prefix) or {}
    if not _is_of(record, plan, part, _json_key(plan, prefix, part)):
        return None
    dataset = _whole(prefix, plan.dtype_of(prefix), record)
    return None if dataset is None else _Made(dataset, record["part"]["is_last"], record.get("sources") or [])


def check_tokenizer(plan: Plan) -> None:
    """Raise CannotCreate if the output would replace a dataset that was made with a different tokenizer."""
    for prefix in plan.dataset_prefixes(0):
        replacement.check_tokenizer(prefix, plan.identity)


def check_corpus(plan: Plan) -> None:
    """Raise CannotCreate when the output is there and holds documents that the plan does not read.

    A dataset is replaced if its inputs are the plan's, if files were added to the inputs, or if the inputs were moved.
    """
    _check_quarantine(plan)
    part = 0
    while any(storage.exists(indexed_dataset.idx_path(prefix)) for prefix in plan.dataset_prefixes(part)):
        for prefix in plan.dataset_prefixes(part):
            replacement.check_documents(prefix, _documents_not_read(prefix, plan))
        if not plan.options.has_parts:
            return
        part += 1


def _check_quarantine(plan: Plan) -> None:
    """Raise CannotCreate when the file of bad lines belongs to a dataset of another key, which keeps its output."""
    path = plan.quarantine_path(0)
    if storage.is_remote(path) or not storage.exists(path):
        return
    for sidecar_path in sorted(glob.glob(f"{glob.escape(plan.part_prefix(0))}_*_document.json")):
        prefix = sidecar_path.removesuffix(".json")
        if prefix in plan.dataset_prefixes(0):
            continue
        record = read(prefix) or {}
        counts, options = record.get("counts") or {}, record.get("options") or {}
        if counts.get("bad_lines") and options.get("on_error") == "quarantine":
            raise CannotCreate(f"{path}: holds the bad lines of {prefix}", replacement.HINT)


def _documents_not_read(prefix: str, plan: Plan) -> str | None:
    """Which documents of an existing dataset the plan does not read, in words; None when it reads them all."""
    if not storage.exists(indexed_dataset.idx_path(prefix)):
        return None
    if not storage.exists(manifest.sidecar_path(prefix)):
        return replacement.OF_ANOTHER_TOOL
    record = read(prefix)
    if record is None:
        return "documents that its damaged sidecar does not name"
    if "sources" not in record:
        return None
    stored_sources: list[dict[str, Any]] | None = record["sources"]
    if stored_sources is None and plan.sources is None:
        if _is_of_unfinished_run(plan):
            warn(f"{prefix}: part of a run that did not end is replaced")
            return None
        documents = counted((record.get("counts") or {}).get("documents") or 0, "document")
        raise CannotCreate(
            f"{prefix}: holds {documents} from standard input or a pipe, and nothing tells whether this command reads them again",
            replacement.HINT,
        )
    if stored_sources is None or plan.sources is None:
        return "documents of other inputs"
    planned_paths = {source["path"] for source in plan.sources} | {credentials.without_tokens(path) for path in plan.paths}
    missing = [source for source in stored_sources if source["path"] not in planned_paths and not _is_moved(source, plan)]
    return replacement.name_missing([source["path"] for source in missing], "inputs")


def _is_of_unfinished_run(plan: Plan) -> bool:
    """Whether the last part that is there says that more parts were to follow."""
    if not plan.options.has_parts:
        return False
    part = 0
    while all(storage.exists(indexed_dataset.idx_path(prefix)) for prefix in plan.dataset_prefixes(part + 1)):
        part += 1
    parts = [(read(prefix) or {}).get("part") for prefix in plan.dataset_prefixes(part)]
    return any(isinstance(record, dict) and record.get("is_last") is False for record in parts)


def _is_moved(source: dict[str, Any], plan: Plan) -> bool:
    """Whether a recorded source is one of the plan's inputs under another name, by its size and its first bytes."""
    same_size = [
        input_source
        for input_source in plan.sources or ()
        if input_source.get("size_bytes") == source.get("size_bytes") is not None
    ]
    return any(_with_hash(input_source)["head_sha256"] == source.get("head_sha256") for input_source in same_size)


def is_of_part(prefix: str, part: int) -> bool:
    """Whether the sidecar says that a run with --max-shard-size or --stream made the dataset as its part of this number."""
    record = read(prefix) or {}
    part_record, options = record.get("part"), record.get("options")
    if not isinstance(part_record, dict) or not isinstance(options, dict):
        return False
    return part_record.get("index") == part and bool(options.get("max_shard_bytes") or options.get("stream"))


def _is_of(record: dict[str, Any], plan: Plan, part: int, json_key: str) -> bool:
    """Whether the plan would produce an equal dataset. The handling of bad lines matters only if the dataset had bad lines.

    A renamed dataset has the sidecar of a different key or part.
    """
    try:
        same_losses = record["counts"]["bad_lines"] == 0 or record["options"]["on_error"] == plan.options.on_error
        is_here = (record["part"]["index"], record["options"]["json_key"]) == (part, json_key)
        return bool(record["v"] == manifest.SIDECAR_VERSION and record["plan"] == plan.fingerprint and same_losses and is_here)
    except (KeyError, TypeError):
        return False


def _whole(prefix: str, dtype: str, record: dict[str, Any]) -> manifest.Dataset | None:
    """The dataset if both files are there as they were written, as far as that is told without reading all tokens."""
    try:
        dataset = manifest.describe(prefix)
        if dataset.dtype != dtype or dataset.tokens is None:
            return None
        size_bytes = dataset.tokens * np.dtype(dtype).itemsize
        is_sound = storage.size_bytes(indexed_dataset.bin_path(prefix)) == size_bytes and provenance.is_index_sound(
            prefix, record
        )
    except (BadData, NoInput):
        return None
    return dataset if is_sound else None
