"""How the texts of a document become a document of a dataset, or several."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.documents import assembly, splitting
from lt_preprocess.documents.assembly import Documents
from lt_preprocess.documents.fill_in_the_middle import FillInTheMiddle
from lt_preprocess.readers.batch import Column
from lt_preprocess.texts import Lengths, Texts
from lt_preprocess.tokenizers.base import Encoder, Ids
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

    def encode(self, texts: Texts, encoder: Encoder) -> tuple[Ids, Lengths]:
        """As `Encoder.encode`, with texts rearranged for infilling."""
        return encoder.encode(texts) if self.fim is None else self.fim.encode(texts, encoder)

    def assemble(self, ids: Ids, text_lengths: Lengths, texts_per_document: Lengths) -> Formed:
        """Make documents of the token ids of texts, and cut long ones."""
        sources = None
        if self.most_tokens is not None:
            text_lengths, texts_per_document, sources = splitting.cut(text_lengths, texts_per_document, self._capacity)
        return Formed(assembly.assemble(ids, text_lengths, texts_per_document, self.eod, self.dtype, self.bos), sources)

    def form(self, column: Column, encoder: Encoder) -> Formed:
        """Encode the texts of documents and assemble them."""
        return self.assemble(*self.encode(column.texts, encoder), column.texts_per_document)

    def prepare(self) -> None:
        """Compile the kernels, so that threads do not wait for each other."""
        assembly.prepare(self.dtype)
        if self.most_tokens is not None:
            splitting.cut(np.ones(1, np.int64), np.ones(1, np.int64), self._capacity)
