"""Words: the compiled pass equals the definition in Python, which is datatrove's `simplify_text` except for unspaced scripts."""

import random

import pytest

from lt_preprocess.curation.words import Words, words, words_of
from lt_preprocess.texts import Texts


def joined(text_words: Words) -> list[str]:
    bounds = zip(text_words.starts.tolist(), text_words.ends.tolist(), strict=True)
    return [text_words.data[start:end].tobytes().decode() for start, end in bounds]


# The right-hand sides are simplify_text(text).split() of datatrove 0.10.1, with a space around each unspaced character.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't STOP, she said: 'go'!", "don t stop she said go"),
        ("12,345.67 and 3.14, 1.2.3 v2 3D", "0 0 and 0 0 0 v0 0d"),
        ("Ünïcödé naïve Å Σας ΟΔΟΣ İstanbul", "unicode naive a σας οδος istanbul"),
        ("한국어 각", "한국어 각"),
        ("漢字がぎ、カナ ไทย", "漢 字 か き カ ナ ไ ท ย"),
        ("٣\u066b٤ ०१", "0 0"),
        ("a\u00a0b\u2003c\x1cd\u0301 \u0301 e", "a b c d e"),
        ("ﬁ ② Ⅷ", "ﬁ ② ⅷ"),
        ("", ""),
        ("... \n\t!", ""),
    ],
)
def test_words_by_hand(text: str, expected: str) -> None:
    import unicodedata

    expected = unicodedata.normalize("NFD", expected)
    assert " ".join(words_of(text)) == expected
    result = words(Texts.from_list([b"before", text.encode(), b"after"]))
    assert joined(result) == ["before", expected, "after"]
    assert result.counts.tolist() == [1, len(expected.split()), 1]


def test_compiled_words_equal_the_definition() -> None:
    random.seed(0)
    pools = [
        "abc DEF.,!",
        "0123456789.,٣\u066b",
        "éÀñßİΣσς",
        "日本がぎ。漢",
        "한국각",
        "ไทລາ",
        "\u0301\u0300 e",
        "𝟎𝟏𠀀丽豈",
        "\u2000\xa0\x1c\n",
    ]

    def text() -> str:
        characters = [random.choice(random.choice(pools)) for _ in range(random.randrange(40))]
        characters += [chr(random.randrange(0x20, 0x30000)) for _ in range(random.randrange(8))]
        random.shuffle(characters)
        return "".join(character for character in characters if not 0xD800 <= ord(character) < 0xE000)

    texts = [text() for _ in range(3000)]
    result = words(Texts.from_list([one.encode() for one in texts]))
    assert joined(result) == [" ".join(words_of(one)) for one in texts]
    assert result.counts.tolist() == [len(words_of(one)) for one in texts]


def test_every_character_alone_and_between_letters() -> None:
    codes = [code for code in range(0x20800) if not 0xD800 <= code < 0xE000]
    texts = [f"x{chr(code)}y {chr(code)}" for code in codes]
    result = joined(words(Texts.from_list([one.encode() for one in texts])))
    wrong = [hex(code) for code, one, ours in zip(codes, texts, result, strict=True) if ours != " ".join(words_of(one))]
    assert not wrong
