"""Read and write documents together with their loss mask, so that no command can part them.

A token and its mask are one record of a structured array: whatever moves tokens moves the mask. A dataset without a mask has
plain tokens.
"""

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from lt_preprocess.datasets import provenance
from lt_preprocess.datasets.block_reader import BlockReader, Documents, Tokens
from lt_preprocess.datasets.provenance import Derivation
from lt_shared.console import BadData
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset
from lt_shared.data.document_origins.origins import Origins
from lt_shared.files import storage

_TOKEN, _MASK = "token", "mask"


def token_ids(tokens: Tokens) -> npt.NDArray[np.integer[Any]]:
    """The token ids of documents, contiguous."""
    return np.ascontiguousarray(_field(tokens, _TOKEN) if tokens.dtype.names else tokens)


def _field(records: Tokens, name: str) -> npt.NDArray[Any]:
    column: npt.NDArray[Any] = cast(Any, records)[name]
    return column


def check_mask(prefix: str) -> None:
    """Check that the mask beside the dataset at `prefix` has documents of the same lengths.

    Raises: NoInput when the mask is missing, BadData when it is malformed or belongs to other documents.
    """
    mask_prefix = indexed_dataset.mask_prefix(prefix)
    with BlockReader(prefix) as tokens, BlockReader(mask_prefix) as mask:
        if not _has_same_lengths(tokens, mask):
            raise BadData(
                f"{indexed_dataset.bin_path(mask_prefix)}: is not the loss mask of {prefix}: its documents have other lengths",
                "make both again",
            )


def _has_same_lengths(tokens: BlockReader, mask: BlockReader) -> bool:
    if mask.dtype != indexed_dataset.MASK_DTYPE or mask.shape[:3] != tokens.shape[:3]:
        return False
    return all(
        np.array_equal(block.sequence_lengths, mask_block.sequence_lengths)
        and np.array_equal(block.sequences_per_document, mask_block.sequences_per_document)
        for block, mask_block in zip(tokens.blocks(), mask.blocks(), strict=True)
    )


class MaskedReader:
    """Opens a dataset, and the mask beside it if it has one; a context manager.

    `dtype` is the dtype of the documents' tokens, `size_bytes` their size with the mask. Raises: NoInput when a file is missing,
    BadData when one is malformed, here or while documents are read, or if the mask has other documents.
    """

    def __init__(self, dataset: Dataset):
        with contextlib.ExitStack() as stack:
            self._tokens = stack.enter_context(BlockReader(dataset.prefix))
            self._mask: BlockReader | None = None
            self.dtype = self._tokens.dtype
            if dataset.loss_mask:
                check_mask(dataset.prefix)
                self._mask = stack.enter_context(BlockReader(indexed_dataset.mask_prefix(dataset.prefix)))
                self.dtype = np.dtype([(_TOKEN, self._tokens.dtype), (_MASK, self._mask.dtype)])
            self.size_bytes = self._tokens.tokens * self.dtype.itemsize
            self._stack = stack.pop_all()

    def whole(self, tokens_at_once: int) -> Iterator[Documents]:
        """As `BlockReader.whole`, with the mask in the array of the tokens."""
        if self._mask is None:
            yield from self._tokens.whole(tokens_at_once)
            return
        for documents, mask in zip(self._tokens.whole(tokens_at_once), self._mask.whole(tokens_at_once), strict=True):
            joined = np.empty(len(documents.tokens), self.dtype)
            joined[_TOKEN], joined[_MASK] = documents.tokens, mask.tokens
            yield documents._replace(tokens=cast(Tokens, joined))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()


class MaskedWriter:
    """Writes `dataset`, and its mask if it has one; a context manager. Without `publish` no file appears."""

    def __init__(self, dataset: Dataset, dtype: np.dtype[Any]):
        self._dataset = dataset
        self._writer = indexed_dataset.Writer(dataset.prefix, dtype)
        self._mask: indexed_dataset.Writer | None = None
        if dataset.loss_mask:
            self._mask = indexed_dataset.Writer(indexed_dataset.mask_prefix(dataset.prefix), indexed_dataset.MASK_DTYPE)

    @property
    def documents(self) -> int:
        return self._writer.documents

    @property
    def tokens(self) -> int:
        return self._writer.tokens

    @property
    def writers(self) -> list[indexed_dataset.Writer]:
        """The writer of the tokens, and that of the mask if there is one."""
        return [self._writer, *([self._mask] if self._mask else [])]

    def append(
        self,
        tokens: npt.NDArray[np.generic],
        sequence_lengths: npt.NDArray[np.integer[Any]],
        sequences_per_document: npt.NDArray[np.integer[Any]],
    ) -> None:
        """As `indexed_dataset.Writer.append`, with tokens as `MaskedReader` yields them."""
        self._writer.append(token_ids(tokens), sequence_lengths, sequences_per_document)
        if self._mask is not None:
            self._mask.append(np.ascontiguousarray(_field(tokens, _MASK)), sequence_lengths, sequences_per_document)

    def publish(
        self,
        dataset: Dataset,
        derivation: Derivation,
        options: dict[str, Any],
        files: list[dict[str, Any]] | None = None,
        documents: Origins | None = None,
    ) -> None:
        """Make both visible, the mask first; the arguments are those of `provenance.sidecar`."""
        if self._mask is not None:
            mask = Dataset(self._mask.prefix, self._mask.documents, self._mask.tokens, indexed_dataset.MASK_DTYPE.name)
            self._mask.publish(provenance.sidecar(mask, self._mask.complete(), derivation, {}))
        else:
            _remove_mask(dataset.prefix)
        self._writer.publish(provenance.sidecar(dataset, self._writer.complete(), derivation, options, files, documents))

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for writer in self.writers:
                stack.enter_context(writer)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)


def _remove_mask(prefix: str) -> None:
    """Delete the mask of an earlier dataset with this prefix, which would belong to other tokens."""
    mask = indexed_dataset.mask_prefix(prefix)
    if not storage.is_remote(prefix) and storage.exists(indexed_dataset.idx_path(mask)):
        for path in (indexed_dataset.idx_path(mask), indexed_dataset.bin_path(mask), f"{mask}.json"):
            storage.remove(path)
