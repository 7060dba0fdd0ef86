r"""White space at the end of a text as tiktoken's cl100k_base cuts it: `\s++$` makes it one word.

Llama 3's pattern, which is equal otherwise, ends a word after the last line break in the white space. So the compiled code for
Llama 3's pattern encodes a text up to there, and this layer the rest as one word. Nearly no text ends in a line break and then
other white space: only the last bytes of a text are examined, at no measurable cost.
"""

import numpy as np

from lt_preprocess.texts import Lengths, Texts
from lt_preprocess.tokenizers.base import Encoder, Ids
from lt_preprocess.tokenizers.bpe import character_classes
from lt_preprocess.tokenizers.python_bpe import UncompiledEncoder
from lt_preprocess.tokenizers.vocabulary import Vocabulary

_LINE_BREAKS = b"\r\n"
_BLANKS = frozenset(b" \t\x0b\x0c")
_CONTINUATION = range(0x80, 0xC0)


class FinalWhiteSpaceEncoder(Encoder):
    """Around an encoder that cuts text as Llama 3 does."""

    def __init__(self, encoder: Encoder, vocabulary: Vocabulary):
        self._encoder = encoder
        self._vocabulary = vocabulary
        self._classes = character_classes.table(vocabulary.pattern)
        self._words: UncompiledEncoder | None = None

    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        starts = {number: start for number in self._candidates(texts) if (start := self._word_start(texts, number)) is not None}
        if not starts:
            return self._encoder.encode(texts)
        numbers = np.array([*starts])
        cuts = np.array([*starts.values()])
        bounds = np.insert(texts.offsets, numbers + 1, cuts)
        ids, lengths = self._encoder.encode(Texts(texts.data, bounds))
        parts = np.split(ids, np.cumsum(lengths)[:-1])
        for index, (number, cut) in enumerate(starts.items()):
            parts[number + index + 1] = self._word_ids(texts.data[cut : texts.offsets[number + 1]].tobytes())
        positions = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        firsts = np.arange(len(texts.offsets)) + np.searchsorted(numbers, np.arange(len(texts.offsets)), side="left")
        return np.concatenate(parts), np.diff(positions[firsts])

    def _candidates(self, texts: Texts) -> list[int]:
        """The texts that end in white space other than a line break, or outside ASCII."""
        is_last = np.zeros(256, np.bool_)
        is_last[[*_BLANKS, *_CONTINUATION]] = True
        numbers = np.flatnonzero(np.diff(texts.offsets))
        text_numbers: list[int] = numbers[is_last[texts.data[texts.offsets[numbers + 1] - 1]]].tolist()
        return text_numbers

    def _word_start(self, texts: Texts, number: int) -> int | None:
        """Where the word at the end of a text starts that Llama 3's pattern would cut; None when that cuts none."""
        first, end = int(texts.offsets[number]), int(texts.offsets[number + 1])
        start, kind, character = end, character_classes.SPACE, end
        while character > first:
            character, kind = self._character_before(texts, character)
            if kind not in (character_classes.SPACE, character_classes.NEWLINE):
                break
            start = character
        if start > first and kind < character_classes.NUMBER:
            while start < end and texts.data[start] in _LINE_BREAKS:
                start += 1
        run = texts.data[start:end].tobytes().rstrip(_LINE_BREAKS)
        return start if b"\n" in run or b"\r" in run else None

    def _character_before(self, texts: Texts, end: int) -> tuple[int, int]:
        """The offset and the class of the character that ends at `end`."""
        start = end - 1
        while texts.data[start] in _CONTINUATION:
            start -= 1
        return start, int(self._classes[ord(texts.data[start:end].tobytes().decode())])

    def _word_ids(self, word: bytes) -> Ids:
        if self._words is None:
            self._words = UncompiledEncoder(self._vocabulary)
        return np.array(self._words.word_ids(word), np.int32)
