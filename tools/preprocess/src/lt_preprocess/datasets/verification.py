"""Verify every field and token of a dataset without trusting its index or sidecar.

The readers refuse a damaged dataset at the first defect. This module reads every column to its end and lists all findings: the
defects that readers refuse, and defects that they cannot see, such as other checksums than the writer recorded, token ids
beyond the vocabulary, documents without their end of document, a sidecar that describes another dataset, and files that an
unfinished run left. The columns are read in blocks, so memory is bounded; the tokens are read once.
"""

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lt_preprocess.datasets import provenance
from lt_preprocess.datasets.block_reader import BlockReader, Column, read_column
from lt_preprocess.datasets.index_verification import DefectCount, Finding, Verification, check_index
from lt_preprocess.datasets.masked_documents import check_mask
from lt_shared.console import BadData, NoInput, Progress
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset
from lt_shared.data.document_origins import origins
from lt_shared.data.indexed_dataset import bin_path, idx_path
from lt_shared.files import checksums, storage
from lt_shared.files.checksums import FileChecksum

# Of a sidecar.
FIELDS = frozenset(
    {"v", "dataset", "crc32", "plan", "run", "part", "sources", "options", "counts", "derivation", "made_by"}
    | {origins.KEY, manifest.SEAL}
)
TOKENS_AT_ONCE = 8 << 20


def verify(dataset: Dataset, tokenizer: Path | None = None, sample: int = 0) -> Verification:
    """Check a dataset; with `sample`, also tokenize that many documents of its source again.

    The dataset must also match its manifest line; for a bare prefix, its sidecar. Raises: NoInput when neither file is there,
    BadData for a multimodal dataset.
    """
    prefix = dataset.prefix
    result = Verification(manifest.absolute(prefix))
    paths = [idx_path(prefix), bin_path(prefix)]
    is_present = [storage.exists(path) for path in paths]
    if not any(is_present):
        raise NoInput(f"{idx_path(prefix)}: no such file", indexed_dataset.hint_for_missing(prefix))
    for path, is_there in zip(paths, is_present, strict=True):
        if not is_there:
            result.find(path, "missing: the dataset is not finished, or the file was lost")
    record = _sidecar(prefix, result)
    described = _described(prefix, result)
    if dataset.tokens is not None:
        described = dataset
    dtype = check_index(prefix, result) if is_present[0] else None
    if all(is_present) and dtype is not None:
        _check_counts(prefix, described, record, dtype, result)
        recorded = manifest.checksums_in(record, manifest.sidecar_path(prefix)) or {}
        _check_index_checksum(prefix, recorded.get("idx"), result)
        _check_tokens(prefix, described, recorded.get("bin"), dtype, result)
        if described.loss_mask:
            _check_mask(prefix, result)
    _check_leftovers(prefix, result)
    if sample and not result.findings:
        from lt_preprocess.datasets import retokenization

        result.findings.extend(Finding(prefix, message) for message in retokenization.differences(described, tokenizer, sample))
    # After the text, which tells the documents that were changed.
    result.findings.extend(result.changed)
    return result


def _sidecar(prefix: str, result: Verification) -> dict[str, Any]:
    """Read the sidecar and record its defects; {} if it is missing or malformed."""
    sidecar_path = manifest.sidecar_path(prefix)
    if not storage.exists(sidecar_path):
        return {}
    content = storage.read_record(sidecar_path)
    try:
        record = provenance.parse_sidecar(content, sidecar_path)
    except BadData as error:
        result.find(sidecar_path, str(error).removeprefix(f"{sidecar_path}: "))
        return {}
    if "v" in record and record["v"] != manifest.SIDECAR_VERSION:
        result.find(sidecar_path, f"version {record['v']}, known is {manifest.SIDECAR_VERSION}")
    elif unknown := sorted(record.keys() - FIELDS):
        result.find(sidecar_path, f"has {unknown[0]!r:.60}, which no sidecar has")
    if manifest.is_sealed(content) is False:
        result.find(sidecar_path, "changed since it was written, by its own checksum")
    return record


def _described(prefix: str, result: Verification) -> Dataset:
    sidecar_path = manifest.sidecar_path(prefix)
    try:
        return manifest.describe(prefix)
    except BadData as error:
        if not any(finding.path == sidecar_path for finding in result.findings):
            result.find(sidecar_path, str(error).removeprefix(f"{sidecar_path}: "))
        return Dataset(prefix)


def _check_counts(prefix: str, described: Dataset, record: dict[str, Any], dtype: np.dtype[Any], result: Verification) -> None:
    """Compare the measured counts with the manifest line (`described`) and with `counts` in the sidecar."""
    sidecar_path = manifest.sidecar_path(prefix)
    for name, stored, measured in (
        ("documents", described.documents, result.documents),
        ("tokens", described.tokens, result.tokens),
        ("dtype", described.dtype, dtype.name),
    ):
        if stored is not None and measured is not None and stored != measured:
            result.find(sidecar_path, f"{name} {stored}, the dataset has {measured}")
    counts = record.get("counts") or {}
    for name, measured in (("documents", result.documents), ("sequences", result.sequences), ("tokens", result.tokens)):
        stored = counts.get(name)
        if stored is not None and measured is not None and stored != measured:
            result.find(sidecar_path, f"counts: {name} {stored}, the dataset has {measured}")
    ends_documents = (record.get("options") or {}).get("append_eod") is True
    if ends_documents and described.eod is None and not indexed_dataset.is_mask(prefix):
        result.find(sidecar_path, "made with --append-eod, but no end-of-document token is named")
    if described.vocab_size is not None:
        requested = (record.get("options") or {}).get("dtype")
        expected = dtype if requested == dtype.name else indexed_dataset.dtype_for(described.vocab_size)
        if dtype != expected:
            result.find(sidecar_path, f"a vocabulary of {described.vocab_size} entries takes {expected}, the tokens are {dtype}")
        if described.eod is not None and described.eod >= described.vocab_size:
            result.find(
                sidecar_path, f"end of document {described.eod} is beyond the vocabulary of {described.vocab_size} entries"
            )


def _check_index_checksum(prefix: str, recorded: FileChecksum | None, result: Verification) -> None:
    path = idx_path(prefix)
    if recorded is not None and storage.size_bytes(path) == recorded.size_bytes:
        with storage.open_read(path) as file:
            _compare(path, checksums.crc32_of_file(file), recorded, result)
    elif recorded is not None:
        result.find(path, f"{storage.size_bytes(path)} bytes, {recorded.size_bytes} were written")


def _compare(path: str, crc32: int, recorded: FileChecksum, result: Verification) -> None:
    if difference := recorded.difference(crc32):
        result.changed.append(Finding(path, difference))


def _check_tokens(
    prefix: str, described: Dataset, recorded: FileChecksum | None, dtype: np.dtype[Any], result: Verification
) -> None:
    """Compare the checksum, look for ids beyond the vocabulary and for documents that do not end as the sidecar says.

    Documents can be looked at when the index is sound; ids also when it is not.
    """
    options = {}
    if not any(finding.path == manifest.sidecar_path(prefix) for finding in result.findings):
        options = provenance.tokenizing_options(prefix)
    eod = described.eod if options.get("append_eod") is True else None
    bos = None if described.packed else options.get("bos")
    size = storage.size_bytes(bin_path(prefix))
    if recorded is not None and recorded.size_bytes != size:
        result.find(bin_path(prefix), f"{size} bytes, {recorded.size_bytes} were written")
        recorded = None
    if (described.vocab_size is None and eod is None and bos is None and recorded is None) or dtype.kind not in "iu":
        return
    unknown, endless, headless = DefectCount(), DefectCount(), DefectCount()
    crc32 = 0
    with Progress("verifying", size, "B") as progress:
        for first, tokens, bounds, first_document in _tokens(prefix, dtype, result):
            crc32 = checksums.crc32(tokens.data, crc32)
            if described.vocab_size is not None:
                limit = described.vocab_size
                unknown.add(
                    (tokens < 0) | (tokens >= limit),
                    lambda i, first=first, tokens=tokens, limit=limit: f"{tokens[i]} at token {first + i}, there are {limit}",
                )
            if bounds is not None and eod is not None:
                ends = bounds[1:]
                # A full sequence of a packed dataset may be the beginning of a document that is longer.
                full = described.packed + 1 if described.packed else None
                has_text = (ends > bounds[:-1]) & (np.diff(bounds) != full)
                last = np.full(len(ends), eod, np.int64)
                last[has_text] = tokens[ends[has_text] - 1]
                endless.add(
                    last != eod,
                    lambda i, first=first_document, last=last, eod=eod: (
                        f"document {first + i} ends with {last[i]}, not with {eod}"
                    ),
                )
            if bounds is not None and bos is not None:
                has_text = np.diff(bounds) > 0
                first_tokens = np.full(len(has_text), bos, np.int64)
                first_tokens[has_text] = tokens[bounds[:-1][has_text]]
                headless.add(
                    first_tokens != bos,
                    lambda i, first=first_document, first_tokens=first_tokens, bos=bos: (
                        f"document {first + i} begins with {first_tokens[i]}, not with {bos}"
                    ),
                )
            progress.advance(tokens.nbytes)
    if recorded is not None:
        _compare(bin_path(prefix), crc32, recorded, result)
    unknown.report(bin_path(prefix), "token beyond the vocabulary", result)
    endless.report(bin_path(prefix), "no end of document", result)
    headless.report(bin_path(prefix), "no beginning of document", result)


def _check_mask(prefix: str, result: Verification) -> None:
    """Verify the loss mask as a dataset of its own, and compare its documents with those of the tokens."""
    mask = indexed_dataset.mask_prefix(prefix)
    try:
        # A mask has two values: 0 and 1.
        verification = verify(Dataset(mask, vocab_size=2))
    except NoInput:
        result.find(bin_path(mask), "missing: the dataset says that it has a loss mask")
        return
    result.findings.extend(verification.findings)
    if not verification.findings and not result.findings:
        try:
            check_mask(prefix)
        except BadData as error:
            result.find(bin_path(mask), str(error).removeprefix(f"{bin_path(mask)}: "))


def _tokens(
    prefix: str, dtype: np.dtype[Any], result: Verification
) -> Iterator[tuple[int, npt.NDArray[Any], npt.NDArray[np.int64] | None, int]]:
    """The tokens in blocks: number of the first, tokens, and, when the index is sound, bounds and number of the documents."""
    if all(finding.path == manifest.sidecar_path(prefix) for finding in result.findings):
        with BlockReader(prefix) as reader:
            for block in reader.blocks(TOKENS_AT_ONCE):
                yield block.first_token, reader.read(block), block.bounds, block.first_document
        return
    column = Column(0, dtype, storage.size_bytes(bin_path(prefix)) // dtype.itemsize)
    with storage.open_read(bin_path(prefix)) as file:
        for first in range(0, column.length, TOKENS_AT_ONCE):
            yield first, read_column(file, column, first, min(first + TOKENS_AT_ONCE, column.length)), None, 0


def _check_leftovers(prefix: str, result: Verification) -> None:
    """Report hidden files beside the dataset: a run that still works or was killed left them."""
    if storage.is_remote(prefix):
        return
    directory, name = os.path.split(prefix)
    for path in sorted(glob.glob(os.path.join(glob.escape(directory), f".{glob.escape(name)}.*"))):
        result.find(path, "left by a run that is still running or was killed: run its command again, or delete it")
