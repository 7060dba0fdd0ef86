"""Words start where the regular expressions say, wherever in the blocks of 64 bytes a text has its boundaries."""

import random

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_preprocess.kernels.intrinsics import address, store64
from lt_preprocess.kernels.jit import kernel
from lt_preprocess.kernels.simd import BLOCK_BYTES
from lt_preprocess.tokenizers import pattern_codes, split_patterns
from lt_preprocess.tokenizers.base import Texts
from lt_preprocess.tokenizers.bpe import character_classes, pretokenizer

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

CLASSES = {pattern: character_classes.table(pattern) for pattern in PATTERNS}

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
    *("\u4e2d\u0301", "\u3042\u30ab\u30fb"),
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


@kernel
def mark_starts(pattern: int, data: int, size: int, classes: int, state: int, starts: int) -> None:
    for at in range(0, size, BLOCK_BYTES):
        if pattern in (pattern_codes.TEKKEN, pattern_codes.O200K):
            word_starts = pretokenizer.word_starts_by_case(pattern, data + at, data + size, classes, state)
        elif pattern == pattern_codes.STARCODER:
            word_starts = pretokenizer.word_starts_in_two_splits(pattern, data + at, data + size, classes, state)
        elif pattern == pattern_codes.DEEPSEEK:
            word_starts = pretokenizer.word_starts_in_three_splits(pattern, data + at, data + size, classes, state)
        elif pattern == pattern_codes.KIMI:
            word_starts = pretokenizer.word_starts_by_script(pattern, data + at, data + size, classes, state)
        else:
            word_starts = pretokenizer.word_starts(pattern, data + at, data + size, classes, state)
        store64(starts + at // 8, word_starts)


def expected_words(text: str, pattern: int) -> list[str]:
    """The words by the regular expressions; each of several cuts what those before it have left, and isolates what it finds."""
    steps = PATTERNS[pattern]
    words, rest = [], [(0, text)]
    for step in [steps] if isinstance(steps, str) else steps:
        left = []
        for offset, piece in rest:
            at = 0
            for match in regex.compile(step, regex.V1).finditer(piece):
                left.append((offset + at, piece[at : match.start()]))
                words.append((offset + match.start(), match.group()))
                at = match.end()
            left.append((offset + at, piece[at:]))
        rest = [part for part in left if part[1]]
    return [word for _, word in sorted(words + rest)]


def words_of(text: str, pattern: int) -> list[str]:
    """The words that the compiled code finds."""
    content = text.encode()
    texts = Texts.of([content])
    state, starts = np.zeros(pretokenizer.STATE_SIZE, np.uint64), np.zeros(len(content) // BLOCK_BYTES + 1, np.uint64)
    code = pattern_codes.QWEN2 if pattern == pattern_codes.QWEN35 else pattern
    mark_starts(code, address(texts.data), len(content), address(CLASSES[pattern]), address(state), address(starts))
    places = np.flatnonzero(np.unpackbits(starts.view(np.uint8), bitorder="little")).tolist()
    return [content[start:end].decode() for start, end in zip(places, [*places[1:], len(content)], strict=True)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_run_around_the_end_of_a_block(pattern: int) -> None:
    for run in RUNS:
        for before in ("x", " ", "!", "\n"):
            for after in ("y", "\n", ""):
                for size in range(56, 66):
                    text = before * size + run + after
                    assert words_of(text, pattern) == expected_words(text, pattern), (before, size, run, after)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_many_random_texts(pattern: int) -> None:
    draw = random.Random(pattern)
    for _ in range(1500):
        text = "".join(draw.choices(RUNS, k=draw.randrange(1, 120)))
        assert words_of(text, pattern) == expected_words(text, pattern), text


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(PATTERNS)), st.lists(st.sampled_from(RUNS), min_size=1, max_size=60).map("".join))
def test_any_runs(pattern: int, text: str) -> None:
    assert words_of(text, pattern) == expected_words(text, pattern)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_long_runs_of_one_character(pattern: int) -> None:
    for character in ("a", "1", " ", "\n", "!", "'", "\u4e2d", "\u0661", "\u3000", "\xa0", "\u0301"):
        for size in (63, 64, 65, 127, 128, 129, 200):
            for ending in ("", "x", " ", "\n", "1", "!"):
                text = character * size + ending
                assert words_of(text, pattern) == expected_words(text, pattern), (character, size, ending)
