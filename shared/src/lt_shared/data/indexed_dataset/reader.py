"""Read a dataset through memory maps. It checks the sizes of the .bin and the .idx; Megatron's reader does not."""

import os
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from lt_shared.console import BadData, NoInput, suggestions
from lt_shared.data.indexed_dataset.layout import DTYPE_CODES, HEADER, MAGIC, VERSION, bin_path, idx_path
from lt_shared.data.indexed_dataset.remote_bin import RemoteBin, RemoteTokens, record_path
from lt_shared.files import storage
from lt_shared.files.mapping import mapped

CHECKED_AT_ONCE = 1 << 20


class Reader:
    """A dataset opened for reading; the arrays are memory maps.

    Attributes: `dtype`; `tokens` [T]; `sequence_lengths` int32 [S]; `sequence_offsets` int64 [S], in bytes;
    `document_indices` int64 [D + 1].

    `thorough` checks that every sequence starts where the one before it ends, which takes 2 s for 100 million sequences; without
    it only the two files' sizes are checked. With `remote` the .bin may be an object on a store (`remote_bin`), and then
    `tokens` are RemoteTokens, which support only a part of NumPy's array interface.

    Raises: NoInput when a file is missing, BadData when the pair is malformed or truncated.
    """

    def __init__(self, prefix: str, thorough: bool = True, remote: bool = False):
        storage.require_local(prefix, "reading a dataset through memory maps")
        index = idx_path(prefix)
        self.remote = RemoteBin.of(prefix) if remote else None
        for path in (index, *(() if self.remote else (bin_path(prefix),))):
            if not os.path.isfile(path):
                raise NoInput(f"{path}: no such file", hint_for_missing(prefix))
        with storage.open_read(index) as file:
            header = file.read(HEADER.size)
        if len(header) < HEADER.size or header[: len(MAGIC)] != MAGIC:
            raise BadData(f"{index}: not an index of a Megatron dataset")
        _, version, code, sequences, document_entries = HEADER.unpack(header)
        if version != VERSION or code not in DTYPE_CODES:
            raise BadData(f"{index}: version {version} with dtype code {code} is not known")
        if document_entries == 0:
            raise BadData(f"{index}: its document index is empty")
        self.dtype = np.dtype(DTYPE_CODES[code])
        expected = HEADER.size + 12 * sequences + 8 * document_entries
        actual = os.path.getsize(index)
        if actual not in (expected, expected + sequences):
            raise BadData(f"{index}: {actual} bytes, its header says {expected}", "the file is truncated: write it again")
        columns = mapped(index)
        start = HEADER.size
        self.sequence_lengths = columns[start : start + 4 * sequences].view(np.int32)
        start += 4 * sequences
        self.sequence_offsets = columns[start : start + 8 * sequences].view(np.int64)
        start += 8 * sequences
        self.document_indices = columns[start : start + 8 * document_entries].view(np.int64)
        if thorough:
            self._check_documents(index, sequences)
        expected_size = self._checked_bin_size(index) if thorough else self._bin_size()
        if self.remote:
            _check_size(self.remote.url, self.remote.size_bytes, expected_size)
            # Whoever asks for `remote` uses no more of an array than that.
            self.tokens: npt.NDArray[np.generic] = cast(Any, RemoteTokens(self.remote, self.dtype))
            return
        with storage.reading(bin_path(prefix)):
            content = mapped(bin_path(prefix))
        _check_size(bin_path(prefix), len(content), expected_size)
        self.tokens = content.view(self.dtype)

    def _check_documents(self, index: str, sequences: int) -> None:
        documents = self.document_indices
        if not len(documents) or documents[0] != 0 or documents[-1] != sequences or bool((documents[1:] < documents[:-1]).any()):
            raise BadData(f"{index}: its document index does not fit its {sequences} sequences")

    def _checked_bin_size(self, index: str) -> int:
        """Bytes of the .bin, after checking in blocks of bounded memory that every sequence starts where the last one ends."""
        end = 0
        for start in range(0, len(self.sequence_lengths), CHECKED_AT_ONCE):
            sizes = self.sequence_lengths[start : start + CHECKED_AT_ONCE].astype(np.int64) * self.dtype.itemsize
            ends = end + np.cumsum(sizes)
            if bool((sizes < 0).any()) or not np.array_equal(
                ends - sizes, self.sequence_offsets[start : start + CHECKED_AT_ONCE]
            ):
                raise BadData(f"{index}: its sequence index is malformed")
            end = int(ends[-1])
        return end

    def _bin_size(self) -> int:
        """Bytes of the .bin according to the last entry of the index."""
        if not len(self.sequence_lengths):
            return 0
        return int(self.sequence_offsets[-1]) + int(self.sequence_lengths[-1]) * self.dtype.itemsize

    @property
    def documents(self) -> int:
        return len(self.document_indices) - 1

    def document(self, number: int) -> npt.NDArray[np.generic]:
        """Return one document's tokens, its sequences joined, shape [length]."""
        first, last = self.document_indices[number : number + 2]
        if first == last:
            return self.tokens[:0]
        start = self.sequence_offsets[first] // self.dtype.itemsize
        return self.tokens[start : start + int(self.sequence_lengths[first:last].sum())]


def _check_size(path: str, size: int, expected_size: int) -> None:
    if size != expected_size:
        raise BadData(f"{path}: {size} bytes, its index says {expected_size}", "the file is truncated: write it again")


def hint_for_missing(prefix: str) -> str:
    """The hint for a dataset without its .bin or .idx."""
    if prefix.endswith((".bin", ".idx")):
        return f"a prefix has no extension: {prefix[:-4]}"
    if os.path.isfile(record_path(prefix)):
        return f"its tokens are on a store, see {record_path(prefix)}: copy the dataset from there"
    if os.path.isfile(bin_path(prefix)):
        return "the dataset was not finished: run its lt-preprocess command again"
    if os.path.isfile(idx_path(f"{prefix}_text_document")):
        return f"did you mean {prefix}_text_document?"
    if os.path.isfile(prefix):
        return f"that is no dataset; for text: lt-preprocess {prefix} --tokenizer TOKENIZER --append-eod -o PREFIX"
    alike = suggestions.nearest_file(idx_path(prefix))
    if alike is not None and alike.endswith(".idx"):
        return f"did you mean {alike.removesuffix('.idx')}?"
    return "a dataset is PREFIX.bin and PREFIX.idx"
