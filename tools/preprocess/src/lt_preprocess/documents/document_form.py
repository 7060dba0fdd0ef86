"""How the texts of a document become a document of a dataset, or several."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.documents import assembly, splitting
from lt_preprocess.documents.assembly import Documents
from lt_preprocess.documents.fill_in_the_middle import FillInTheMiddle
from lt_preprocess.readers.batch import Column
from lt_preprocess.tokenizers.base import Encoder
from lt_shared.console import UsageError


class Formed(NamedTuple):
    """`documents`, and the number of the document in the input that each was cut from, int64; None if none was cut."""

    documents: Documents
    sources: npt.NDArray[np.int64] | None


@dataclasses.dataclass(frozen=True)
class DocumentForm:
    """`bos` begins and `eod` ends each document. None has more than `most_tokens` tokens, these two included."""

    dtype: np.dtype[Any]
    bos: int | None = None
    eod: int | None = None
    most_tokens: int | None = None
    fim: FillInTheMiddle | None = None

    def __post_init__(self) -> None:
        if self.most_tokens is not None and self._capacity < 1:
            raise UsageError(f"--max-document-tokens {self.most_tokens}: leaves no place for text beside the tokens around it")

    @property
    def _capacity(self) -> int:
        assert self.most_tokens is not None
        return self.most_tokens - (self.bos is not None) - (self.eod is not None)

    def form(self, column: Column, encoder: Encoder) -> Formed:
        """Encode the texts of documents and assemble them."""
        texts, texts_per_document = column
        ids, text_lengths = encoder.encode(texts) if self.fim is None else self.fim.encode(texts, encoder)
        sources = None
        if self.most_tokens is not None:
            text_lengths, texts_per_document, sources = splitting.cut(text_lengths, texts_per_document, self._capacity)
        documents = assembly.assemble(ids, text_lengths, texts_per_document, self.eod, self.dtype, self.bos)
        return Formed(documents, sources)

    def prepare(self) -> None:
        """Compile the kernels, so that threads do not wait for each other."""
        assembly.prepare(self.dtype)
        if self.most_tokens is not None:
            splitting.cut(np.ones(1, np.int64), np.ones(1, np.int64), self._capacity)
