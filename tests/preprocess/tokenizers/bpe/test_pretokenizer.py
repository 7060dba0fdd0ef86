"""Words start where the regular expressions say, wherever in the blocks of 64 bytes a text has its boundaries."""

import itertools
import random

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_preprocess.compiler.intrinsics import address
from lt_preprocess.compiler.simd import BLOCK_BYTES
from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers import pattern_codes, split_patterns, vocabulary
from lt_preprocess.tokenizers.bpe.encoder import QUEUED_WORDS, VocabularyTables, WordCachingEncoder

PATTERNS = {
    pattern_codes.GPT2: split_patterns.GPT2,
    pattern_codes.LLAMA3: split_patterns.LLAMA3,
    pattern_codes.QWEN2: split_patterns.QWEN2,
    pattern_codes.TEKKEN: split_patterns.TEKKEN,
    pattern_codes.O200K: split_patterns.O200K,
    pattern_codes.QWEN35: split_patterns.QWEN35,
    pattern_codes.KIMI: split_patterns.KIMI,
    pattern_codes.DEEPSEEK: split_patterns.DEEPSEEK,
    pattern_codes.STARCODER: split_patterns.STARCODER,
}

# The queue is emptied when it has more words than these: all words of a text of so many bytes are still there at its end.
MOST_WORDS = QUEUED_WORDS - BLOCK_BYTES

RUNS = [
    *("word", "a", "B", "\xe9t\xe9", "\u4e2d\u6587", "\u0939\u093f\u0928", "e\u0301", "\U0001d41a"),
    *("1", "22", "333", "4444", "55555555555", "\u0661\u0662", "\xb2\xb3\xb9\xbc", "\U0001d7d8"),
    *(
        " ",
        "  ",
        "        ",
        "\n",
        "\r\n",
        "\n\n",
        "\n    ",
        " \n \n",
        "\t",
        "\x0b",
        "\xa0",
        "\u3000",
        "\u2028",
        "\x85",
        "\n\u3000 ",
    ),
    *(
        "'",
        "''",
        "'s",
        "'S",
        "'ll",
        "'LL",
        "'ve",
        "'re",
        "'t",
        "'\u017f",
        "'x",
        "'l",
        " 's",
        "!",
        "!?",
        "...\n",
        "(",
        " (",
        "\u201c",
    ),
    *("camelCase", "HTML", "Ab", "\u4e2dA", "\u4e2dAb", "A\u0301", "\u0301A", "\u01c5", "\u02b0", "it's", "IT'S", "/", "/\n/"),
    *("\U0001f468\u200d\U0001f4bb", "_", "\0", "\x1c", "\u0301", "<|endoftext|>"),
    *("\u3007", "\u30021\u3007", "1\u30072345", "\u3005", "\u2e80", "!\u2e80", " \u2f00", "\U00016ff0"),
    *("\u4e2d\u0301", "\u3042\u30ab\u30fb", "\u30d5\u309c", "\u30fb\u30fb", "\u3097", "\u3098\u3098\u30d5", "\u3099\u30a0"),
    *(
        "\0\0",
        "\0a",
        "\x01\x01b",
        "\u0378\ue000",
        "\u200b\u4e2d",
        "-\xe9",
        "-word\xe9",
        "$5",
        " \u20ac",
        "+\n\n",
        "  7",
        "\n 7",
        " \u4e00",
    ),
]


def expected_words(text: str, pattern: int) -> list[str]:
    """Cut by regular expressions: each cuts the pieces of the one before it, into what it matches and what lies between."""
    steps = PATTERNS[pattern]
    pieces = [text]
    for step in [steps] if isinstance(steps, str) else steps:
        cuts = []
        for piece in pieces:
            at = 0
            for match in regex.compile(step, regex.V1).finditer(piece):
                cuts += [piece[at : match.start()], match.group()]
                at = match.end()
            cuts.append(piece[at:])
        pieces = [piece for piece in cuts if piece]
    return pieces


@pytest.fixture(scope="module")
def encoders() -> dict[int, WordCachingEncoder]:
    """Of bytes alone: a kernel that cuts and does no more would have to be compiled for this test."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    tables = {pattern: vocabulary.from_ranks(ranks, pattern, special_tokens=0, eod=None) for pattern in PATTERNS}
    return {pattern: WordCachingEncoder(VocabularyTables(table)) for pattern, table in tables.items()}


def words_of(text: str, encoder: WordCachingEncoder) -> list[str]:
    """The words that the compiled code has queued."""
    content = text.encode()
    texts = Texts.from_list([content])
    encoder.encode(texts)
    places = (encoder._queue[::4] - np.uint64(address(texts.data))).tolist()
    places = places[: places.index(len(content)) + 1]
    return [content[start:end].decode() for start, end in itertools.pairwise(places)]


def cut(text: str) -> str:
    return text.encode()[:MOST_WORDS].decode(errors="ignore")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_run_around_the_end_of_a_block(encoders: dict[int, WordCachingEncoder], pattern: int) -> None:
    """From where a run ends with its block to where it begins behind the next one's first byte."""
    for run in RUNS:
        for before, after in (("x", "y"), ("x", "\n"), ("x", ""), (" ", "y"), ("!", "\n"), ("\n", "y")):
            for size in range(BLOCK_BYTES - len(run.encode()), BLOCK_BYTES + 2):
                text = before * size + run + after
                assert words_of(text, encoders[pattern]) == expected_words(text, pattern), (before, size, run, after)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_many_random_texts(encoders: dict[int, WordCachingEncoder], pattern: int) -> None:
    draw = random.Random(pattern)
    for _ in range(800):
        text = cut("".join(draw.choices(RUNS, k=draw.randrange(1, 120))))
        assert words_of(text, encoders[pattern]) == expected_words(text, pattern), text


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(PATTERNS)), st.lists(st.sampled_from(RUNS), min_size=1, max_size=60).map("".join).map(cut))
def test_any_runs(encoders: dict[int, WordCachingEncoder], pattern: int, text: str) -> None:
    assert words_of(text, encoders[pattern]) == expected_words(text, pattern)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_long_runs_of_one_character(encoders: dict[int, WordCachingEncoder], pattern: int) -> None:
    for character in ("a", "1", " ", "\n", "!", "'", "\u4e2d", "\u0661", "\u3000", "\xa0", "\u0301"):
        for size in (63, 64, 65, 127, 128, 129, MOST_WORDS - 1):
            for ending in ("", "x", " ", "\n", "1", "!"):
                text = character * size + ending
                assert words_of(text, encoders[pattern]) == expected_words(text, pattern), (character, size, ending)
