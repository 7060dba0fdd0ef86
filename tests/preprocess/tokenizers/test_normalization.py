"""Texts reach the encoder in the normal form C that Hugging Face's library gives them."""

import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from lt_preprocess.texts import Lengths, Texts
from lt_preprocess.tokenizers import normalization
from lt_preprocess.tokenizers.base import Encoder, Ids, Tokenizer
from lt_preprocess.tokenizers.normalization import MAY_COMPOSE, UNCERTAIN, Normalizing, NormalizingEncoder

LIBRARY = normalizers.NFC()
POINTS = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
TABLES = normalization.tables()
CLASSES = TABLES.classes
MOVABLE = [chr(point) for point in POINTS if CLASSES[point] and point < 0x20000]
marks = st.text(
    st.one_of(st.sampled_from(MOVABLE), st.sampled_from("aeo\u05d0\u0905\u1100\uac00\U0001d158"), st.characters(codec="utf-8")),
    max_size=5,
)


class Recording(Encoder, Tokenizer):
    """Keeps the texts that it is given."""

    vocab_size, eod = 1, None

    def new_encoder(self) -> "Recording":
        return self

    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        self.texts = [text.decode() for text in texts.to_list()]
        return texts.offsets[:0].astype("int32"), texts.offsets[1:] * 0


def normalized(documents: list[str]) -> list[str]:
    recording = Recording()
    Normalizing(recording).new_encoder().encode(Texts.from_list([document.encode() for document in documents]))
    return recording.texts


@settings(max_examples=200, deadline=None)
@given(st.lists(marks, max_size=6))
def test_any_texts(documents: list[str]) -> None:
    assert normalized(documents) == [LIBRARY.normalize_str(document) for document in documents]


def test_every_character_after_and_before_a_mark() -> None:
    documents = [f"{chr(point)}\u0345{chr(point)}e{chr(point)}\u0301" for point in POINTS if point < 0x3400 or point % 97 == 0]
    assert normalized(documents) == [LIBRARY.normalize_str(document) for document in documents]


def test_characters_that_are_not_looked_at_never_change() -> None:
    for point in POINTS:
        if CLASSES[point] != UNCERTAIN:
            assert LIBRARY.normalize_str(chr(point)) == chr(point)
            assert CLASSES[point] in (0, MAY_COMPOSE, unicodedata.combining(chr(point)))


def test_every_pair_of_a_mark_and_what_is_before_it() -> None:
    """Also where a mark stands between, after many marks, and at the start of a text."""
    seconds = [chr(point) for point in POINTS if CLASSES[point] == MAY_COMPOSE]
    firsts = {chr(pair >> 21) for pair in TABLES.pairs.tolist()} | {*"b\xe9\u0915\u4e2d\U0001f468", *seconds}
    documents = [
        "".join(f"{first}{between}{second} " for first in sorted(firsts)) for second in seconds for between in ("", "\u0334")
    ]
    documents += [f"{first}{chr(0x0334) * count}{second}" for first in "ao\u09c7" for second in seconds for count in (15, 16, 17)]
    documents += [f"{second}{other}" for second in seconds for other in seconds]
    assert normalized(documents) == [LIBRARY.normalize_str(document) for document in documents]


def test_a_text_in_normal_form_is_passed_on_as_it_is() -> None:
    class Refusing:
        def normalize_str(self, text: str) -> str:
            raise AssertionError(f"asked to normalize {text!r}")

    text = (
        "caf\xe9 \u0939\u093f\u0928\u094d\u0926\u0940 \uc548\ub155 \u65e5\u672c\u8a9e "
        "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0645\u064e\u0651 "
        "\u09ac\u09be\u0982\u09b2\u09be \u0ba4\u0bbe\u0bae\u0bc8 \u0430\u0301"
    )
    given_texts = Texts.from_list([text.encode(), b"", b"plain"])
    recording = Recording()
    NormalizingEncoder(recording, TABLES, Refusing()).encode(given_texts)
    assert recording.texts == [text, "", "plain"]
