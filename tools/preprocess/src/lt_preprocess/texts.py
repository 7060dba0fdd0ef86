"""The container of documents that readers fill and tokenizers encode: UTF-8 texts back to back in one array."""

from collections.abc import Collection
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Lengths = npt.NDArray[np.int64]

PADDING_BYTES = 64
"""Bytes after the last text that compiled code may read; they are never part of a result."""


class Texts(NamedTuple):
    """UTF-8 texts back to back, as compiled code reads them.

    Text i is data[offsets[i]:offsets[i + 1]]; `data` uint8 [at least offsets[-1] + PADDING_BYTES], `offsets` int64 [texts + 1].
    """

    data: Bytes
    offsets: Lengths

    @classmethod
    def from_list(cls, texts: list[bytes]) -> Self:
        """Copy the texts into one array."""
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        data = np.zeros(int(offsets[-1]) + PADDING_BYTES, np.uint8)
        data[: offsets[-1]] = np.frombuffer(b"".join(texts), np.uint8)
        return cls(data, offsets)

    def to_list(self) -> list[bytes]:
        joined = self.data.tobytes()
        return [joined[start:end] for start, end in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True)]

    def without(self, indices: Collection[int]) -> Self:
        """Copy all texts except those at `indices`."""
        excluded = frozenset(indices)
        return self.from_list([text for number, text in enumerate(self.to_list()) if number not in excluded])
