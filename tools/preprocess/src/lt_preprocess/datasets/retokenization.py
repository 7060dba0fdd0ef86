"""Compare a dataset with the text that it was made from.

All sources named by the sidecar are read and parsed, so that all documents are counted and a lost one is noticed; only a sample,
the same on every run, is tokenized again. Parsing is many times faster than tokenizing, so a small sample of a large dataset
takes as long as reading its sources.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.compiler.jit import AnnounceCompilation
from lt_preprocess.datasets import decoding, provenance
from lt_preprocess.datasets.block_reader import BlockReader, bounds_of
from lt_preprocess.readers import inputs, json_batch
from lt_preprocess.readers.batch import Batch
from lt_preprocess.readers.chunks import Position
from lt_preprocess.readers.slices import Slice
from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers.base import Encoder
from lt_shared.console import NoInput, Progress
from lt_shared.contracts.manifest import Dataset
from lt_shared.files import storage

NAMED_DIFFERENCES = 10

Sequences = list[list[int]]


class _Origin(NamedTuple):
    """The sources and the options that a dataset was made with."""

    sources: list[dict[str, Any]]
    json_keys: tuple[str, ...]
    column: int
    append_eod: bool
    special_tokens: Any
    sample_by: Any


def differences(dataset: Dataset, tokenizer: Path | None, sample: int) -> list[str]:
    """What differs between the dataset and its sources, the first NAMED_DIFFERENCES and how many more.

    Raises: NoInput when the sidecar does not name the sources or one is gone, and as `decoding.load_tokenizer`.
    """
    origin = _origin(dataset.prefix)
    changed = [source["path"] for source in origin.sources if _has_changed(source)]
    if changed:
        return [f"{path}: changed since the dataset was made, so the two cannot be compared" for path in changed]
    loaded = decoding.load_tokenizer(dataset, tokenizer, origin.special_tokens)
    with AnnounceCompilation():
        json_batch.prepare()
        encoder = loaded.new_encoder()
    eod = decoding.end_of_document(dataset, loaded) if origin.append_eod else None
    paths = [source["path"] for source in origin.sources]
    differences: list[str] = []
    count = 0
    with BlockReader(dataset.prefix) as reader, Progress("comparing", inputs.total_bytes(paths), "B") as progress:
        total = reader.documents
        sampled = np.sort(np.random.default_rng(0).choice(total, min(sample, total), replace=False, shuffle=False))
        for chunk in inputs.chunks(paths, Slice(), Position(), progress.advance, origin.json_keys, origin.sample_by):
            texts = _document_texts(chunk.batch(origin.json_keys), origin.column, encoder)
            first, last = np.searchsorted(sampled, [count, count + len(texts)])
            for number in sampled[first:last].tolist():
                expected = encoded(texts[number - count], encoder, eod)
                if (message := _difference(_stored(reader, number), expected)) is not None:
                    differences.append(f"document {number} ({chunk.source}): {message}")
            count += len(texts)
    if count != total:
        differences.insert(0, f"{total:,} documents, its sources hold {count:,}")
    if len(differences) > NAMED_DIFFERENCES:
        differences[NAMED_DIFFERENCES:] = [f"{len(differences) - NAMED_DIFFERENCES} more documents differ"]
    return differences


def _origin(prefix: str) -> _Origin:
    record = provenance.read_sidecar(prefix) or {}
    sources, options = record.get("sources"), provenance.tokenizing_options(prefix)
    part = record.get("part") or {"index": 0, "is_last": True}
    if not sources or any(options.get(name) is None for name in ("json_keys", "json_key", "append_eod", "special_tokens")):
        raise NoInput(f"{prefix}: nothing says from which files it was made", "--deep is for what lt-preprocess made from files")
    if options.get("shard") is not None or part.get("index") != 0 or not part["is_last"]:
        raise NoInput(f"{prefix}: is a part of a larger dataset", "merge the parts and verify the result")
    keys = tuple(options["json_keys"])
    column, sample_by = keys.index(options["json_key"]), options.get("sample_by") or "document"
    return _Origin(sources, keys, column, options["append_eod"], options["special_tokens"], sample_by)


def _has_changed(source: dict[str, Any]) -> bool:
    now = storage.fingerprint(source["path"])
    return any(source.get(key) != value for key, value in now.items())


def _document_texts(batch: Batch, column: int, encoder: Encoder) -> list[list[bytes]]:
    """The texts of every document of a chunk, without the documents that are bad lines because of a special token."""
    refused = {
        document
        for texts, texts_per_document in batch.columns
        for document in _documents_of([forbidden.text for forbidden in encoder.forbidden(texts)], texts_per_document)
    }
    texts, texts_per_document = batch.columns[column]
    remaining_texts = iter(texts.to_list())
    of_documents = [list(itertools.islice(remaining_texts, count)) for count in texts_per_document.tolist()]
    return [of_document for number, of_document in enumerate(of_documents) if number not in refused]


def _documents_of(texts: list[int], texts_per_document: npt.NDArray[np.integer]) -> Iterator[int]:
    """The documents that texts of the given numbers belong to."""
    ends = np.cumsum(texts_per_document)
    yield from np.searchsorted(ends, texts, side="right").tolist()


def encoded(texts: list[bytes], encoder: Encoder, eod: int | None) -> Sequences:
    """Encode the texts of a document to its sequences."""
    ids, lengths = encoder.encode(Texts.from_list(texts))
    bounds = bounds_of(lengths).tolist()
    sequences = [ids[start:end].tolist() for start, end in itertools.pairwise(bounds) if start < end]
    if sequences and eod is not None:
        sequences[-1].append(eod)
    return sequences


def _stored(reader: BlockReader, number: int) -> Sequences:
    [block] = reader.blocks(first=number, last=number + 1)
    tokens = reader.read(block)
    return [tokens[start:end].tolist() for start, end in itertools.pairwise(bounds_of(block.sequence_lengths).tolist())]


def _difference(stored: Sequences, expected: Sequences) -> str | None:
    if stored == expected:
        return None
    if len(stored) != len(expected):
        return f"{len(stored)} sequences, its text gives {len(expected)}"
    one, other = [token for part in stored for token in part], [token for part in expected for token in part]
    for index, (token, expected_token) in enumerate(zip(one, other, strict=False)):
        if token != expected_token:
            return f"token {index} is {token}, its text gives {expected_token}"
    return f"{len(one)} tokens, its text gives {len(other)}"
