"""Byte-level BPE tokenizers around the compiled encoder, and those from files other than `tokenizer.json`."""

from collections.abc import Callable, Sequence

import numpy as np

from lt_preprocess.texts import Lengths, Texts
from lt_preprocess.tokenizers import layers, pattern_codes, self_check, split_patterns, vocabulary_cache
from lt_preprocess.tokenizers.base import Encoder, Ids, Tokenizer
from lt_preprocess.tokenizers.bpe import character_classes
from lt_preprocess.tokenizers.files import gpt2_files, tiktoken_ranks
from lt_preprocess.tokenizers.python_bpe import UncompiledEncoder
from lt_preprocess.tokenizers.vocabulary import MOST_PIECES, Vocabulary
from lt_shared import memory
from lt_shared.console import BadData, warn
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

_COMPILED_IDS = 1_000_000

_READERS: dict[str, Callable[[TokenizerFiles], Vocabulary]] = {
    "gpt2": gpt2_files.read,
    "tiktoken": tiktoken_ranks.read,
    "tekken": tiktoken_ranks.read_tekken,
}
_LINE_BREAKS = b"\r\n"
_BLANKS = frozenset(b" \t\x0b\x0c")
# The bytes of a UTF-8 character after its first.
_CONTINUATION = range(0x80, 0xC0)


class ByteLevel(Tokenizer):
    """A vocabulary of byte-level BPE; the encoder is imported and compiled when it is first asked for."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocab_size = vocabulary.vocab_size
        self.eod = vocabulary.eod
        self.special_tokens = {token.content: token.id for token in vocabulary.added_tokens if token.is_special}
        self._vocabulary = vocabulary
        self._added = {token.id: token.content.encode() for token in vocabulary.added_tokens}
        self._encoding: Tokenizer | None = None

    def new_encoder(self) -> Encoder:
        if self._encoding is None:
            from lt_preprocess.tokenizers.bpe import encoder

            self._encoding = encoder.ByteLevelBpe(self._vocabulary)
        inner_encoder = self._encoding.new_encoder()
        if self._vocabulary.pattern == pattern_codes.CL100K:
            return FinalWhiteSpaceEncoder(inner_encoder, self._vocabulary)
        return inner_encoder

    def decode(self, ids: Sequence[int] | Ids) -> bytes:
        try:
            return b"".join([self._added.get(number) or self._vocabulary.tokens[number] for number in np.asarray(ids).tolist()])
        except KeyError as error:
            raise BadData(f"token id {error} is not in the vocabulary of {self.vocab_size:,}") from None


class Slow(ByteLevel):
    """A byte-level BPE encoder without compiled code, for patterns that are not compiled and to check compiled code."""

    def __init__(self, vocabulary: Vocabulary, warning: str | None = None):
        super().__init__(vocabulary)
        self._warning = warning
        self._encoder: Encoder | None = None

    def new_encoder(self) -> Encoder:
        """Threads share one encoder: it holds the GIL."""
        if self._encoder is None:
            self._encoder = UncompiledEncoder(self._vocabulary)
            if self._warning:
                warn(self._warning)
        return self._encoder


class FinalWhiteSpaceEncoder(Encoder):
    r"""White space at the end of a text as tiktoken's cl100k_base cuts it, around an encoder that cuts text as Llama 3 does.

    cl100k's `\s++$` makes it one word. Llama 3's pattern, which is equal otherwise, ends a word after the last line break in the
    white space. So `encoder` encodes a text up to there, and the rest is encoded as one word.
    """

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
        # Nearly no text ends in a line break and then other white space: only the last bytes of a text are examined, at no
        # measurable cost.
        is_last = np.zeros(256, np.bool_)
        is_last[[*_BLANKS, *_CONTINUATION]] = True
        numbers = np.flatnonzero(np.diff(texts.offsets))
        text_numbers: list[int] = numbers[is_last[texts.data[texts.offsets[numbers + 1] - 1]]].tolist()
        return text_numbers

    def _word_start(self, texts: Texts, number: int) -> int | None:
        """Return where the last word of a text starts if Llama 3's pattern would cut it; None if it would not."""
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


def load(files: TokenizerFiles, parse: bool) -> Tokenizer:
    """Raises BadData for files that are malformed or not supported. With `parse`, special tokens in text become tokens."""
    with memory.garbage_collection_paused():
        vocabulary = vocabulary_cache.read(files, _READERS[files.kind])
    reason = obstacle(vocabulary)
    if reason:
        slow = Slow(vocabulary, f"{files.files[0]}: {reason}; expect 1 or 2 MB a second in all")
        return layers.around(slow, vocabulary, parse)
    checked = self_check.Checked(ByteLevel(vocabulary), lambda: Slow(vocabulary), files)
    return layers.around(checked, vocabulary, parse)


def obstacle(vocabulary: Vocabulary) -> str | None:
    """Why no compiled encoder can have it."""
    if vocabulary.pattern == split_patterns.NOT_COMPILED:
        return "it cuts text by a pattern that is not compiled"
    most = MOST_PIECES if vocabulary.pattern == pattern_codes.BYTE_FALLBACK else _COMPILED_IDS
    return "its ids are too high for the compiled encoder" if vocabulary.vocab_size > most else None
