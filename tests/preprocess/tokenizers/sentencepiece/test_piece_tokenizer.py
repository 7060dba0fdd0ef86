"""The compiled encoder gives the ids of sentencepiece, for Mistral's models, trained ones and models made of random pieces."""

import base64
import io
import random
import struct
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers.base import Encoder
from lt_preprocess.tokenizers.sentencepiece import piece_tokenizer
from lt_preprocess.tokenizers.vocabulary import Unrecognised
from lt_shared.console import BadData
from lt_shared.tokenizers.sentencepiece_proto import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED

MISTRAL = {
    "v1": "tokenizer.model.v1",
    "v2": "mistral_instruct_tokenizer_240216.model.v2",
    "v3": "mistral_instruct_tokenizer_240323.model.v3",
    "v7": "mistral_instruct_tokenizer_241114.model.v7",
}
TRAINED: dict[str, dict[str, Any]] = {
    "plain": {"byte_fallback": True, "split_digits": True, "remove_extra_whitespaces": False},
    "no-prefix": {"byte_fallback": True, "add_dummy_prefix": False, "remove_extra_whitespaces": False},
    "extra-whitespace": {"byte_fallback": True, "remove_extra_whitespaces": True},
    "extra-whitespace-no-prefix": {"add_dummy_prefix": False, "remove_extra_whitespaces": True},
    "unknown": {"character_coverage": 0.98, "remove_extra_whitespaces": False},
    "across-words": {"split_by_whitespace": False, "byte_fallback": True, "remove_extra_whitespaces": False},
    "across-scripts": {"split_by_unicode_script": False, "split_by_number": False, "remove_extra_whitespaces": False},
    "white-space-runs": {"allow_whitespace_only_pieces": True, "byte_fallback": True, "remove_extra_whitespaces": False},
    "user-defined": {
        "user_defined_symbols": ["[IMG]", "[IM", "<br>", "the", "thermal", "e", "\u4e2d", "x\u2581y", "\U0001f44d"],
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
    },
    "user-defined-spaces": {
        "user_defined_symbols": ["\u2581\u2581", "\u2581\u2581\u2581\u2581", "\n", "\n\n", "\u2581a\u2581"],
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
    },
}

# Every width of character and of white space, U+2581 and its neighbours, marks, joined emoji, NUL, what models define.
ADVERSARIAL = (
    "ab et12.,'\n\t\r \u2581\u2580\u2582\xa0\u3000\u200b\ufeff\ufffd\xe9e\u0301\u4e2d\u6587\u0939\u093f\U0001f44d\U0010ffff\x00[<"
)
pieces = st.sampled_from(
    [
        "\u4e2d\u6587" * 9,
        "a" * 70,
        "the ",
        "[IMG]",
        "[IM",
        "<br>",
        "thermal",
        "x y",
        "</s>",
        "<unk>",
        "<0x0A>",
        "    ",
        "\u2581\u2581",
        "\n\n",
        "a" * 70,
        "\u4e2d\u6587" * 9,
    ]
)
mixed_text = st.lists(st.one_of(pieces, st.text(ADVERSARIAL, max_size=40), st.text(max_size=40)), max_size=8).map("".join)

HARD_TEXTS = [
    "",
    " ",
    "  ",
    "\u2581",
    " \u2581 \u2581\u2581 a \u2581 ",
    "  a  b  ",
    "\0",
    "a\0b\0\0 \0",
    "\n\n\n",
    "\r\n\r\n x",
    " " * 200 + "x" + " " * 200,
    "</s> <s> <unk> <0x0A> [INST] [IMG] [IMG_BREAK]",
    "[IMG][IMG] [IMG [IM]",
    "e\u0301\u0301 \u212b \ufb01",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd",
    "\ufffd\ufeff\U0010ffff\ue000",
    "1234567890 \u0663\u0664 \xb2",
    "a" * 14,
    "a" * 15,
    "a" * 16,
    "a" * 48,
    "a" * 49,
    "a" * 63 + " " + "a" * 64 + " " + "a" * 65,
    "a" * 5000,
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0441\u043b\u043e\u0432\u043e \u65e5\u672c\u8a9e",
]


class Pair:
    """An encoder of this package and the processor that it must equal."""

    def __init__(self, model: bytes, path: Path):
        path.write_bytes(model)
        tokenizer = piece_tokenizer.recognise(path)
        self.tokenizer = tokenizer
        self.encoder: Encoder = tokenizer.new_encoder()
        self.reference: Any = sentencepiece.SentencePieceProcessor(model_proto=model)

    def check(self, texts: list[str]) -> None:
        ids, lengths = self.encoder.encode(Texts.from_list([text.encode() for text in texts]))
        assert int(lengths.sum()) == len(ids)
        for text, found in zip(texts, np.split(ids, np.cumsum(lengths))[:-1], strict=True):
            expected = self.reference.encode(text, out_type=int)
            assert found.tolist() == expected, text[:200]
            assert self.tokenizer.decode(found).decode() == self.reference.decode(expected), text[:200]


@pytest.fixture(scope="session")
def mistral_models() -> dict[str, bytes]:
    base = metadata.distribution("mistral-common")
    return {name: Path(str(base.locate_file(f"mistral_common/data/{file}"))).read_bytes() for name, file in MISTRAL.items()}


def train(texts: Iterable[str], **options: Any) -> bytes:
    model = io.BytesIO()
    settings = {"model_type": "bpe", "vocab_size": 900, "normalization_rule_name": "identity", "minloglevel": 2, **options}
    lines = (line for text in texts for line in text.split("\n"))
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=model, **settings)
    return model.getvalue()


@pytest.fixture(scope="session")
def training_texts(texts: list[str]) -> list[str]:
    return [
        *texts[:60],
        "\u4e2d\u6587\u6587\u4e2d \u65e5\u672c\u8a9e" * 3,
        "    return x\n\n        y  = 12",
        "na\xefve caf\xe9 e\u0301" * 3,
    ]


@pytest.fixture(scope="session", params=[*MISTRAL, *TRAINED])
def pair(
    request: pytest.FixtureRequest,
    mistral_models: dict[str, bytes],
    training_texts: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Pair:
    name = request.param
    model = mistral_models[name] if name in mistral_models else train(training_texts, **TRAINED[name])
    return Pair(model, tmp_path_factory.mktemp("model") / "tokenizer.model")


@pytest.fixture(scope="session")
def mistral(mistral_models: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(mistral_models["v1"], tmp_path_factory.mktemp("model") / "tokenizer.model")


def test_texts(pair: Pair, texts: list[str]) -> None:
    pair.check(HARD_TEXTS)
    pair.check(texts[:50])


@settings(max_examples=15, deadline=None)
@given(st.lists(mixed_text, max_size=4))
def test_any_texts(pair: Pair, documents: list[str]) -> None:
    pair.check(documents)


def test_every_piece_and_every_code_point(mistral: Pair) -> None:
    pieces = [mistral.reference.id_to_piece(number) for number in range(mistral.tokenizer.vocab_size)]
    points = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    mistral.check([*pieces, *(piece + other for piece, other in zip(pieces[::4], pieces[::-4], strict=True))])
    mistral.check([f"a{one} {one}{one}'{one}" for one in points[:0x1000] + points[0x1000::397]])


def encode_model(
    pieces: list[tuple[str, float, int]], prefix: bool, fallback: bool, removes: bool, kind: int = 2, **trainer: int
) -> bytes:
    """A model file of these pieces (text, score, type)."""

    def field(number: int, content: bytes | int) -> bytes:
        if isinstance(content, int):
            return varint(number << 3) + varint(content)
        return varint(number << 3 | 2) + varint(len(content)) + content

    def varint(value: int) -> bytes:
        return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)

    messages = [
        field(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score) + field(3, piece_kind)
        for text, score, piece_kind in pieces
    ]
    trainer_fields = field(3, kind) + field(35, fallback) + b"".join(field(int(n[1:]), v) for n, v in trainer.items())
    normalizer = field(1, b"identity") + field(3, prefix) + field(4, removes)
    return b"".join(field(1, message) for message in messages) + field(2, trainer_fields) + field(3, normalizer)


def special_pieces(fallback: bool) -> list[tuple[str, float, int]]:
    byte_pieces = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)] if fallback else []
    return [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL), *byte_pieces]


random_text = st.text("ab\u2581\xe9\u4e2d", min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(random_text, st.integers(-6, 0)), unique_by=lambda piece: piece[0], max_size=40),
    st.lists(st.text("ab\xe9\u4e2d", min_size=1, max_size=3), unique=True, max_size=2),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.lists(st.text("ab \u2581\xe9\u4e2dc\0", max_size=80), max_size=4),
    st.text("ab", min_size=60, max_size=200),
)
def test_random_pieces(
    tmp_path_factory: pytest.TempPathFactory,
    scored: list[tuple[str, int]],
    user_defined: list[str],
    flags: tuple[bool, bool, bool],
    texts: list[str],
    long_word: str,
) -> None:
    """Equal scores, pieces that no merge makes, characters that are no pieces though parts of some, long words."""
    prefix, fallback, removes = flags
    normal = [(text, float(score), NORMAL) for text, score in scored if text not in user_defined and text != "\u2581"]
    made = [*special_pieces(fallback), ("\u2581", -3.0, NORMAL), *normal, *((text, 0.0, USER_DEFINED) for text in user_defined)]
    pair = Pair(encode_model(made, prefix, fallback, removes), tmp_path_factory.getbasetemp() / "random.model")
    pair.check([*texts, long_word])


def test_equal_scores_in_long_words(tmp_path: Path) -> None:
    """Of equal scores the leftmost merges first, also when it became possible later than others."""
    numbers = random.Random(1)
    for _ in range(30):
        texts = {"".join(numbers.choices("ab", k=numbers.randint(1, 6))) for _ in range(numbers.randint(3, 30))}
        normal = [(text, float(numbers.randint(-2, 0)), NORMAL) for text in sorted(texts)]
        made = [*special_pieces(True), ("\u2581", -3.0, NORMAL), *normal]
        words = ["".join(numbers.choices("ab", k=numbers.randint(20, 300))) for _ in range(5)]
        Pair(encode_model(made, False, True, False), tmp_path / "tokenizer.model").check(words)


def test_more_words_than_the_caches_hold(mistral: Pair) -> None:
    numbers = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(numbers.choices(letters, k=3)) for _ in range(200)]
    short = " ".join("".join(numbers.sample(words, 2)) for _ in range(100_000))
    long = " ".join("".join(numbers.sample(words, 8)) for _ in range(18_000))
    expected = mistral.reference.encode(short) + mistral.reference.encode(long)
    for _ in range(2):
        ids, _ = mistral.encoder.encode(Texts.from_list([short.encode(), long.encode()]))
        assert ids.tolist() == expected


def test_words_that_differ_in_nul_bytes_only(pair: Pair) -> None:
    pair.check(["".join(f"{chr(0) * length}a" for length in range(20)) * 2])


def test_no_texts(mistral: Pair) -> None:
    for documents in ([], ["", ""]):
        ids, lengths = mistral.encoder.encode(Texts.from_list([text.encode() for text in documents]))
        assert (ids.tolist(), lengths.tolist()) == ([], [0] * len(documents))


@pytest.mark.parametrize(
    "word",
    [
        "a" * 400_000,
        "ab" * 200_000,
        " " * 400_000,
        "=" * 400_000,
        "\u4e2d" * 130_000,
        "\u0430\u0431" * 100_000,
        base64.b64encode(random.Random(0).randbytes(300_000)).decode(),
    ],
    ids=lambda word: ascii(word[:2]),
)
def test_very_long_words_take_no_quadratic_time(mistral: Pair, word: str) -> None:
    start = time.thread_time()
    ids, _ = mistral.encoder.encode(Texts.from_list([word.encode()]))
    assert time.thread_time() - start < 3
    assert ids.tolist() == mistral.reference.encode(word, out_type=int)


def test_encoders_share_nothing_that_changes(mistral: Pair, texts: list[str]) -> None:
    documents = Texts.from_list([text.encode() for text in texts[:50]])
    first, second = mistral.tokenizer.new_encoder(), mistral.tokenizer.new_encoder()
    ids, _ = first.encode(documents)
    again, _ = second.encode(documents)
    second.encode(Texts.from_list([b"other words" * 100]))
    assert ids.tolist() == again.tolist() == mistral.encoder.encode(documents)[0].tolist()


def test_properties(mistral: Pair) -> None:
    assert (mistral.tokenizer.vocab_size, mistral.tokenizer.eod) == (32000, 2)
    assert mistral.tokenizer.special_tokens == {"<s>": 1, "</s>": 2}


def test_decode_keeps_parts_of_characters(mistral: Pair) -> None:
    ids, _ = mistral.encoder.encode(Texts.from_list(["a\U0010ffff".encode()]))
    assert len(ids) == 5
    assert mistral.tokenizer.decode(ids[:3]) == b"a\xf4\x8f"
    assert mistral.tokenizer.decode(ids[3:]) == b"\xbf\xbf"


@pytest.mark.parametrize("ids", [[5, 32000], [-1]])
def test_decode_of_an_unknown_id(mistral: Pair, ids: list[int]) -> None:
    with pytest.raises(BadData, match=f"token id {ids[-1]} "):
        mistral.tokenizer.decode(ids)


def change(normal: list[tuple[str, float, int]], **options: Any) -> bytes:
    arguments: dict[str, Any] = {"prefix": True, "fallback": True, "removes": False, **options}
    pieces = [*special_pieces(arguments["fallback"]), ("\u2581", -1.0, NORMAL), *normal]
    return encode_model(pieces, **arguments)


LEFT_TO_THE_LIBRARY: dict[str, Callable[[list[str]], bytes]] = {
    "not BPE": lambda texts: train(texts, model_type="unigram", vocab_size=400, hard_vocab_limit=False),
    "normalizes": lambda texts: train(texts, normalization_rule_name="nmt_nfkc"),
    "end of words": lambda texts: train(texts, treat_whitespace_as_suffix=True),
    "unused": lambda _: change([("a", -1.0, NORMAL), ("ab", -2.0, UNUSED)]),
    "one character": lambda _: change([("a", -1.0, NORMAL), ("b", 0.0, CONTROL)]),
    "same text": lambda _: change([("ab", -1.0, NORMAL), ("ab", 0.0, CONTROL)]),
    "begins with the space": lambda _: change([("\u2581a", 0.0, USER_DEFINED)]),
    "has a space": lambda _: change([("a b", 0.0, USER_DEFINED)]),
    "no piece for a space": lambda _: encode_model([*special_pieces(True), ("a", 0.0, NORMAL)], True, True, False),
    "not one unknown": lambda _: encode_model(special_pieces(True)[1:], True, True, False),
    "no piece for some byte": lambda _: encode_model([*special_pieces(True)[:-1], ("\u2581", 0.0, NORMAL)], True, True, False),
    "no numbers": lambda _: change([("a", float("nan"), NORMAL)]),
}


@pytest.mark.parametrize("reason", LEFT_TO_THE_LIBRARY)
def test_left_to_the_library(reason: str, training_texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(LEFT_TO_THE_LIBRARY[reason](training_texts))
    with pytest.raises(Unrecognised, match=reason):
        piece_tokenizer.recognise(tmp_path / "tokenizer.model")


@pytest.mark.parametrize("size", [0, 100_000, 7])
def test_a_file_that_is_no_model(size: int, mistral_models: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(mistral_models["v1"][:size])
    with pytest.raises(BadData, match=r"tokenizer\.model"):
        piece_tokenizer.recognise(tmp_path / "tokenizer.model")
