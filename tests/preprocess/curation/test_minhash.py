"""MinHash: values equal a direct computation of datatrove's rule, and planted duplicates are found with its probability."""

import random

import numpy as np
import pytest
import xxhash

from lt_preprocess.curation import minhash
from lt_preprocess.curation.words import Words, words
from lt_preprocess.texts import Texts


def words_of(texts: list[str]) -> Words:
    return words(Texts.from_list([text.encode() for text in texts]))


def stock_values(text: str) -> list[int]:
    """The least value for each permutation, with Python's integers."""
    generator = np.random.RandomState(1)
    prime = (1 << 61) - 1
    factors = generator.randint(1, prime, dtype=np.uint64, size=(1, 112))[0].tolist()
    summands = generator.randint(0, prime, dtype=np.uint64, size=(1, 112))[0].tolist()
    separate = text.split()
    shingles = {xxhash.xxh64_intdigest(" ".join(separate[at : at + 5]).encode()) for at in range(len(separate) - 4)}
    pairs = zip(factors, summands, strict=True)
    return [min((shingle * factor + summand) % (1 << 64) % prime for shingle in shingles) for factor, summand in pairs]


def test_values_and_bands() -> None:
    random.seed(1)
    texts = [" ".join(random.choices(["one", "two", "xx", "a", "longerword"], k=count)) for count in (4, 5, 6, 40, 700, 0)]
    text_words = words_of(texts)
    values = minhash.signatures(text_words)
    bands = minhash.bands(text_words)
    for text, of_text, bands_of_text in zip(texts, values, bands, strict=True):
        if len(text.split()) < 5:
            assert (bands_of_text == minhash.NO_BAND).all()
            continue
        assert of_text.tolist() == stock_values(text)
        expected = [xxhash.xxh64_intdigest(of_text[band * 8 : band * 8 + 8].tobytes()) for band in range(14)]
        assert bands_of_text.tolist() == expected


# 204 words have 200 shingles; a changed word, 10 or more words from the next one and from the ends, changes 5 of them.
@pytest.mark.parametrize(("changed_words", "pairs"), [(3, 100), (7, 300), (12, 200)])
def test_similar_documents_share_a_band_as_often_as_expected(changed_words: int, pairs: int) -> None:
    random.seed(changed_words)

    def letters() -> str:
        return "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=8))

    texts = []
    for _ in range(pairs):
        original = [letters() for _ in range(204)]
        changed = original.copy()
        for at in range(changed_words):
            changed[10 + at * 15] = letters()
        texts += [" ".join(original), " ".join(changed)]
    bands = minhash.bands(words_of(texts))
    found = int((bands[::2] == bands[1::2]).any(axis=1).sum())
    similarity = (200 - 5 * changed_words) / (200 + 5 * changed_words)
    expected = 1 - (1 - similarity**8) ** 14
    deviation = (expected * (1 - expected) / pairs) ** 0.5
    assert abs(found / pairs - expected) <= 4 * deviation
    assert not (bands[:-2:2] == bands[2::2]).any()
