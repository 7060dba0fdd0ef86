"""Remove documents from a batch by the rules of a `Curator`; count them by kind, and keep the first ones as examples."""

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lt_preprocess.curation.documents import LineStarts
from lt_preprocess.curation.rules import Removals
from lt_preprocess.documents.special_token_filter import bad_lines_of
from lt_preprocess.readers.batch import BadLine, Batch
from lt_preprocess.readers.chunks import Chunk
from lt_preprocess.texts import Lengths
from lt_preprocess.tokenizers.base import Ids

if TYPE_CHECKING:
    from lt_preprocess.curation.curator import Curator

EXAMPLES_PER_KIND = 100
"""Removed documents that a part keeps in its quarantine file."""

Counts = dict[str, int]
Encodings = list[tuple[Ids, Lengths]]


class Removed(NamedTuple):
    """How many documents of a chunk were removed, by kind. `examples` locates the first ones, as many as asked for by kind.

    `lines` has the documents' lines, by kind, ascending; `parts` are the removals that a sum was made of.
    """

    counts: Counts
    examples: Callable[[Counts], list[BadLine]]
    lines: dict[str, list[int]]
    parts: "tuple[Removed, ...]" = ()

    def before(self, line: int) -> "Removed":
        """The documents on the first `line` lines of the chunk."""
        if self.parts:
            return functools.reduce(operator.add, (part.before(line) for part in self.parts))
        lines = {kind: [number for number in numbers if number < line] for kind, numbers in self.lines.items()}
        counts = {kind: len(numbers) for kind, numbers in lines.items() if numbers}
        return Removed(
            counts,
            lambda limits: self.examples({kind: min(limit, counts.get(kind, 0)) for kind, limit in limits.items()}),
            lines,
        )

    def __add__(self, other: "Removed") -> "Removed":  # type: ignore[override]
        def examples(limits: Counts) -> list[BadLine]:
            remaining = {kind: limit - self.counts.get(kind, 0) for kind, limit in limits.items()}
            return [*self.examples(limits), *other.examples(remaining)]

        return Removed(added(self.counts, other.counts), examples, {}, (self, other))


NOTHING_REMOVED = Removed({}, lambda limits: [], {})


def added(counts: Counts, more: Counts) -> Counts:
    return {kind: counts.get(kind, 0) + more.get(kind, 0) for kind in sorted({*counts, *more})}


def subtracted(counts: Counts, less: Counts) -> Counts:
    """Return the positive differences."""
    differences = {kind: count - less.get(kind, 0) for kind, count in counts.items()}
    return {kind: count for kind, count in differences.items() if count}


def curate(
    chunk: Chunk, batch: Batch, json_keys: tuple[str, ...], curator: "Curator", line_starts: LineStarts
) -> tuple[Batch, Removed]:
    """Apply the rules that need no tokens."""
    removals = curator.removals(chunk, batch, line_starts)
    return (batch.without(removals), _removed(chunk, batch, json_keys, removals)) if removals else (batch, NOTHING_REMOVED)


def curate_by_tokens(
    chunk: Chunk, batch: Batch, encodings: Encodings, json_keys: tuple[str, ...], curator: "Curator", removed: Removed
) -> tuple[Batch, Encodings, Removed]:
    """Apply the limits in tokens to the encoded documents; `encodings` has one item per column."""
    documents = len(batch.columns[0].texts_per_document)
    tokens = np.zeros(documents, np.int64)
    for (_, text_lengths), column in zip(encodings, batch.columns, strict=True):
        np.add.at(tokens, np.repeat(np.arange(documents), column.texts_per_document), text_lengths)
    removals = curator.token_removals(tokens)
    if not removals:
        return batch, encodings, removed
    is_kept = ~np.isin(np.arange(documents), list(removals))
    kept_encodings = []
    for (ids, text_lengths), column in zip(encodings, batch.columns, strict=True):
        is_text_kept = np.repeat(is_kept, column.texts_per_document)
        kept_encodings.append((ids[np.repeat(is_text_kept, text_lengths)], text_lengths[is_text_kept]))
    return batch.without(removals), kept_encodings, removed + _removed(chunk, batch, json_keys, removals)


def _removed(chunk: Chunk, batch: Batch, json_keys: tuple[str, ...], removals: Removals) -> Removed:
    documents_by_kind: dict[str, list[int]] = {}
    for document in sorted(removals):
        documents_by_kind.setdefault(removals[document][0], []).append(document)

    def examples(limits: Counts) -> list[BadLine]:
        numbers = itertools.chain.from_iterable(
            documents[: max(limits[kind], 0)] for kind, documents in documents_by_kind.items() if kind in limits
        )
        reasons = {document: removals[document][1] for document in sorted(numbers)}
        return list(bad_lines_of(chunk, batch, json_keys, reasons)) if reasons else []

    line_of_document = batch.lines.of_documents()
    lines = {kind: line_of_document[documents].tolist() for kind, documents in documents_by_kind.items()}
    return Removed(dict(Counter(kind for kind, _ in removals.values())), examples, lines)


def in_words(counts: Counts) -> str:
    """Say how many documents were removed: "12 too_short, 3 contaminated"."""
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())


def remaining_examples(counts: Counts, kinds: Iterable[str]) -> Counts:
    """Return how many more examples a part takes, by kind, after `counts`."""
    return {kind: max(EXAMPLES_PER_KIND - counts.get(kind, 0), 0) for kind in kinds}
