"""Remove documents from a batch by the rules of a `Curator`; count them by kind, and keep the first ones as examples."""

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


class RemovedDocument(NamedTuple):
    """Document `number` of a batch, on a `line` of its chunk, from 0. `quote` makes bad lines of such documents."""

    line: int
    number: int
    kind: str
    reason: str
    quote: "Quote"


Quote = Callable[[dict[int, str]], Iterable[BadLine]]


class Removed(NamedTuple):
    """The documents of a chunk that rules removed."""

    documents: tuple[RemovedDocument, ...] = ()

    @property
    def counts(self) -> Counts:
        """How many documents were removed, by kind."""
        return dict(Counter(document.kind for document in self.documents))

    def between(self, first_line: int, last_line: int | None) -> "Removed":
        """The documents on the lines `first_line` to before `last_line` of the chunk, None for its end."""
        return Removed(
            tuple(
                document
                for document in self.documents
                if first_line <= document.line and (last_line is None or document.line < last_line)
            )
        )

    def __add__(self, other: "Removed") -> "Removed":  # type: ignore[override]
        return Removed((*self.documents, *other.documents))

    def examples(self, limits: Counts) -> list[BadLine]:
        """Quote the first documents of each kind, at most as many as `limits` says."""
        reasons_by_quote: dict[Quote, dict[int, str]] = {}
        remaining = dict(limits)
        for document in self.documents:
            if remaining.get(document.kind, 0) > 0:
                remaining[document.kind] -= 1
                reasons_by_quote.setdefault(document.quote, {})[document.number] = document.reason
        return [line for quote, reasons in reasons_by_quote.items() for line in quote(reasons)]


NOTHING_REMOVED = Removed()


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
    lines = batch.lines.of_documents()

    def quote(reasons: dict[int, str]) -> Iterable[BadLine]:
        return bad_lines_of(chunk, batch, json_keys, reasons)

    return Removed(tuple(RemovedDocument(int(lines[number]), number, *removals[number], quote) for number in sorted(removals)))


def in_words(counts: Counts) -> str:
    """Say how many documents were removed: "12 too_short, 3 contaminated"."""
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())


def remaining_examples(counts: Counts, kinds: Iterable[str]) -> Counts:
    """Return how many more examples a part takes, by kind, after `counts`."""
    return {kind: max(EXAMPLES_PER_KIND - counts.get(kind, 0), 0) for kind in kinds}
