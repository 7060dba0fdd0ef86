"""The loss mask beside a dataset of conversations: which of its tokens count in the loss.

It is an indexed dataset of its own, `PREFIX.loss_mask.bin` and `PREFIX.loss_mask.idx`, with a byte for each token of
`PREFIX.bin`: 1 for a token that counts, 0 for others. Documents and sequences have the same lengths as the dataset's. The mask is
published first, so a dataset that says that it has a mask never lies there without it.
"""

import numpy as np

from lt_shared.console import BadData
from lt_shared.data.indexed_dataset.layout import bin_path, idx_path
from lt_shared.data.indexed_dataset.reader import Reader
from lt_shared.files import storage

MASK_SUFFIX = ".loss_mask"
MASK_DTYPE = np.dtype(np.uint8)


def mask_prefix(prefix: str) -> str:
    """Return the prefix of the mask beside the dataset at `prefix`."""
    return f"{prefix}{MASK_SUFFIX}"


def is_mask(prefix: str) -> bool:
    """Whether a prefix is that of a mask."""
    return prefix.endswith(MASK_SUFFIX)


def has_mask(prefix: str) -> bool:
    """Whether a mask lies beside the dataset at `prefix`."""
    return storage.exists(idx_path(mask_prefix(prefix)))


def open_mask(prefix: str, dataset: Reader) -> Reader:
    """Open the mask beside `dataset`, the dataset at `prefix`.

    Raises: NoInput if it is missing, BadData if it is malformed or belongs to other documents.
    """
    mask = Reader(mask_prefix(prefix), thorough=False)
    if mask.dtype != MASK_DTYPE:
        raise BadData(f"{idx_path(mask_prefix(prefix))}: its dtype is {mask.dtype}, that of a loss mask is {MASK_DTYPE}")
    if not np.array_equal(mask.sequence_lengths, dataset.sequence_lengths):
        raise BadData(
            f"{bin_path(mask_prefix(prefix))}: is not the loss mask of its dataset: its documents have other lengths",
            "make both again with one lt-preprocess command",
        )
    return mask
