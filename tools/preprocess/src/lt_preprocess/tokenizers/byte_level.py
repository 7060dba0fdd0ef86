"""Byte-level BPE tokenizers around the compiled encoder, and those from files other than `tokenizer.json`."""

from collections.abc import Callable, Sequence

import numpy as np

from lt_preprocess.tokenizers import layers, pattern_codes, self_check, split_patterns, vocabulary_cache
from lt_preprocess.tokenizers.base import Encoder, Ids, Tokenizer
from lt_preprocess.tokenizers.files import gpt2_files, tiktoken_ranks
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
            from lt_preprocess.tokenizers.final_white_space import FinalWhiteSpaceEncoder

            return FinalWhiteSpaceEncoder(inner_encoder, self._vocabulary)
        return inner_encoder

    def decode(self, ids: Sequence[int] | Ids) -> bytes:
        try:
            return b"".join([self._added.get(number) or self._vocabulary.tokens[number] for number in np.asarray(ids).tolist()])
        except KeyError as error:
            raise BadData(f"token id {error} is not in the vocabulary of {self.vocab_size:,}") from None


class Slow(ByteLevel):
    """The same without compiled code, for a pattern that is not compiled and for checking."""

    def __init__(self, vocabulary: Vocabulary, warning: str | None = None):
        super().__init__(vocabulary)
        self._warning = warning
        self._encoder: Encoder | None = None

    def new_encoder(self) -> Encoder:
        """Threads share one encoder: it holds the GIL."""
        if self._encoder is None:
            from lt_preprocess.tokenizers import python_bpe

            self._encoder = python_bpe.UncompiledEncoder(self._vocabulary)
            if self._warning:
                warn(self._warning)
        return self._encoder


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
