"""One interface to all kinds of tokenizer: texts in, ids out, an encoder for each thread."""

import abc
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.texts import Lengths, Texts

Ids = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

SpecialTokens = Literal["text", "parse", "reject"]


class ForbiddenToken(NamedTuple):
    """A special token spelled out in text number `text`, at byte `offset` of this text; `str()` leaves the text's number out."""

    text: int
    offset: int
    token: str

    def __str__(self) -> str:
        return f"special token {self.token} at byte {self.offset} of the text"


class Encoder(abc.ABC):
    """Encodes for one thread."""

    @abc.abstractmethod
    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        """Encode texts (valid UTF-8); return their ids back to back, and the number of ids per text."""

    def encode_parts(self, texts: Texts, begins_document: Flags) -> tuple[Ids, Lengths]:
        """As `encode`, for texts that are parts of documents: `begins_document` [texts] says which begin one.

        It matters only to a tokenizer that puts a space before documents.
        """
        return self.encode(texts)

    def forbidden(self, texts: Texts) -> list[ForbiddenToken]:
        """The first special token that each text spells out, in order; only of a tokenizer loaded with "reject"."""
        return []


class Tokenizer(abc.ABC):
    """A loaded tokenizer.

    `vocab_size` is the whole id space; `eod` the id that ends a document, None when it has none; `special_tokens` those that a
    document could spell out, with their ids.
    """

    vocab_size: int
    eod: int | None
    special_tokens: Mapping[str, int] = {}

    @abc.abstractmethod
    def new_encoder(self) -> Encoder:
        """An encoder for a thread of its own. The first call may compile for some seconds."""

    def uncompiled_encoder(self) -> Encoder | None:
        """Return an encoder with the same ids that needs no compiler, for a few texts: a library.

        None if the compiled code is in the cache, which is quicker, or if there is no such encoder.
        """
        return None

    def decode(self, ids: Sequence[int] | Ids) -> bytes:
        """The UTF-8 text of the ids; bytes, because ids may begin or end in the middle of a character. Compiles nothing.

        Raises BadData for an id that the tokenizer does not have.
        """
        raise NotImplementedError


class Wrapper(Tokenizer):
    """A tokenizer that changes how another one encodes, and nothing else about it."""

    def __init__(self, wrapped: Tokenizer):
        self.vocab_size, self.eod, self.special_tokens = wrapped.vocab_size, wrapped.eod, wrapped.special_tokens
        self._wrapped = wrapped

    def decode(self, ids: Sequence[int] | Ids) -> bytes:
        return self._wrapped.decode(ids)
