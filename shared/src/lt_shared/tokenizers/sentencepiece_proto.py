"""The fields of a SentencePiece model file that decide how text is encoded and decoded, read without the protobuf package.

The file is one protobuf message, `ModelProto`: the pieces, a `TrainerSpec`, a `NormalizerSpec` and a denormalizer of the same
type. Names are as in `sentencepiece_model.proto`, which also states the defaults of absent fields.
The sentencepiece package does not say how a model normalizes, and its generated module for the message needs protobuf.
"""

import dataclasses
import functools
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from lt_shared.console import BadData

SPACE = "\u2581"
"""What SentencePiece writes for a space."""

UNIGRAM, BPE = 1, 2
"""`TrainerSpec.ModelType`: the two that encode by pieces; 3 and 4 cut at words and at characters."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""`ModelProto.SentencePiece.Type`."""

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BITS = 70
_PIECES, _TRAINER, _NORMALIZER, _DENORMALIZER = 1, 2, 3, 5

Fields = dict[int, int | bytes]
Parsed = TypeVar("Parsed")


class Piece(NamedTuple):
    text: str
    score: float
    type: int


@dataclasses.dataclass(frozen=True)
class SentencePieceModel:
    """A model; the id of a piece is its index in `pieces`. `bos_id` is -1 in a model without one."""

    pieces: list[Piece]
    model_type: int
    byte_fallback: bool
    treat_whitespace_as_suffix: bool
    bos_id: int
    eos_piece: str
    unk_surface: bytes
    precompiled_charsmap: bytes
    denormalizer_charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool

    @functools.cached_property
    def byte_ids(self) -> list[int]:
        """The ids of the pieces <0x00> to <0xFF>, -1 for one that is not there."""
        ids = {piece.text: number for number, piece in enumerate(self.pieces) if piece.type == BYTE}
        return [ids.get(f"<0x{byte:02X}>", -1) for byte in range(256)]

    @property
    def eos_id(self) -> int | None:
        """The id of the control piece `eos_piece`, which ends a document; None when there is none."""
        for number, piece in enumerate(self.pieces):
            if piece.type == CONTROL and piece.text == self.eos_piece:
                return number
        return None


def read(path: Path) -> SentencePieceModel:
    """Raises BadData when the file is not a SentencePiece model, is truncated, or has no pieces."""
    return _parsed(path, _parse_model)


def read_model_type(path: Path) -> int:
    """The algorithm of a model, such as BPE; its pieces are not parsed. Raises BadData as `read`."""
    return _parsed(path, _parse_model_type)


def _parsed(path: Path, parse: Callable[[bytes], Parsed]) -> Parsed:
    try:
        return parse(path.read_bytes())
    except ValueError as error:
        raise BadData(f"{path}: not a SentencePiece model: {error}", "is the file truncated?") from None


def _parse_model_type(message: bytes) -> int:
    trainer: Fields = {}
    for number, value in _fields(message):
        if number == _TRAINER:
            trainer.update(_fields(value))
    return _model_type(trainer)


def _model_type(trainer: Fields) -> int:
    return _integer(trainer, 3, UNIGRAM)


def _parse_model(message: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    specs: dict[int, Fields] = {_TRAINER: {}, _NORMALIZER: {}, _DENORMALIZER: {}}
    for number, value in _fields(message):
        if number == _PIECES:
            pieces.append(_parse_piece(value))
        elif number in specs:
            specs[number].update(_fields(value))
    if not pieces:
        raise ValueError("it has no pieces")
    trainer, normalizer, denormalizer = specs[_TRAINER], specs[_NORMALIZER], specs[_DENORMALIZER]
    return SentencePieceModel(
        pieces=pieces,
        model_type=_model_type(trainer),
        byte_fallback=bool(_integer(trainer, 35, 0)),
        treat_whitespace_as_suffix=bool(_integer(trainer, 24, 0)),
        bos_id=_integer(trainer, 41, 1),
        eos_piece=_bytes(trainer, 47, b"</s>").decode(),
        unk_surface=_bytes(trainer, 44, " \u2047 ".encode()),
        precompiled_charsmap=_bytes(normalizer, 2, b""),
        denormalizer_charsmap=_bytes(denormalizer, 2, b""),
        add_dummy_prefix=bool(_integer(normalizer, 3, 1)),
        remove_extra_whitespaces=bool(_integer(normalizer, 4, 1)),
        escape_whitespaces=bool(_integer(normalizer, 5, 1)),
    )


def _parse_piece(message: int | bytes) -> Piece:
    fields = dict(_fields(message))
    if 1 not in fields:
        raise ValueError("a piece has no text")
    score = _bytes(fields, 2, bytes(4))
    if len(score) != 4:
        raise ValueError(f"the score of a piece has {len(score)} bytes instead of 4")
    return Piece(_bytes(fields, 1, b"").decode(), struct.unpack("<f", score)[0], _integer(fields, 3, NORMAL))


def _integer(fields: Fields, number: int, default: int) -> int:
    """An int32, an enum or a bool."""
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise ValueError(f"field {number} is not an integer")
    return value - (1 << 64) if value >= 1 << 63 else value


def _bytes(fields: Fields, number: int, default: bytes) -> bytes:
    value = fields.get(number, default)
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is an integer, not bytes")
    return value


def _fields(message: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a protobuf message: unsigned integers for varints, bytes for everything else."""
    if not isinstance(message, bytes):
        raise ValueError("an integer where a message is expected")
    offset = 0
    while offset < len(message):
        key, offset = _varint(message, offset)
        wire_type = key & 7
        if wire_type == _VARINT:
            value, offset = _varint(message, offset)
            yield key >> 3, value
            continue
        if wire_type == _LENGTH_DELIMITED:
            size, offset = _varint(message, offset)
        elif wire_type in _FIXED_BYTES:
            size = _FIXED_BYTES[wire_type]
        else:
            raise ValueError(f"wire type {wire_type} before byte {offset}")
        if offset + size > len(message):
            raise ValueError(f"field {key >> 3} is cut off")
        yield key >> 3, message[offset : offset + size]
        offset += size


def _varint(message: bytes, offset: int) -> tuple[int, int]:
    """The integer at `offset`, and the offset after it."""
    value = shift = 0
    while offset < len(message) and shift < _MAX_VARINT_BITS:
        byte = message[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset
    raise ValueError("an integer is cut off" if shift < _MAX_VARINT_BITS else "an integer has more than 10 bytes")
