"""SentencePiece BPE: the same ids as sentencepiece's `EncodeAsIds`, from compiled code.

The encoder does not know control symbols: `</s>` in a text is four ordinary characters. U+2581 in a text is a space, as in
sentencepiece. `recognise` leaves some models to the library: models that are not BPE, that normalize characters (nmt_nfkc and
others), do not write spaces as U+2581, put white space at the end of words, have unused pieces (sentencepiece splits these again
by the last such merge in the whole sentence, so no part of a text could be encoded alone), or have two pieces with equal text.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lt_preprocess.tokenizers.base import Encoder, Ids, Tokenizer
from lt_preprocess.tokenizers.vocabulary import MOST_PIECES, Unrecognised
from lt_shared.console import BadData
from lt_shared.tokenizers import sentencepiece_proto
from lt_shared.tokenizers.sentencepiece_proto import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SentencePieceModel,
)

if TYPE_CHECKING:
    from lt_preprocess.tokenizers.sentencepiece.piece_tables import Tables


class SentencePieceBpe(Tokenizer):
    """A compiled tokenizer for a model without obstacles."""

    def __init__(self, model: SentencePieceModel):
        self.vocab_size = len(model.pieces)
        self.eod = model.eos_id
        self.special_tokens = {piece.text: number for number, piece in enumerate(model.pieces) if piece.type == CONTROL}
        self._model = model
        self._surfaces = [_surface(model, number) for number in range(len(model.pieces))]
        self._tables: Tables | None = None

    def new_encoder(self) -> Encoder:
        """Call from one thread: the first call builds the tables and compiles, and tells the user when that takes time."""
        from lt_preprocess.tokenizers.sentencepiece import piece_encoder, piece_tables

        is_first = self._tables is None
        if self._tables is None:
            self._tables = piece_tables.build(self._model)
        model = self._model
        encoder = piece_encoder.SentencePieceBpeEncoder(self._tables, model.add_dummy_prefix, model.remove_extra_whitespaces)
        if is_first:
            piece_encoder.compile_for(encoder)
        return encoder

    def decode(self, ids: Sequence[int] | Ids) -> bytes:
        """Decode as sentencepiece does, but keep bytes that are no UTF-8 unchanged."""
        numbers = np.asarray(ids, np.int64).tolist()
        if numbers and not 0 <= min(numbers) <= max(numbers) < self.vocab_size:
            number = next(number for number in numbers if not 0 <= number < self.vocab_size)
            raise BadData(f"token id {number} is not in the vocabulary of {self.vocab_size:,}")
        parts = [self._surfaces[number] for number in numbers]
        if self._model.add_dummy_prefix or self._model.remove_extra_whitespaces:
            self._strip_prefix(numbers, parts)
        return b"".join(parts)

    def _strip_prefix(self, numbers: list[int], parts: list[bytes]) -> None:
        """Take the space of the dummy prefix from the first part that has text."""
        for index, number in enumerate(numbers):
            piece = self._model.pieces[number]
            if piece.type in (NORMAL, USER_DEFINED) and piece.text.startswith(SPACE):
                parts[index] = parts[index][1:]
                if not self._model.remove_extra_whitespaces:
                    return
            if parts[index]:
                return


def _surface(model: SentencePieceModel, number: int) -> bytes:
    """Return the text of a piece, as bytes."""
    piece = model.pieces[number]
    if piece.type == CONTROL:
        return b""
    if piece.type == UNKNOWN:
        return model.unk_surface
    if piece.type == BYTE:
        return bytes([model.byte_ids.index(number)])
    return piece.text.replace(SPACE, " ").encode()


def recognise(path: Path) -> SentencePieceBpe:
    """The tokenizer of a model file. Raises Unrecognised with the reason to leave it to the library, BadData for no model."""
    model = sentencepiece_proto.read(path)
    for reason, applies in _obstacles(model).items():
        if applies:
            raise Unrecognised(reason)
    return SentencePieceBpe(model)


def _obstacles(model: SentencePieceModel) -> dict[str, bool]:
    """Reasons, and whether they apply."""
    kinds = [piece.type for piece in model.pieces]
    texts = [piece.text for piece in model.pieces]
    reserved = {piece.text for piece in model.pieces if piece.type in (UNKNOWN, CONTROL, BYTE)}
    user_defined = [piece.text for piece in model.pieces if piece.type == USER_DEFINED]
    return {
        "its model is not BPE": model.model_type != BPE,
        "it normalizes characters": bool(model.precompiled_charsmap or model.denormalizer_charsmap),
        "it keeps spaces as they are": not model.escape_whitespaces,
        "it puts white space at the end of words": model.treat_whitespace_as_suffix,
        "it has unused pieces": UNUSED in kinds,
        "it has pieces of an unknown type": not {*kinds} <= {NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE},
        "it has not one unknown piece": kinds.count(UNKNOWN) != 1,
        "it has no piece for a space": not any(p.text == SPACE and p.type in (NORMAL, USER_DEFINED) for p in model.pieces),
        "several of its pieces have the same text": len({*texts}) < len(texts),
        "a special token of it is one character": any(len(text) < 2 for text in reserved),
        "it has no piece for some byte": model.byte_fallback and -1 in model.byte_ids,
        "it has bytes among its pieces, but does not use them": not model.byte_fallback and BYTE in kinds,
        "a user-defined piece has a space or NUL in it": any(" " in text or "\0" in text for text in user_defined),
        "a user-defined piece begins with the space that it puts before texts": model.add_dummy_prefix
        and any(text.startswith(SPACE) for text in user_defined),
        "it has scores that are no numbers": any(math.isnan(piece.score) for piece in model.pieces),
        "it has too many pieces": len(texts) > MOST_PIECES,
    }
