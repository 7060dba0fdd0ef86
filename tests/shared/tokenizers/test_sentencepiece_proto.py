"""The reader gives what sentencepiece gives, for trained models and for models of random fields, and refuses what is damaged."""

import io
import struct
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_shared.console import BadData
from lt_shared.tokenizers import sentencepiece_proto
from lt_shared.tokenizers.sentencepiece_proto import BPE, BYTE, CONTROL, NORMAL, UNIGRAM, UNKNOWN, UNUSED, USER_DEFINED

SENTENCES = ["one two three four five", "six seven eight nine ten", "caf\xe9 \u4e2d\u6587 na\xefve"] * 20


def train(**options: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, minloglevel=3, hard_vocab_limit=False, **options
    )
    return model.getvalue()


def varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def field(number: int, value: bytes | int | float) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value & (1 << 64) - 1)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def piece(text: str, score: float, kind: int) -> bytes:
    return field(1, field(1, text.encode()) + field(2, score) + field(3, kind))


def parse(content: bytes, directory: Path) -> sentencepiece_proto.SentencePieceModel:
    path = directory / "tokenizer.model"
    path.write_bytes(content)
    return sentencepiece_proto.read(path)


def assert_same_pieces(model: sentencepiece_proto.SentencePieceModel, reference: Any) -> None:
    assert len(model.pieces) == reference.get_piece_size()
    types = {
        UNKNOWN: reference.is_unknown,
        CONTROL: reference.is_control,
        UNUSED: reference.is_unused,
        BYTE: reference.is_byte,
    }
    for number, found in enumerate(model.pieces):
        assert found.text == reference.id_to_piece(number)
        assert found.score == reference.get_score(number)
        assert {kind for kind, is_kind in types.items() if is_kind(number)} == {found.type} - {NORMAL, USER_DEFINED}


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize(
    "options",
    [
        {"byte_fallback": True, "vocab_size": 330, "user_defined_symbols": ["<mask>"]},
        {"vocab_size": 50, "bos_id": -1, "eos_id": -1, "add_dummy_prefix": False, "normalization_rule_name": "identity"},
        {"vocab_size": 50, "remove_extra_whitespaces": False, "treat_whitespace_as_suffix": True, "eos_piece": "<end>"},
        {"vocab_size": 50, "unk_surface": "?", "normalization_rule_name": "nmt_nfkc_cf", "pad_id": 3},
    ],
    ids=["bytes", "no-control", "suffix", "folding"],
)
def test_trained_models(model_type: str, options: dict[str, Any], tmp_path: Path) -> None:
    content = train(model_type=model_type, **options)
    reference: Any = sentencepiece.SentencePieceProcessor(model_proto=content)
    model = parse(content, tmp_path)
    assert_same_pieces(model, reference)
    assert model.model_type == {"bpe": BPE, "unigram": UNIGRAM}[model_type]
    assert (-1 if model.eos_id is None else model.eos_id) == reference.eos_id()
    assert model.bos_id == reference.bos_id()
    assert model.unk_surface == reference.decode([reference.unk_id()]).encode()
    assert model.byte_fallback == (reference.piece_to_id("<0x00>") != reference.unk_id())
    assert model.byte_ids == [
        number if reference.is_byte(number := reference.piece_to_id(f"<0x{byte:02X}>")) else -1 for byte in range(256)
    ]
    assert model.treat_whitespace_as_suffix == options.get("treat_whitespace_as_suffix", False)
    assert model.add_dummy_prefix == options.get("add_dummy_prefix", True)
    assert model.remove_extra_whitespaces == options.get("remove_extra_whitespaces", True)
    assert bool(model.precompiled_charsmap) == (options.get("normalization_rule_name") != "identity")
    assert (model.escape_whitespaces, model.denormalizer_charsmap) == (True, b"")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), unique=True, max_size=20),
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=20, max_size=20),
    st.lists(st.sampled_from([NORMAL, CONTROL, USER_DEFINED, UNUSED]), min_size=20, max_size=20),
    st.sampled_from([UNIGRAM, BPE]),
)
def test_random_pieces(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], scores: list[float], kinds: list[int], model_type: int
) -> None:
    rows = [
        ("<unk>", 0.0, UNKNOWN),
        ("\u2581", 0.0, NORMAL),
        *((text, score, kind) for text, score, kind in zip(texts, scores, kinds, strict=False)),
    ]
    rows = list({text: (text, score, kind) for text, score, kind in reversed(rows)}.values())
    content = b"".join(piece(*row) for row in rows) + field(2, field(3, model_type)) + field(3, field(1, b"identity"))
    reference: Any = sentencepiece.SentencePieceProcessor(model_proto=content)
    model = parse(content, tmp_path_factory.getbasetemp())
    assert_same_pieces(model, reference)
    assert model.pieces == rows
    assert model.model_type == model_type


def test_defaults_and_fields_of_any_wire_type(tmp_path: Path) -> None:
    """What is absent has the default of the definition; fields that are not known are skipped; the last of several counts."""
    unknown = varint(99 << 3 | 1) + bytes(8) + varint(98 << 3 | 5) + bytes(4) + field(97, b"x") + field(96, 1)
    model = parse(unknown + field(1, field(1, b"a")) + field(2, field(41, -1) + field(41, 7)) + field(2, field(41, -1)), tmp_path)
    assert model.pieces == [("a", 0.0, NORMAL)]
    assert (model.model_type, model.byte_fallback, model.treat_whitespace_as_suffix) == (UNIGRAM, False, False)
    assert (model.bos_id, model.eos_piece, model.eos_id, model.unk_surface) == (-1, "</s>", None, " \u2047 ".encode())
    assert (model.precompiled_charsmap, model.denormalizer_charsmap) == (b"", b"")
    assert (model.add_dummy_prefix, model.remove_extra_whitespaces, model.escape_whitespaces) == (True, True, True)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no pieces"),
        (field(2, field(3, BPE)), "no pieces"),
        (b"\n", "an integer is cut off"),
        (b"\n\xff", "an integer is cut off"),
        (b"\n" + b"\x80" * 1000, "more than 10 bytes"),
        (b"\n\x05ab", "field 1 is cut off"),
        (b"\r\x00\x00", "field 1 is cut off"),
        (b"\t\x00\x00\x00\x00", "field 1 is cut off"),
        (b"\x0b", "wire type 3"),
        (field(1, 7), "an integer where a message is expected"),
        (field(1, field(2, 1.0)), "a piece has no text"),
        (field(1, field(1, 1)), "field 1 is an integer"),
        (field(1, field(1, b"\xff")), "utf-8"),
        (field(1, field(1, b"a") + field(2, b"12345")), "5 bytes instead of 4"),
        (field(1, field(1, b"a") + field(3, b"\x01")), "field 3 is not an integer"),
        (piece("a", 0.0, NORMAL) + field(2, field(3, b"\x02")), "field 3 is not an integer"),
    ],
)
def test_what_is_damaged(content: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=f"tokenizer.model: not a SentencePiece model: .*{reason}"):
        parse(content, tmp_path)


MODEL = train(model_type="bpe", vocab_size=50)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=100), st.integers(0, len(MODEL)).map(lambda size: MODEL[:size])))
def test_anything_else_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    try:
        assert parse(content, tmp_path_factory.getbasetemp()).pieces
    except BadData as error:
        assert "not a SentencePiece model" in str(error)
