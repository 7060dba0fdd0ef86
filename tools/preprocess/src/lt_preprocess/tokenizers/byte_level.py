"""Byte-level BPE tokenizers of every kind of file, around the compiled encoder.

What the files say beyond the encoder's tables is done in layers, each there only when the tokenizer needs it: added tokens are
taken out of the text, the rest is normalized, added tokens are taken out of the normalized text, and what remains is encoded.
"""

from collections.abc import Callable, Sequence

import numpy as np

from lt_preprocess.tokenizers import pattern_codes, self_check, split_patterns, vocabulary_cache
from lt_preprocess.tokenizers.base import Encoder, Ids, Tokenizer
from lt_preprocess.tokenizers.files import gpt2_files, tiktoken_ranks, tokenizer_json
from lt_preprocess.tokenizers.vocabulary import AddedToken, Unrecognised, Vocabulary
from lt_shared import memory
from lt_shared.console import BadData, warn
from lt_shared.tokenizer_files import TokenizerFiles

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
        made = self._encoding.new_encoder()
        if self._vocabulary.pattern == pattern_codes.CL100K:
            from lt_preprocess.tokenizers.final_white_space import FinalWhiteSpaceEncoder

            return FinalWhiteSpaceEncoder(made, self._vocabulary)
        return made

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
    if files.kind == "tokenizer.json":
        return _load_tokenizer_json(files, parse)
    with memory.garbage_collection_paused():
        vocabulary = vocabulary_cache.read(files, _READERS[files.kind])
    obstacle = _obstacle(vocabulary)
    if obstacle:
        slow = Slow(vocabulary, f"{files.files[0]}: {obstacle}; expect 1 or 2 MB a second in all")
        return _layers(slow, vocabulary, parse)
    checked = self_check.Checked(ByteLevel(vocabulary), lambda: Slow(vocabulary), files)
    return _layers(checked, vocabulary, parse)


def _load_tokenizer_json(files: TokenizerFiles, parse: bool) -> Tokenizer:
    from lt_preprocess.tokenizers import reference_libraries

    try:
        with memory.garbage_collection_paused():
            vocabulary = vocabulary_cache.read(files, tokenizer_json.read)
        obstacle = _obstacle(vocabulary) or _obstacle_in_added_tokens(vocabulary.added_tokens, parse)
    except Unrecognised as reason:
        obstacle = str(reason)
    if obstacle:
        return reference_libraries.HuggingFace(files, parse, obstacle)
    layers = _layers(ByteLevel(vocabulary), vocabulary, parse)
    return self_check.Checked(layers, lambda: reference_libraries.HuggingFace(files, parse), files, f"parse={parse}")


def _obstacle(vocabulary: Vocabulary) -> str | None:
    """Why the compiled encoder cannot have it."""
    if vocabulary.pattern == split_patterns.NOT_COMPILED:
        return "it cuts text by a pattern that is not compiled"
    return "its ids are too high for the compiled encoder" if vocabulary.vocab_size > _COMPILED_IDS else None


def _obstacle_in_added_tokens(added: Sequence[AddedToken], parse: bool) -> str | None:
    for token in added:
        if token.minds_surroundings and (parse or not token.is_special):
            return f"its added token {token.content} takes the white space or words around it into account"
    return None


def _layers(tokenizer: Tokenizer, vocabulary: Vocabulary, parse: bool) -> Tokenizer:
    tokenizer = _with_added_tokens(tokenizer, [token for token in vocabulary.added_tokens if token.is_normalized], parse)
    if vocabulary.is_nfc:
        from lt_preprocess.tokenizers.normalization import Normalizing

        tokenizer = Normalizing(tokenizer)
    return _with_added_tokens(tokenizer, [token for token in vocabulary.added_tokens if not token.is_normalized], parse)


def _with_added_tokens(tokenizer: Tokenizer, added: Sequence[AddedToken], parse: bool) -> Tokenizer:
    """The library finds special tokens also when it does not take them for tokens, and what overlaps them is hidden then."""
    if all(token.is_special for token in added) and not parse:
        return tokenizer
    from lt_preprocess.tokenizers.special_tokens import SKIPPED, Splitting

    return Splitting(tokenizer, {token.content: token.id if parse or not token.is_special else SKIPPED for token in added})
