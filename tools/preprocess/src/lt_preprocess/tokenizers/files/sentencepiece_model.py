"""What a SentencePiece model file says, read without sentencepiece's generated code (which needs the protobuf package).

The file is one protobuf message: pieces (text, score, type), the trainer's settings and the normaliser's. The few fields that say
how text is encoded and decoded are read here; a field that is absent has the default of SentencePiece's definition.
"""

import dataclasses
import functools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lt_shared.console import BadData

SPACE = "\u2581"
"""What SentencePiece writes for a space."""

UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PIECES, _TRAINER, _NORMALIZER, _DENORMALIZER = 1, 2, 3, 5


class Piece(NamedTuple):
    text: str
    score: float
    kind: int


@dataclasses.dataclass(frozen=True)
class Model:
    """A model; a piece's id is its place in `pieces`."""

    pieces: list[Piece]
    kind: int
    byte_fallback: bool
    whitespace_as_suffix: bool
    eos_piece: str
    unknown_surface: bytes
    normalizes: bool
    denormalizes: bool
    dummy_prefix: bool
    removes_extra_whitespaces: bool
    escapes_whitespaces: bool

    @functools.cached_property
    def byte_ids(self) -> list[int]:
        """The ids of the pieces <0x00> to <0xFF>, -1 for one that is not there."""
        found = {piece.text: number for number, piece in enumerate(self.pieces) if piece.kind == BYTE}
        return [found.get(f"<0x{byte:02X}>", -1) for byte in range(256)]

    @property
    def eos(self) -> int | None:
        """The id that ends a document: of the control symbol that the model names for it."""
        for number, piece in enumerate(self.pieces):
            if piece.kind == CONTROL and piece.text == self.eos_piece:
                return number
        return None


def read(path: Path) -> Model:
    """Raises BadData when the file is not a SentencePiece model or is cut off."""
    try:
        model = _model(path.read_bytes())
    except (AttributeError, LookupError, TypeError, ValueError, struct.error):
        model = None
    if model is None or not model.pieces:
        raise BadData(f"{path}: not a SentencePiece model", "is the file truncated?")
    return model


def _model(content: bytes) -> Model:
    pieces: list[Piece] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    denormalizer: dict[int, Any] = {}
    for number, value in _fields(content):
        if number == _PIECES:
            pieces.append(_piece(value))
        elif number in (_TRAINER, _NORMALIZER, _DENORMALIZER):
            {_TRAINER: trainer, _NORMALIZER: normalizer, _DENORMALIZER: denormalizer}[number].update(_fields(value))
    return Model(
        pieces=pieces,
        kind=trainer.get(3, UNIGRAM),
        byte_fallback=bool(trainer.get(35, 0)),
        whitespace_as_suffix=bool(trainer.get(24, 0)),
        eos_piece=trainer.get(47, b"</s>").decode(),
        unknown_surface=trainer.get(44, " \u2047 ".encode()),
        normalizes=bool(normalizer.get(2)),
        denormalizes=bool(denormalizer.get(2)),
        dummy_prefix=bool(normalizer.get(3, 1)),
        removes_extra_whitespaces=bool(normalizer.get(4, 1)),
        escapes_whitespaces=bool(normalizer.get(5, 1)),
    )


def _piece(message: bytes) -> Piece:
    fields = dict(_fields(message))
    return Piece(fields[1].decode(), struct.unpack("<f", fields.get(2, bytes(4)))[0], fields.get(3, NORMAL))


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and values of a protobuf message: integers for varints, bytes for everything else."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire_type = key & 7
        if wire_type == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if wire_type == _BYTES:
            size, at = _varint(message, at)
        elif wire_type in (_FIXED64, _FIXED32):
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire_type}")
        if at + size > len(message):
            raise ValueError("cut off")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The integer at `at`, and the place after it."""
    value, shift = 0, 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
