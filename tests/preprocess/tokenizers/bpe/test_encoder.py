"""The compiled encoder gives the ids of tiktoken's `encode_ordinary`, for real and for random vocabularies and texts."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers import pattern_codes, vocabulary
from lt_preprocess.tokenizers.base import Encoder, Tokenizer
from lt_preprocess.tokenizers.bpe.encoder import ByteLevelBpe

PATTERNS = {
    pattern_codes.GPT2: r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    pattern_codes.LLAMA3: (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    pattern_codes.QWEN2: (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}

# Letters of the contractions with U+017F (which folds to s) and U+212A (to k), white space of every width and what only Python
# takes for white space, numbers, marks, joined emoji, NUL, the text of special tokens.
ADVERSARIAL = (
    "'stremvldSTREMVLD\u017f\u212a \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u2028\u3000\u200b1\u0663\xb2\u216b!<|>_"
    "\xe9e\u0301\u4e2d\u0939\u093f\U0001f468\u200d\U0001f4bb\U0001f44d\x00a"
)

adversarial_text = st.text(st.sampled_from(ADVERSARIAL), max_size=60)
any_text = st.text(max_size=60)
pieces = st.sampled_from(
    ["don't", "DON'T", "'\u017f", "\r\n\r\n", "   ", "\n \n", "<|endoftext|>", "</s>", "12345678", "\u65e5\u672c\u8a9e", "a" * 70]
)
mixed_text = st.lists(st.one_of(pieces, adversarial_text, any_text), max_size=8).map("".join)

HARD_TEXTS = [
    "",
    " ",
    "   ",
    "\n",
    "\0",
    "a\0b\0\0",
    "\0" * 15,
    "a" * 15,
    "a" * 16,
    "a" * 64,
    "a" * 65,
    " " * 64 + "x",
    "\t \u3000x",
    "\x1c\x1d\x1e\x1f \x85\xa0y",
    "don't I'LL we'Re 'S 's 'x '",
    "'\u017f '\u017f\u017f x'\u017f",
    "!!!\r\n\r\nx ...\n",
    "1 12 123 1234 \u0661\u0662\u0663\u0664 \xb2\xb3",
    "<|endoftext|><|begin_of_text|></s>",
    "\U0010ffff\ue000\ufeff\ufffd",
    "e\u0301\u0301\u0301 \u0915\u094d\u0937\u093f \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u0f40" * 200,
    "x" + "\u0301" * 300,
]


@pytest.fixture(scope="module")
def demo(demo_tokenizer: Path, load_tokenizer: Callable[[Path], Tokenizer]) -> Encoder:
    return load_tokenizer(demo_tokenizer).new_encoder()


def ids_of(encoder: Encoder, text: str) -> list[int]:
    return list(map(int, encoder.encode(Texts.from_list([text.encode()]))[0]))


def test_corpus(encoder_and_reference: tuple[Encoder, tiktoken.Encoding], texts: list[str]) -> None:
    encoder, reference = encoder_and_reference
    ids, lengths = encoder.encode(Texts.from_list([text.encode() for text in texts]))
    expected = [reference.encode_ordinary(text) for text in texts]
    assert lengths.tolist() == [len(document) for document in expected]
    assert ids.tolist() == [number for document in expected for number in document]


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_hard_texts(encoder_and_reference: tuple[Encoder, tiktoken.Encoding], text: str) -> None:
    encoder, reference = encoder_and_reference
    assert ids_of(encoder, text) == reference.encode_ordinary(text)


@settings(max_examples=80, deadline=None)
@given(st.lists(mixed_text, max_size=5))
def test_any_texts(encoder_and_reference: tuple[Encoder, tiktoken.Encoding], documents: list[str]) -> None:
    encoder, reference = encoder_and_reference
    ids, lengths = encoder.encode(Texts.from_list([document.encode() for document in documents]))
    assert [part.tolist() for part in np.split(ids, np.cumsum(lengths))[:-1]] == [
        reference.encode_ordinary(document) for document in documents
    ]
    assert int(lengths.sum()) == len(ids)


def test_every_token_and_every_code_point(encoder_and_reference: tuple[Encoder, tiktoken.Encoding]) -> None:
    """Some of Llama 3's tokens cannot be reached by merging; a piece that is a token stays whole."""
    encoder, reference = encoder_and_reference
    tokens = [reference.decode_single_token_bytes(number) for number in range(reference.max_token_value + 1) if number < 128000]
    words = [token.decode() for token in tokens if is_utf8(token)]
    points = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    characters = [f"a{one} {one}{one}'{one}" for one in points[:0x3000] + points[0x3000::397]]
    documents = words + characters
    ids, lengths = encoder.encode(Texts.from_list([document.encode() for document in documents]))
    expected = [reference.encode_ordinary(document) for document in documents]
    assert lengths.tolist() == [len(document) for document in expected]
    assert ids.tolist() == [number for document in expected for number in document]


def is_utf8(token: bytes) -> bool:
    try:
        token.decode()
    except UnicodeDecodeError:
        return False
    return True


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(list(PATTERNS)),
    st.randoms(use_true_random=False),
    st.lists(st.lists(st.sampled_from(b"ab '\n1"), min_size=2, max_size=6).map(bytes), unique=True, max_size=40),
    st.text(st.sampled_from("ab '\n1!S"), max_size=100),
    st.text(st.sampled_from("ab"), min_size=60, max_size=200),
)
def test_random_ranks(pattern: int, shuffler: random.Random, tokens: list[bytes], text: str, long_word: str) -> None:
    """Bytes in any order, tokens that no merge reaches, a word of more bytes than are scanned: still as tiktoken."""
    ranked = [bytes([byte]) for byte in range(256)]
    shuffler.shuffle(ranked)
    ranks = {token: rank for rank, token in enumerate([*ranked, *tokens])}
    reference = tiktoken.Encoding("random", pat_str=PATTERNS[pattern], mergeable_ranks=ranks, special_tokens={})
    encoder = ByteLevelBpe(vocabulary.from_ranks(ranks, pattern, special_tokens=0, eod=None)).new_encoder()
    assert ids_of(encoder, text) == reference.encode_ordinary(text)
    assert ids_of(encoder, long_word) == reference.encode_ordinary(long_word)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_boundary_shows(pattern: int) -> None:
    """With all short strings of a text as tokens, the ids tell where it was cut: real vocabularies hide most wrong cuts."""
    boundary_texts = [
        *HARD_TEXTS,
        "'\u017fa '\u017f\u017f 'Sa 'lla 'vea 'x\u017f",
        "a'\u212aa 'ta",
        "a1b22c333d4444",
        "\u3000a\u3000\n a\t!",
    ]
    parts = {
        text[start : start + size]
        for text in map(str.encode, boundary_texts)
        for start in range(min(len(text), 100))
        for size in range(2, 9)
    }
    tokens = sorted((part for part in parts if len(part) > 1), key=lambda part: (len(part), part))
    ranks = {token: rank for rank, token in enumerate([*(bytes([byte]) for byte in range(256)), *tokens])}
    reference = tiktoken.Encoding("boundaries", pat_str=PATTERNS[pattern], mergeable_ranks=ranks, special_tokens={})
    encoder = ByteLevelBpe(vocabulary.from_ranks(ranks, pattern, special_tokens=0, eod=None)).new_encoder()
    for text in boundary_texts:
        assert ids_of(encoder, text) == reference.encode_ordinary(text), text


@pytest.mark.parametrize(
    "word", ["a" * 100_000, "ab" * 50_000, "\u4e2d" * 40_000, " " * 100_000 + "x", "\n" * 100_000, "=" * 100_000]
)
def test_very_long_words_take_no_quadratic_time(encoder_and_reference: tuple[Encoder, tiktoken.Encoding], word: str) -> None:
    encoder, reference = encoder_and_reference
    start = time.process_time()
    ids = ids_of(encoder, word)
    seconds = time.process_time() - start
    assert reference.decode(ids) == word
    assert seconds < 10
    part = word[:3000] + word[-3000:]
    assert ids_of(encoder, part) == reference.encode_ordinary(part)


def test_more_words_than_the_cache_holds(demo: Encoder, demo_reference: tiktoken.Encoding) -> None:
    text = " ".join(f"w{number}x{number % 7}" for number in range(400_000))
    expected = demo_reference.encode_ordinary(text)
    assert ids_of(demo, text) == expected
    assert ids_of(demo, text) == expected


def test_words_of_every_length_twice(encoder_and_reference: tuple[Encoder, tiktoken.Encoding]) -> None:
    encoder, reference = encoder_and_reference
    draw = random.Random(7)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz\u4e2d", k=size)) for size in range(1, 300) for _ in range(3)]
    text = " ".join([*words, *words])
    assert ids_of(encoder, text) == reference.encode_ordinary(text)


def test_more_long_words_than_are_remembered(demo: Encoder, demo_reference: tiktoken.Encoding) -> None:
    """The arena is overwritten in a circle: what was there must not be taken for what is there.

    The known words are short ones of many ids, which are not compared again with what lies there.
    """
    draw = np.random.default_rng(7)
    known = " ".join(letters.tobytes().decode() for letters in draw.integers(97, 123, (2000, 12), np.uint8))
    expected = demo_reference.encode_ordinary(known)
    assert ids_of(demo, known) == expected
    for _ in range(12):
        letters = draw.integers(97, 123, (20_000, 100), np.uint8)
        letters[:, 0] = ord(" ")
        demo.encode(Texts.from_list([letters.tobytes()]))
        assert ids_of(demo, known) == expected


def test_words_that_differ_in_nul_bytes_only(demo: Encoder, demo_reference: tiktoken.Encoding) -> None:
    text = "".join(f"{chr(0) * length}a" for length in range(20)) * 2
    assert ids_of(demo, text) == demo_reference.encode_ordinary(text)


def test_no_texts(demo: Encoder) -> None:
    ids, lengths = demo.encode(Texts.from_list([]))
    assert len(ids) == len(lengths) == 0
    ids, lengths = demo.encode(Texts.from_list([b"", b""]))
    assert len(ids) == 0
    assert lengths.tolist() == [0, 0]


def test_a_literal_special_token_is_ordinary_text(encoder_and_reference: tuple[Encoder, tiktoken.Encoding]) -> None:
    encoder, reference = encoder_and_reference
    for text in ("<|endoftext|>", "a <|endoftext|> b", "<|end_of_text|>"):
        ids = ids_of(encoder, text)
        assert len(ids) > 3
        assert not set(ids) & set(reference._special_tokens.values())
