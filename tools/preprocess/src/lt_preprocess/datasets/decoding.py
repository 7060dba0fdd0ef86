"""Decode a dataset with the tokenizer that its sidecar names: its documents as JSON lines.

A document of several sequences becomes a list of texts, and the tokens of `--prepend-bos` and `--append-eod` are left out, so
that tokenizing the lines again gives the same dataset. Bytes that are not valid UTF-8, which only another tool's dataset can
hold, become U+FFFD.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lt_preprocess.datasets import provenance, source_datasets
from lt_preprocess.datasets.block_reader import BlockReader, Documents, bounds_of
from lt_preprocess.tokenizers import loading as tokenizers
from lt_preprocess.tokenizers.base import SpecialTokens, Tokenizer
from lt_shared.console import BadData, NoInput, UsageError
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset
from lt_shared.tokenizers import tokenizer_files

TOKENS_AT_ONCE = 1 << 20


def load_tokenizer(dataset: Dataset, tokenizer_path: Path | None, special_tokens: SpecialTokens = "text") -> Tokenizer:
    """Load the tokenizer that made the dataset, from `tokenizer_path` or else from the path in the dataset's manifest.

    Raises: NoInput if no path is known or the tokenizer is gone, BadData if its hash differs from the manifest's.
    """
    identity = dataset.tokenizer
    path = tokenizer_path or (Path(identity.path) if identity and identity.path else None)
    if path is None:
        raise NoInput(f"{dataset.prefix}: nothing says which tokenizer made it", "pass --tokenizer PATH")
    try:
        files = tokenizer_files.find(path) if identity is None else tokenizer_files.find_made_with(path, identity.sha256)
    except NoInput as error:
        raise NoInput(
            str(error), error.hint if tokenizer_path else "the tokenizer has been moved: pass --tokenizer PATH"
        ) from None
    if identity is not None and files.sha256() != identity.sha256:
        raise BadData(f"{path}: not the tokenizer that made {dataset.prefix} ({identity.name}, sha256 {identity.sha256[:12]}...)")
    loaded = tokenizers.load(files, special_tokens)
    # Another tool's dataset may use any integer type that is large enough: IndexedDatasetBuilder writes int32 by default.
    if identity is None and dataset.dtype is not None and not _holds(dataset.dtype, loaded.vocab_size):
        raise BadData(
            f"{path}: {dataset.prefix} holds {dataset.dtype}, too small for the {loaded.vocab_size:,} entries of this tokenizer",
            "name the tokenizer that made the dataset",
        )
    return loaded


def _holds(dtype: str, vocab_size: int) -> bool:
    """Whether a token type has a value for every id of a vocabulary."""
    kind = np.dtype(dtype)
    return kind.kind in "iu" and vocab_size - 1 <= np.iinfo(kind).max


def end_of_document(dataset: Dataset, tokenizer: Tokenizer) -> int | None:
    """The token that the dataset was made with, which need not be the tokenizer's own."""
    return tokenizer.eod if dataset.eod is None else dataset.eod


Text = str | list[str]


def texts(dataset: Dataset, tokenizer: Path | None = None, first: int = 0, last: int | None = None) -> Iterator[Text]:
    """Decode the documents from number `first` up to `last` into a text or texts.

    Raises: BadData for a dataset or a token that is malformed, and as `load_tokenizer`.
    """
    loaded = load_tokenizer(dataset, tokenizer)
    options = provenance.tokenizing_options(dataset.prefix)
    eod = end_of_document(dataset, loaded) if options.get("append_eod", True) else None
    with BlockReader(dataset.prefix) as reader:
        for block in reader.blocks(TOKENS_AT_ONCE, first, last):
            documents = reader.read_documents(block)
            _check_ids(documents.tokens, loaded.vocab_size, f"{dataset.prefix}, documents from {block.first_document}")
            for sequences in _sequences(documents):
                yield text_of(sequences, loaded, eod, options.get("bos"))


def records(source: str, tokenizer: Path | None, documents: str | None) -> Iterator[dict[str, Text]]:
    """Yield a JSON line per document; `documents` is a number or a range START:END, from 0; either end may be missing.

    Raises: UsageError for a malformed range or a range beyond the end, and as `source_datasets.single` and `texts`.
    """
    dataset, shape = source_datasets.single(source)
    first, last = parse_range(documents, shape.documents)
    key = str(provenance.tokenizing_options(dataset.prefix).get("json_key", "text"))
    if dataset.loss_mask:
        yield from _conversations(dataset, tokenizer, first, last, key)
        return
    for text in texts(dataset, tokenizer, first, last):
        yield {key: text}


def _conversations(dataset: Dataset, tokenizer: Path | None, first: int, last: int, key: str) -> Iterator[dict[str, Text]]:
    """Yield the text of each document, and the texts of its parts that count in the loss."""
    loaded = load_tokenizer(dataset, tokenizer, "parse")
    with BlockReader(dataset.prefix) as reader, BlockReader(indexed_dataset.mask_prefix(dataset.prefix)) as mask_reader:
        blocks = reader.blocks(TOKENS_AT_ONCE, first, last), mask_reader.blocks(TOKENS_AT_ONCE, first, last)
        for block, mask_block in zip(*blocks, strict=True):
            documents, masks = reader.read_documents(block), mask_reader.read_documents(mask_block)
            _check_ids(documents.tokens, loaded.vocab_size, f"{dataset.prefix}, documents from {block.first_document}")
            for start, end in itertools.pairwise(documents.bounds.tolist()):
                tokens, edges = documents.tokens[start:end], np.flatnonzero(np.diff(masks.tokens[start:end], prepend=0, append=0))
                counted = [tokens[begin:stop] for begin, stop in edges.reshape(-1, 2).tolist()]
                texts_of_parts = [loaded.decode(part.tolist()).decode("utf-8", "replace") for part in counted]
                yield {key: loaded.decode(tokens.tolist()).decode("utf-8", "replace"), "counted": texts_of_parts}


def parse_range(text: str | None, count: int) -> tuple[int, int]:
    if text is None:
        return 0, count
    if (match := re.fullmatch(r"(\d*)(:?)(\d*)", text)) is None or not text:
        raise UsageError(f"--documents {text}: not a number or a range START:END", "for example --documents 0:10")
    start, colon, end = match.groups()
    first = int(start or 0)
    last = int(end or count) if colon else first + 1
    if not first <= last <= count:
        raise UsageError(f"--documents {text}: there are {count:,} documents", "they are numbered from 0")
    return first, last


def _sequences(documents: Documents) -> Iterator[list[npt.NDArray[np.generic]]]:
    """Yield the sequences of every document."""
    bounds = bounds_of(documents.sequence_lengths).tolist()
    all_sequences = (documents.tokens[start:end] for start, end in itertools.pairwise(bounds))
    for count in documents.sequences_per_document.tolist():
        yield list(itertools.islice(all_sequences, count))


def _check_ids(tokens: npt.NDArray[np.generic], vocab_size: int, source: str) -> None:
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        wrong = int(tokens.min()) if int(tokens.min()) < 0 else int(tokens.max())
        raise BadData(f"{source}: token {wrong} is not one of the tokenizer's {vocab_size:,}", "is it this tokenizer's dataset?")


def text_of(sequences: list[npt.NDArray[np.generic]], tokenizer: Tokenizer, eod: int | None, bos: int | None = None) -> Text:
    """The text of a document, without the tokens `bos` and `eod` around it; a list when it has several sequences."""
    if sequences and len(sequences[0]) and sequences[0][0] == bos:
        sequences = [sequences[0][1:], *sequences[1:]]
    if sequences and len(sequences[-1]) and sequences[-1][-1] == eod:
        sequences = [*sequences[:-1], sequences[-1][:-1]]
    texts_of_document = [tokenizer.decode(sequence.tolist()).decode("utf-8", "replace") for sequence in sequences]
    return texts_of_document if len(texts_of_document) > 1 else "".join(texts_of_document)
