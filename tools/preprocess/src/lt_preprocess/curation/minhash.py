"""MinHash signatures as datatrove 0.10 computes them by default: 5-word shingles, 14 bands of 8 permutations, seed 1.

A shingle's XXH64 x becomes (a x + b mod 2^64) mod (2^61 - 1) for each of 112 pairs (a, b) of NumPy's RandomState(1), and the
signature has the least value for each pair. Two documents with a Jaccard similarity s of their shingles share a band with
probability 1 - (1 - s^8)^14: 0.92 at 0.8, 0.56 at 0.7. A band is kept as the XXH64 of its 8 values: among 10^9 documents, 0.4
pairs share a band by accident.
"""

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.compiler.intrinsics import element_address
from lt_preprocess.compiler.jit import inner, kernel
from lt_preprocess.curation.contamination import Hashes, ngram_hashes
from lt_preprocess.curation.words import Words
from lt_preprocess.curation.xxhash64 import xxhash64
from lt_preprocess.texts import Lengths

SHINGLE_WORDS = 5
BANDS = 14
BAND_PERMUTATIONS = 8
SEED = 1
NO_BAND = 0
"""The band of a document with fewer than SHINGLE_WORDS words."""

_PRIME = np.uint64((1 << 61) - 1)
_PRIME_BITS = np.uint64(61)
_BAND_BYTES = 8 * BAND_PERMUTATIONS


class Permutations(NamedTuple):
    factors: Hashes
    summands: Hashes


@functools.cache
def permutations() -> Permutations:
    """Return `factors` and `summands`, uint64 [BANDS * BAND_PERMUTATIONS] each."""
    generator = np.random.RandomState(SEED)
    count = BANDS * BAND_PERMUTATIONS
    factors = generator.randint(1, int(_PRIME), size=count, dtype=np.uint64)
    return Permutations(factors, generator.randint(0, int(_PRIME), size=count, dtype=np.uint64))


def signatures(text_words: Words) -> Hashes:
    """Return the least values, uint64 [texts, BANDS * BAND_PERMUTATIONS]; all bits are set for a text without shingles."""
    hashes, counts = ngram_hashes(text_words, SHINGLE_WORDS)
    least = np.empty((len(counts), BANDS * BAND_PERMUTATIONS), np.uint64)
    _least_values(hashes, counts, *permutations(), least)
    return least


def bands(text_words: Words) -> npt.NDArray[np.uint64]:
    """Return the hashes of the bands, uint64 [texts, BANDS]; NO_BAND for a text without shingles."""
    least = signatures(text_words)
    hashed = np.empty((len(least), BANDS), np.uint64)
    _hash_bands(least, hashed)
    hashed[text_words.counts < SHINGLE_WORDS] = NO_BAND
    return hashed


@inner
def _least(hashes: Hashes, factor: np.uint64, summand: np.uint64) -> np.uint64:
    least = ~np.uint64(0)
    # A slice with indices from 0, and no call in the loop, are what LLVM vectorises.
    for index in range(len(hashes)):
        value = hashes[index] * factor + summand
        value = (value & _PRIME) + (value >> _PRIME_BITS)
        # The sum may be the prime or a little more; subtracted with wrap-around, a smaller sum becomes huge.
        least = min(least, min(value, value - _PRIME))
    return least


@kernel
def _least_values(hashes: Hashes, counts: Lengths, factors: Hashes, summands: Hashes, least: npt.NDArray[np.uint64]) -> None:
    first = 0
    for text in range(len(counts)):
        end = first + counts[text]
        for permutation in range(len(factors)):
            least[text, permutation] = _least(hashes[first:end], factors[permutation], summands[permutation])
        first = end


@kernel
def _hash_bands(least: npt.NDArray[np.uint64], hashed: npt.NDArray[np.uint64]) -> None:
    base = element_address(least, 0)
    for text in range(len(hashed)):
        for band in range(BANDS):
            value = xxhash64(base + (text * BANDS + band) * _BAND_BYTES, _BAND_BYTES)
            hashed[text, band] = max(value, np.uint64(1))
