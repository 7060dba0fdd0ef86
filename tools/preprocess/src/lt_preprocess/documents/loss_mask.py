"""Which tokens of a text count in the loss: those that overlap a part of it that counts.

A tokenizer gives no offsets. The bytes of tokens, back to back, are the text for almost all tokenizers and texts, so the offsets
are sums of lengths. Otherwise (a space before the text, white space that a special token takes, Unicode normalization) the bytes
are looked for in the text, and for what is still unknown, the text up to a bound is encoded by itself.
"""

import dataclasses
from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from lt_preprocess.documents.assembly import Documents
from lt_preprocess.documents.document_form import DocumentForm
from lt_preprocess.readers.batch import Column
from lt_preprocess.texts import Lengths, Texts
from lt_preprocess.tokenizers.base import Encoder, Ids, Tokenizer

Mask = npt.NDArray[np.int32]

_UNKNOWN = -1


class TokenBytes:
    """The bytes of each token, decoded at its first use."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._special_tokens = {number: text.encode() for text, number in tokenizer.special_tokens.items()}
        self._lengths = np.full(tokenizer.vocab_size, _UNKNOWN, np.int64)
        self._bytes: dict[int, bytes] = {}
        # Decoders leave out the space before the first token of a text.
        self._before: list[int] | None = None

    def lengths(self, ids: Ids) -> Lengths:
        """The lengths of tokens in bytes, int64 like `ids` [tokens]."""
        lengths = self._lengths[ids]
        for number in np.unique(ids[lengths == _UNKNOWN]).tolist():
            self._lengths[number] = len(self.of(number))
        return self._lengths[ids]

    def of(self, number: int) -> bytes:
        content = self._bytes.get(number)
        if content is None:
            content = self._bytes[number] = self._special_tokens.get(number) or self._decoded(number)
        return content

    def _decoded(self, number: int) -> bytes:
        if self._before is None:
            self._before = self._visible_token()
        before = self._tokenizer.decode(self._before)
        return self._tokenizer.decode([*self._before, number])[len(before) :]

    def _visible_token(self) -> list[int]:
        """A token that decodes to a text in front of others."""
        for number in range(self._tokenizer.vocab_size):
            if number not in self._special_tokens and self._tokenizer.decode([number, number]).strip():
                return [number]
        return []


@dataclasses.dataclass(frozen=True)
class LossMask:
    """Makes the mask of documents: of the same lengths, 1 for each token that counts in the loss, 0 for others."""

    form: DocumentForm
    token_bytes: TokenBytes

    @classmethod
    def beside(cls, tokens: DocumentForm, token_bytes: TokenBytes) -> Self:
        """The mask of documents of the form `tokens`."""
        bos, eod = (None if number is None else 0 for number in (tokens.bos, tokens.eod))
        return cls(DocumentForm(np.dtype(np.uint8), bos, eod, tokens.most_tokens), token_bytes)

    def assemble(
        self,
        column: Column,
        counted: Sequence[npt.NDArray[np.int64]],
        ids: Ids,
        text_lengths: Lengths,
        encoder: Encoder,
    ) -> Documents:
        """Make the mask of the documents that have one text each."""
        mask = of_texts(column.texts, counted, ids, text_lengths, self.token_bytes, encoder)
        documents, _ = self.form.assemble(mask, text_lengths, column.texts_per_document)
        if self.form.eod is not None:
            # The end of a document counts if the text before it does: the template has no token that ends a turn.
            ends = np.cumsum(documents.sequence_lengths, dtype=np.int64) - 1
            documents.tokens[ends] = documents.tokens[ends - 1]
        return documents


def of_texts(
    texts: Texts,
    counted: Sequence[npt.NDArray[np.int64]],
    ids: Ids,
    text_lengths: Lengths,
    token_bytes: TokenBytes,
    encoder: Encoder,
) -> Mask:
    """Return 1 for each token that counts and 0 for others, int32 like `ids` [tokens].

    `counted` has the bounds in bytes, int64 [parts, 2], for each text; `text_lengths` has the number of tokens of each text.
    """
    mask = np.zeros(len(ids), np.int32)
    ends = np.cumsum(token_bytes.lengths(ids))
    first = 0
    for text, (bounds, count) in enumerate(zip(counted, text_lengths.tolist(), strict=True)):
        last = first + count
        begin_bytes, end_bytes = texts.offsets[text : text + 2].tolist()
        before = int(ends[first - 1]) if first else 0
        if count and int(ends[last - 1]) - before == end_bytes - begin_bytes:
            token_ends = ends[first:last] - before
        else:
            content = texts.data[begin_bytes:end_bytes].tobytes()
            aligned = _aligned(content, ids[first:last], token_bytes)
            token_ends = _encoded_apart(content, bounds, ids[first:last], encoder) if aligned is None else aligned
        token_begins = np.append(0, token_ends[:-1])
        for begin, end in bounds.tolist():
            # A token that ends within the part, or begins in it.
            one, other = np.searchsorted(token_ends, begin, side="right"), np.searchsorted(token_begins, end, side="left")
            mask[first + one : first + other] = 1
        first = last
    return mask


def _aligned(content: bytes, ids: Ids, token_bytes: TokenBytes) -> Lengths | None:
    """Where each token ends in the text, if the tokens differ from the text in white space only; else None."""
    ends = np.empty(len(ids), np.int64)
    position = 0
    for place, number in enumerate(ids.tolist()):
        token = token_bytes.of(number)
        if not content.startswith(token, position):
            bare = token.lstrip(b" ")
            begin = position + len(content[position:]) - len(content[position:].lstrip())
            if content.startswith(bare, position):
                token = bare
            elif content.startswith(token, begin):
                position = begin
            elif content.startswith(bare, begin):
                position, token = begin, bare
            else:
                return None
        position += len(token)
        ends[place] = position
    return ends if not content[position:].strip() else None


def _encoded_apart(content: bytes, bounds: npt.NDArray[np.int64], ids: Ids, encoder: Encoder) -> Lengths:
    """Where tokens end, exact at the bounds only: tokens that the text up to a bound shares with the whole end before it."""
    ends = np.full(len(ids), len(content), np.int64)
    previous = 0
    for bound in bounds.ravel().tolist():
        prefix_ids, _ = encoder.encode(Texts.from_list([content[:bound]]))
        shared = min(len(prefix_ids), len(ids))
        differing = np.flatnonzero(prefix_ids[:shared] != ids[:shared])
        count = int(differing[0]) if len(differing) else shared
        ends[previous:count] = bound
        previous = max(previous, count)
    return ends
