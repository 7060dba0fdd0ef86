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
from lt_preprocess.documents import recipe
from lt_preprocess.documents.assembly import Documents
from lt_preprocess.documents.document_form import DocumentForm
from lt_preprocess.documents.fill_in_the_middle import FillInTheMiddle
from lt_preprocess.documents.recipe import Recipe
from lt_preprocess.readers import inputs, json_batch
from lt_preprocess.readers.batch import Batch
from lt_preprocess.readers.chunks import Chunk, Position
from lt_preprocess.readers.inputs import SampleBy
from lt_preprocess.readers.slices import Slice
from lt_shared.console import NoInput, Progress, UsageError
from lt_shared.contracts.manifest import Dataset
from lt_shared.data.document_origins import origins
from lt_shared.data.document_origins.origins import TokenizedLines
from lt_shared.files import storage

NAMED_DIFFERENCES = 10

Sequences = list[list[int]]


class _Origin(NamedTuple):
    """The sources and the options that a dataset was made with; `column` is the number of its key.

    `kept_lines` are the documents that rules left, None without rules.
    """

    sources: list[dict[str, Any]]
    options: dict[str, Any]
    column: int
    kept_lines: "_KeptLines | None" = None

    @property
    def sample_by(self) -> SampleBy:
        return self.options.get("sample_by") or "document"

    @property
    def has_limit(self) -> bool:
        return self.options.get("limit_documents") is not None or self.options.get("limit_tokens") is not None

    def recipe(self, dtype: np.dtype[Any], eod: int | None) -> Recipe:
        """How the documents were made; `eod` ended them if the options say so."""
        options = self.options
        fim = None if options.get("fim") is None else FillInTheMiddle(**options["fim"])
        end = eod if options["append_eod"] else None
        form = DocumentForm(dtype, options.get("bos"), end, options.get("max_document_tokens"), fim)
        return recipe.make(tuple(options["json_keys"]), options.get("template"), form)


class _KeptLines:
    """Selects the documents that a dataset's table of lines names, chunk by chunk.

    Rules are not applied again. The number of documents that they removed is checked.
    """

    def __init__(self, table: TokenizedLines, removed: int):
        self._table = table
        self._removed = removed
        self._documents, self._kept = 0, 0
        self._input, self._lines_before = 0, 0

    def select(self, batch: Batch, chunk: Chunk, first: int) -> Batch:
        """Return the documents of a chunk that the dataset holds from number `first` on."""
        if chunk.end.input != self._input:
            self._input, self._lines_before = chunk.end.input, 0
        lines = self._lines_before + 1 + batch.lines.of_documents()
        self._lines_before += batch.lines.total
        is_kept = np.isin(lines, self._table.lines_in(self._input, first, self._lines_before))
        self._documents += len(lines)
        self._kept += int(is_kept.sum())
        return batch.without(np.flatnonzero(~is_kept).tolist())

    def difference(self) -> str | None:
        """Compare the number of documents in the sources with those that were kept and removed."""
        if self._documents == self._kept + self._removed:
            return None
        return f"{self._kept:,} documents and {self._removed:,} removed ones, its sources hold {self._documents:,}"


def differences(dataset: Dataset, tokenizer: Path | None, sample: int) -> list[str]:
    """What differs between the dataset and its sources, the first NAMED_DIFFERENCES and how many more.

    Raises: NoInput when the sidecar does not name the sources or one is gone, and as `decoding.load_tokenizer`.
    """
    origin = _origin(dataset.prefix)
    if origin.options.get("chat") is not None:
        raise UsageError(f"{dataset.prefix}: --deep does not render conversations again", "leave --deep out")
    changed = [source["path"] for source in origin.sources if _has_changed(source)]
    if changed:
        return [f"{path}: changed since the dataset was made, so the two cannot be compared" for path in changed]
    loaded = decoding.load_tokenizer(dataset, tokenizer, origin.options["special_tokens"])
    made_by = origin.recipe(np.dtype(dataset.dtype), decoding.end_of_document(dataset, loaded))
    with AnnounceCompilation():
        json_batch.prepare()
        made_by.form.prepare()
        encoder = loaded.new_encoder()
    paths = [source["path"] for source in origin.sources]
    differences: list[str] = []
    count = 0
    with BlockReader(dataset.prefix) as reader, Progress("comparing", inputs.total_bytes(paths), "B") as progress:
        total = reader.documents
        sampled = np.sort(np.random.default_rng(0).choice(total, min(sample, total), replace=False, shuffle=False))
        for chunk in inputs.chunks(paths, Slice(), Position(), progress.advance, made_by.json_keys, origin.sample_by):
            batch = made_by.batch(chunk, encoder)
            if origin.kept_lines is not None:
                batch = origin.kept_lines.select(batch, chunk, count)
            column = batch.columns[origin.column]
            # How many documents a text is cut into is known when it is tokenized.
            documents = len(column.texts_per_document)
            first, last = np.searchsorted(sampled, [count, count + documents])
            if origin.options.get("max_document_tokens") is not None:
                cut = made_by.form.form(column, encoder).documents
                documents = len(cut.sequences_per_document)
                first, last = np.searchsorted(sampled, [count, count + documents])
                expected = _sequences(cut, sampled[first:last] - count)
            else:
                is_unused = np.ones(documents, np.bool_)
                is_unused[sampled[first:last] - count] = False
                formed = made_by.form.form(column.without(is_unused), encoder).documents
                expected = _sequences(formed, np.arange(last - first))
            for number, sequences in zip(sampled[first:last].tolist(), expected, strict=True):
                if (message := _difference(_stored(reader, number), sequences)) is not None:
                    differences.append(f"document {number} ({chunk.source}): {message}")
            count += documents
            if origin.has_limit and count >= total:
                count = total
                break
    if count != total:
        differences.insert(0, f"{total:,} documents, its sources hold {count:,}")
    if origin.kept_lines is not None and not origin.has_limit and (message := origin.kept_lines.difference()) is not None:
        differences.insert(0, message)
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
    removed = (record.get("counts") or {}).get("removed") or (record.get("dataset") or {}).get("removed") or {}
    table = origins.of_dataset(prefix) if removed else None
    if removed and not isinstance(table, TokenizedLines):
        raise NoInput(
            f"{prefix}: rules removed documents of its sources, and its lines are not recorded in their order",
            "verify the datasets that it was made of",
        )
    kept_lines = _KeptLines(table, sum(removed.values())) if isinstance(table, TokenizedLines) else None
    origin = _Origin(sources, options, options["json_keys"].index(options["json_key"]), kept_lines)
    if origin.has_limit and record.get("derivation"):
        raise NoInput(f"{prefix}: joins samples of shards, which a limit ended", "--deep is for all documents of the sources")
    return origin


def _has_changed(source: dict[str, Any]) -> bool:
    now = storage.fingerprint(source["path"])
    return any(source.get(key) != value for key, value in now.items())


def _sequences(documents: Documents, numbers: npt.NDArray[np.int64]) -> Iterator[Sequences]:
    """The sequences of some documents."""
    sequence_bounds = bounds_of(documents.sequences_per_document)
    token_bounds = bounds_of(documents.sequence_lengths).tolist()
    for number in numbers.tolist():
        sequences = range(int(sequence_bounds[number]), int(sequence_bounds[number + 1]))
        yield [documents.tokens[token_bounds[index] : token_bounds[index + 1]].tolist() for index in sequences]


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
