"""A SentencePiece model as the `tokenizer.json` of the same tokenizer.

transformers does this itself when sentencepiece and protobuf are installed; made here, the result loads without either. The file
is a protobuf of three known messages, so the few fields that matter are read directly.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lt_shared.console import BadData

SPACE = "\u2581"

UNIGRAM, BPE = 1, 2
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read(path: Path) -> Any:
    """The `tokenizers.Tokenizer` that encodes like the model. Raises BadData for a damaged file or a model type without one."""
    from tokenizers import AddedToken, Tokenizer, processors

    try:
        fields = list(_fields(path.read_bytes()))
        pieces = [_piece(value) for number, value in fields if number == 1]
        trainer = dict(_fields(b"".join(value for number, value in fields if number == 2)))
        normalizer = dict(_fields(b"".join(value for number, value in fields if number == 3)))
    except (AttributeError, IndexError, TypeError, ValueError, KeyError, struct.error) as error:
        raise BadData(f"{path}: not a SentencePiece model: {error}") from None
    model_type = trainer.get(3, UNIGRAM)
    if model_type not in (UNIGRAM, BPE) or not pieces:
        raise BadData(f"{path}: a SentencePiece model of type {model_type}, only unigram and BPE are known here")
    unknown = next((index for index, (_, _, kind) in enumerate(pieces) if kind == UNKNOWN), None)
    tokenizer = Tokenizer(_model(pieces, model_type == BPE, unknown, bool(trainer.get(35, 0))))
    tokenizer.normalizer = _normalizer(normalizer)
    tokenizer.decoder = _decoder(bool(normalizer.get(3, 1)))
    for piece, _, kind in pieces:
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            tokenizer.add_tokens([AddedToken(piece, normalized=False, special=kind != USER_DEFINED)])
    begin = trainer.get(41, 1)
    if begin < len(pieces):
        token = pieces[begin][0]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{token} $A", pair=f"{token} $A {token}:1 $B:1", special_tokens=[(token, begin)]
        )
    return tokenizer


def _model(pieces: list[tuple[str, float, int]], bpe: bool, unknown: int | None, byte_fallback: bool) -> Any:
    from tokenizers import models

    if not bpe:
        return models.Unigram([(piece, score) for piece, score, _ in pieces], unknown, byte_fallback)
    ids = {piece: index for index, (piece, _, _) in enumerate(pieces)}
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, score, _ in pieces:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                merges.append((-score, ids[left], ids[right], left, right))
    return models.BPE(
        vocab=ids,
        merges=[(left, right) for *_, left, right in sorted(merges)],
        unk_token=pieces[unknown][0] if unknown is not None else None,
        fuse_unk=True,
        byte_fallback=byte_fallback,
    )


def _normalizer(spec: dict[int, Any]) -> Any:
    from tokenizers import Regex, normalizers

    steps: list[Any] = []
    if spec.get(2):
        steps.append(normalizers.Precompiled(spec[2]))
    if spec.get(4, 1):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.get(3, 1):
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    return normalizers.Sequence(steps)


def _decoder(prefixed: bool) -> Any:
    from tokenizers import decoders

    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)


def _piece(message: bytes) -> tuple[str, float, int]:
    """Text, score and type of a piece."""
    fields = dict(_fields(message))
    return fields[1].decode("utf-8"), struct.unpack("<f", fields.get(2, bytes(4)))[0], fields.get(3, 1)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and values of a protobuf message: integers for varints, bytes for everything else."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, position = _varint(message, position)
            yield number, value
            continue
        if wire_type == _BYTES:
            length, position = _varint(message, position)
        elif wire_type in (_FIXED64, _FIXED32):
            length = 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire_type} at byte {position}")
        if position + length > len(message):
            raise ValueError("cut off")
        yield number, message[position : position + length]
        position += length


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
