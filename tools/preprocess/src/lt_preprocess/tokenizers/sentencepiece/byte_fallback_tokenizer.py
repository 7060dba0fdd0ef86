"""A `tokenizer.json` that was made from a SentencePiece model: the same ids as Hugging Face's library, from compiled code."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lt_preprocess.tokenizers.base import Encoder, Ids, Tokenizer
from lt_preprocess.tokenizers.vocabulary import Vocabulary
from lt_shared.console import BadData
from lt_shared.tokenizers.sentencepiece_proto import SPACE

if TYPE_CHECKING:
    from lt_preprocess.tokenizers.sentencepiece.piece_tables import Tables


class ByteFallbackBpe(Tokenizer):
    """A vocabulary with the pattern BYTE_FALLBACK. Added tokens are for its layers to find."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocab_size = vocabulary.vocab_size
        self.eod = vocabulary.eod
        self.special_tokens = {token.content: token.id for token in vocabulary.added_tokens if token.is_special}
        self._vocabulary = vocabulary
        self._added = {token.id: token.content.encode() for token in vocabulary.added_tokens}
        self._bytes = {number: bytes([byte]) for byte, number in enumerate(vocabulary.byte_ids.tolist()) if number >= 0}
        self._tables: Tables | None = None

    def new_encoder(self) -> Encoder:
        """Call from one thread: the first call builds the tables and compiles, and tells the user when that takes time."""
        from lt_preprocess.tokenizers.sentencepiece import piece_encoder, piece_tables

        is_first = self._tables is None
        if self._tables is None:
            self._tables = piece_tables.of_merges(self._vocabulary)
        encoder = piece_encoder.ByteFallbackEncoder(self._tables, self._vocabulary.space_prefix)
        if is_first:
            piece_encoder.compile_for(encoder)
        return encoder

    def decode(self, ids: Sequence[int] | Ids) -> bytes:
        try:
            text = b"".join(map(self._surface, np.asarray(ids).tolist()))
        except KeyError as error:
            raise BadData(f"token id {error} is not in the vocabulary of {self.vocab_size:,}") from None
        return text.removeprefix(b" ") if self._vocabulary.strips_prefix else text

    def _surface(self, number: int) -> bytes:
        """Return the text of a token, as bytes."""
        if number in self._bytes:
            return self._bytes[number]
        content = self._added.get(number) or self._vocabulary.tokens[number]
        return content.replace(SPACE.encode(), b" ")
