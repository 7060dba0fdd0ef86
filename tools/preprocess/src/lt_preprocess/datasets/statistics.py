"""Describe a finished dataset: counts, lengths of its documents, its tokenizer and its first documents.

One pass over the index, none over the tokens: a dataset of a terabyte takes as long as its index. A loss mask is read.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lt_preprocess.datasets import decoding, provenance, source_datasets
from lt_preprocess.datasets.block_reader import BlockReader, Shape
from lt_preprocess.datasets.decoding import Text
from lt_shared.console import BadData, NoInput
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset

BINS = 64
TOKENS_AT_ONCE = 16 << 20
SHOWN_CHARACTERS = 200
BAR_CHARACTERS = 40
_DOCUMENT_OPTIONS = frozenset(
    (
        *("append_eod", "template", "bos", "max_document_tokens", "limit_documents", "limit_tokens", "fim", "dtype", "chat"),
        "shard",
    )
)


@dataclasses.dataclass(frozen=True)
class Bin:
    """Documents of `shortest` to `longest` tokens."""

    shortest: int
    longest: int
    documents: int
    tokens: int


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Lengths are in tokens. `first_texts` is None when the tokenizer is not known; `undecoded` then says why.

    `options` are the options of tokenizing that the sidecar records. `counted_tokens` count in the loss, None without a mask.
    """

    dataset: Dataset
    shape: Shape
    shortest: int
    longest: int
    histogram: list[Bin]
    first_texts: list[Text] | None
    undecoded: str | None
    options: dict[str, Any]
    counted_tokens: int | None = None

    def to_record(self) -> dict[str, Any]:
        """What `--json` prints."""
        record = manifest.record_of(self.dataset)
        return record | {
            "kind": "statistics",
            "sequences": self.shape.sequences,
            "size_bytes": self.shape.size_bytes,
            "document_tokens": {
                "shortest": self.shortest,
                "mean": self.shape.tokens / max(self.shape.documents, 1),
                "longest": self.longest,
                "histogram": [dataclasses.asdict(bin) for bin in self.histogram],
            },
            "first_texts": self.first_texts,
            "options": self.options,
            **({} if self.counted_tokens is None else {"counted_tokens": self.counted_tokens}),
        }

    def lines(self) -> list[str]:
        """What people read."""
        dataset, shape = self.dataset, self.shape
        identity = dataset.tokenizer
        identity_text = f"{identity.name}, sha256 {identity.sha256[:12]}..., {identity.path}" if identity else "not known"
        vocabulary = f"{dataset.vocab_size:,} entries, end of document {dataset.eod}" if dataset.vocab_size else "not known"
        removed = ", ".join(f"{count:,} {kind}" for kind, count in (dataset.removed or {}).items())
        lines = [
            dataset.prefix,
            f"  documents   {shape.documents:,}",
            f"  sequences   {shape.sequences:,}",
            f"  tokens      {shape.tokens:,} ({shape.dtype}, {shape.size_bytes / 1e6:,.1f} MB)",
            *([] if self.counted_tokens is None else [self._mask_line(self.counted_tokens)]),
            f"  tokenizer   {identity_text}",
            f"  vocabulary  {vocabulary}",
            *([f"  options     {', '.join(options)}"] if (options := list(self._named_options())) else []),
            f"  length      {self.shortest:,} to {self.longest:,} tokens a document, "
            f"mean {shape.tokens / max(shape.documents, 1):,.1f}",
            *([f"  removed     {removed}"] if removed else []),
            "",
            "  tokens a document          documents        tokens",
        ]
        most = max((bin.documents for bin in self.histogram), default=1)
        for bin in self.histogram:
            bar = "#" * round(BAR_CHARACTERS * bin.documents / most)
            span = f"{bin.shortest:,}" if bin.longest == bin.shortest else f"{bin.shortest:,} to {bin.longest:,}"
            lines.append(f"  {span:<24} {bin.documents:>11,} {bin.tokens:>13,}  {bar}".rstrip())
        lines.append("")
        if self.undecoded:
            lines.append(f"  no text: {self.undecoded}")
        for number, text in enumerate(self.first_texts or []):
            shown = " ".join((text if isinstance(text, str) else " ".join(text)).split())
            ending = "..." if len(shown) > SHOWN_CHARACTERS else ""
            lines.append(f"  document {number}: {shown[:SHOWN_CHARACTERS]}{ending}")
        return lines

    def _mask_line(self, counted_tokens: int) -> str:
        return f"  loss mask   {counted_tokens:,} tokens count ({counted_tokens / max(self.shape.tokens, 1):.1%})"

    def _named_options(self) -> Iterator[str]:
        """The options that change documents and are not at their defaults."""
        for name, value in self.options.items():
            if name in _DOCUMENT_OPTIONS and value not in (None, False):
                yield name if value is True else f"{name} {json.dumps(value, ensure_ascii=False)}"


def read(source: Dataset, tokenizer: Path | None, first_documents: int) -> Statistics:
    """Raises as `source_datasets.measured`; a tokenizer that is given and does not fit is an error, one that is gone is not."""
    dataset, shape = source_datasets.measured(source)
    documents, tokens = np.zeros(BINS, np.int64), np.zeros(BINS, np.int64)
    shortest, longest = np.iinfo(np.int64).max, 0
    with BlockReader(dataset.prefix) as reader:
        for block in reader.blocks():
            lengths = np.diff(block.bounds)
            # frexp gives the exact number of binary digits up to 2^53.
            bins = np.frexp(lengths.astype(np.float64))[1]
            documents += np.bincount(bins, minlength=BINS)
            tokens += np.bincount(bins, weights=lengths, minlength=BINS).astype(np.int64)
            shortest, longest = min(shortest, int(lengths.min())), max(longest, int(lengths.max()))
    histogram = [
        Bin(1 << (number - 1) if number else 0, (1 << number) - 1, int(documents[number]), int(tokens[number]))
        for number in range(BINS)
        if documents[number]
    ]
    options = provenance.tokenizing_options(dataset.prefix)
    first_texts, undecoded = _first_texts(dataset, tokenizer, min(first_documents, shape.documents))
    counted_tokens = _counted_tokens(dataset.prefix) if dataset.loss_mask else None
    return Statistics(dataset, shape, min(shortest, longest), longest, histogram, first_texts, undecoded, options, counted_tokens)


def _counted_tokens(prefix: str) -> int:
    with BlockReader(indexed_dataset.mask_prefix(prefix)) as reader:
        return sum(int(np.count_nonzero(reader.read(block))) for block in reader.blocks(TOKENS_AT_ONCE))


def _first_texts(dataset: Dataset, tokenizer: Path | None, count: int) -> tuple[list[Text] | None, str | None]:
    try:
        return list(decoding.texts(dataset, tokenizer, 0, count)), None
    except (NoInput, BadData) as error:
        if tokenizer is not None:
            raise
        return None, str(error)
