"""Leave out documents that share NGRAM_WORDS words in a row with an evaluation text, as datatrove's `NGramsDecontFilter` does.

The hashes of the evaluation texts' n-grams are in one table, at most half full: memory grows with the evaluation texts, not
with the corpus.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lt_preprocess.compiler.intrinsics import element_address, load8, signed
from lt_preprocess.compiler.jit import inner, kernel
from lt_preprocess.curation.words import SPACE_BYTE, Words, words
from lt_preprocess.curation.xxhash64 import xxhash64
from lt_preprocess.readers import inputs
from lt_preprocess.readers.chunks import BEGINNING
from lt_preprocess.readers.slices import WHOLE
from lt_preprocess.texts import Bytes, Lengths
from lt_shared.console import BadData, NoInput, warn

CONTAMINATED = "contaminated"
NGRAM_WORDS = 12
EVALUATION_KEY = "text"
_RING = 16
_NO_MATCH = -1

Hashes = npt.NDArray[np.uint64]


class EvaluationTexts:
    """The n-grams of evaluation texts, read from files in any format that lt-preprocess tokenizes.

    Raises: BadData for a line without a text, NoInput if no text has NGRAM_WORDS words.
    """

    def __init__(self, paths: Sequence[str]):
        self._names = [inputs.display_name(path) for path in paths]
        hashes, files = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
        texts = shorter_texts = 0
        for number, path in enumerate(paths):
            for chunk in inputs.chunks([path], WHOLE, BEGINNING, lambda size: None, (EVALUATION_KEY,)):
                batch = chunk.batch((EVALUATION_KEY,))
                if batch.bad_lines:
                    raise BadData(
                        f"--decontaminate: {batch.bad_lines[0]}", f"every evaluation text is the {EVALUATION_KEY!r} of a line"
                    )
                text_words = words(batch.columns[0].texts)
                texts += len(text_words.counts)
                shorter_texts += int((text_words.counts < NGRAM_WORDS).sum())
                hashes.append(ngram_hashes(text_words, NGRAM_WORDS)[0])
                files.append(np.full(len(hashes[-1]), number))
        unique, first = np.unique(np.concatenate(hashes), return_index=True)
        if len(unique) == 0:
            raise NoInput(f"{', '.join(self._names)}: no evaluation text has {NGRAM_WORDS} words")
        if shorter_texts:
            warn(f"{shorter_texts:,} of {texts:,} evaluation texts have under {NGRAM_WORDS} words and match nothing")
        self._hashes = np.zeros(1 << int(2 * len(unique)).bit_length(), np.uint64)
        self._files = np.zeros(len(self._hashes), np.int32)
        _fill(unique, np.concatenate(files)[first].astype(np.int32), self._hashes, self._files)

    def removals(self, document_words: Words) -> dict[int, tuple[str, str]]:
        """Return the kind and the reason for each document that has an n-gram of an evaluation text."""
        begins, slots = (np.full(len(document_words.counts), _NO_MATCH, np.int64) for _ in range(2))
        _match(*document_words[:3], np.zeros(_RING, np.int64), NGRAM_WORDS, self._hashes, begins, slots)
        removals = {}
        for document in np.flatnonzero(begins != _NO_MATCH).tolist():
            content = document_words.data[begins[document] : document_words.ends[document]].tobytes()
            ngram = b" ".join(content.split(b" ", NGRAM_WORDS)[:NGRAM_WORDS]).decode()
            name = self._names[self._files[slots[document]]]
            removals[document] = CONTAMINATED, f"{CONTAMINATED}: {NGRAM_WORDS} words of {name}: {ngram}"
        return removals


def ngram_hashes(text_words: Words, size: int) -> tuple[Hashes, Lengths]:
    """Hash all runs of `size` words, up to 16; also return every text's number of hashes."""
    counts = np.maximum(text_words.counts - size + 1, 0)
    hashes = np.empty(int(counts.sum()), np.uint64)
    _hash_ngrams(*text_words[:3], np.zeros(_RING, np.int64), size, hashes)
    return hashes, counts


@inner
def next_space(at: int, end: int) -> int:
    """The address of the next space, or `end`."""
    while at < end and load8(at) != SPACE_BYTE:
        at += 1
    return at


@kernel
def _hash_ngrams(data: Bytes, starts: Lengths, ends: Lengths, ring: Lengths, size: int, hashes: Hashes) -> int:
    written = 0
    for text in range(len(starts)):
        at, end = element_address(data, starts[text]), element_address(data, ends[text])
        word = 0
        while at < end:
            ring[word % _RING] = at
            word_end = next_space(at, end)
            word += 1
            if word >= size:
                start = ring[(word - size) % _RING]
                hashes[written] = xxhash64(start, word_end - start)
                written += 1
            at = word_end + 1
    return written


@inner
def _slot(hashed: np.uint64, table: Hashes) -> int:
    """The slot with this hash, or the free slot for it. Zero marks a free slot, so a hash of 0 counts as 1."""
    mask = np.uint64(len(table) - 1)
    slot = hashed & mask
    while table[slot] != np.uint64(0) and table[slot] != hashed:
        slot = slot + np.uint64(1) & mask
    return signed(slot)


@kernel
def _fill(hashes: Hashes, values: npt.NDArray[np.int32], table: Hashes, table_values: npt.NDArray[np.int32]) -> None:
    for index in range(len(hashes)):
        hashed = max(hashes[index], np.uint64(1))
        slot = _slot(hashed, table)
        table[slot] = hashed
        table_values[slot] = values[index]


@kernel
def _match(
    data: Bytes, starts: Lengths, ends: Lengths, ring: Lengths, size: int, table: Hashes, begins: Lengths, slots: Lengths
) -> None:
    """Write where a text's first n-gram from the table begins, and the slot."""
    base = element_address(data, 0)
    for text in range(len(starts)):
        at, end = element_address(data, starts[text]), element_address(data, ends[text])
        word = 0
        while at < end:
            ring[word % _RING] = at
            word_end = next_space(at, end)
            word += 1
            if word >= size:
                start = ring[(word - size) % _RING]
                hashed = max(xxhash64(start, word_end - start), np.uint64(1))
                slot = _slot(hashed, table)
                if table[slot] == hashed:
                    begins[text] = start - base
                    slots[text] = slot
                    break
            at = word_end + 1
