"""A dataset as a Python sequence, for notebooks and scripts: `with open(prefix) as dataset: dataset[-1]`.

Nothing is read before it is asked for, and nothing is copied: an array is a view of the memory map.
"""

import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

from lt_shared.data.indexed_dataset.reader import Reader

Tokens = npt.NDArray[np.generic]


class TokenArrays:
    """Token arrays by number. `[i]` returns an array, counted from the end if negative; `[i:j:k]` returns a list of arrays.

    Arrays are read-only, with shape [tokens] and the dataset's dtype. A number out of range raises IndexError.
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def _array(self, number: int) -> Tokens:
        """Return the array with a number from 0."""
        raise NotImplementedError

    @overload
    def __getitem__(self, chosen: int) -> Tokens: ...

    @overload
    def __getitem__(self, chosen: slice) -> list[Tokens]: ...

    def __getitem__(self, chosen: int | slice) -> Tokens | list[Tokens]:
        numbers = range(len(self))
        if isinstance(chosen, slice):
            return [self._array(number) for number in numbers[chosen]]
        try:
            return self._array(numbers[chosen])
        except IndexError:
            raise IndexError(f"number {chosen} of {len(self):,}") from None

    def __iter__(self) -> Iterator[Tokens]:
        return (self._array(number) for number in range(len(self)))


class IndexedDataset(TokenArrays):
    """The sequences of a dataset; most have one sequence a document. A context manager, and usable from several threads.

    Attributes: `prefix`, absolute; `dtype`, uint16 or int32 for tokens; `tokens`, back to back, shape
    [total tokens]; `sequence_lengths`, int32 [sequences]; `documents`, the documents as arrays, their sequences joined. After
    `close()` they raise ValueError, but arrays that were taken before stay valid.
    """

    def __init__(self, prefix: str | os.PathLike[str]):
        self.prefix = os.path.abspath(path) if "://" not in (path := os.fspath(prefix)) else path
        self._open: Reader | None = Reader(path)
        self.dtype: np.dtype[Any] = self._open.dtype

    @property
    def _reader(self) -> Reader:
        if self._open is None:
            raise ValueError(f"{self.prefix}: the dataset is closed")
        return self._open

    @property
    def tokens(self) -> Tokens:
        return self._reader.tokens.view(np.ndarray)

    @property
    def sequence_lengths(self) -> npt.NDArray[np.int32]:
        return self._reader.sequence_lengths.view(np.ndarray)

    @property
    def documents(self) -> TokenArrays:
        return _Documents(self._reader)

    def __len__(self) -> int:
        return len(self._reader.sequence_lengths)

    def _array(self, number: int) -> Tokens:
        reader = self._reader
        start = int(reader.sequence_offsets[number]) // reader.dtype.itemsize
        return reader.tokens[start : start + int(reader.sequence_lengths[number])].view(np.ndarray)

    def close(self) -> None:
        """Close the memory maps once no array refers to them."""
        self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._open is None else f"{len(self):,} sequences, {len(self.tokens):,} tokens, {self.dtype}"
        return f"<IndexedDataset {self.prefix}: {state}>"


class _Documents(TokenArrays):
    def __init__(self, reader: Reader):
        self._reader = reader

    def __len__(self) -> int:
        return self._reader.documents

    def _array(self, number: int) -> Tokens:
        return self._reader.document(number).view(np.ndarray)


def open(prefix: str | os.PathLike[str]) -> IndexedDataset:
    """Open the dataset `PREFIX.bin` and `PREFIX.idx`, which must be local.

    The whole index is checked, 2 s for 100 million sequences. Raises NoInput when a file is missing, BadData when the pair is
    malformed or truncated, BadConfig for a URL: memory maps need local files.
    """
    return IndexedDataset(prefix)
