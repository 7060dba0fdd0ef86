"""One interface to all kinds of tokenizer.

Byte-level BPE runs in the compiled encoder when its way to cut text is known, whichever files it comes from; everything else runs
in the library that defines it, at a few MB a second and thread, and a line on standard error says so.

What a document says cannot end it: by default the text of a special token stays text. `load(files, special_tokens=...)` takes

    text    `<|endoftext|>` in a document is encoded as those 13 characters
    parse   it becomes the token, as Hugging Face's tokenizers and most of Megatron's do
    reject  as text, but `Encoder.forbidden(texts)` names the first such place of every text that has one. The caller asks it for
            every column before `encode`, turns each text it names into a bad line (`str(forbidden)` is the reason) and leaves
            the whole document out; `Texts.without(indices)` takes texts out. In the other modes the answer is [] at no cost.
"""

import abc
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lt_shared.manifest import Tokenizer as Identity
from lt_shared.manifest import absolute
from lt_shared.tokenizer_files import TokenizerFiles

Bytes = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int32]
Lengths = npt.NDArray[np.int64]

SpecialTokens = Literal["text", "parse", "reject"]

PADDING_BYTES = 64
"""Bytes after the last text that compiled code may read; they are never part of a result."""


class Texts(NamedTuple):
    """UTF-8 texts back to back, as compiled code reads them.

    Text i is data[offsets[i]:offsets[i + 1]]; `data` uint8 [at least offsets[-1] + PADDING_BYTES], `offsets` int64 [texts + 1].
    """

    data: Bytes
    offsets: Lengths

    @classmethod
    def of(cls, texts: list[bytes]) -> Self:
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        data = np.zeros(int(offsets[-1]) + PADDING_BYTES, np.uint8)
        data[: offsets[-1]] = np.frombuffer(b"".join(texts), np.uint8)
        return cls(data, offsets)

    def to_list(self) -> list[bytes]:
        joined = self.data.tobytes()
        return [joined[start:end] for start, end in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True)]

    def without(self, indices: Collection[int]) -> Self:
        """The texts but those of the given numbers."""
        left_out = frozenset(indices)
        return self.of([text for number, text in enumerate(self.to_list()) if number not in left_out])


class ForbiddenToken(NamedTuple):
    """A special token written out in text number `text`, at `offset` bytes of it; `str()` says so without the number."""

    text: int
    offset: int
    token: str

    def __str__(self) -> str:
        return f"special token {self.token} at byte {self.offset} of the text"


class Encoder(abc.ABC):
    """Encodes for one thread."""

    @abc.abstractmethod
    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        """The ids of all texts (valid UTF-8) back to back, and the number of ids of each text."""

    def forbidden(self, texts: Texts) -> list[ForbiddenToken]:
        """The first special token that each text spells out, in order; only of a tokenizer loaded with "reject"."""
        return []


class Tokenizer(abc.ABC):
    """A loaded tokenizer.

    `vocab_size` is the whole id space; `eod` the id that ends a document, None when it has none; `special_tokens` those that a
    document could spell out, with their ids.
    """

    vocab_size: int
    eod: int | None
    special_tokens: Mapping[str, int] = {}

    @abc.abstractmethod
    def new_encoder(self) -> Encoder:
        """An encoder for a thread of its own. The first call may compile for ten seconds."""

    def decode(self, ids: Sequence[int] | Ids) -> bytes:
        """The UTF-8 text of the ids; bytes, because ids may begin or end in the middle of a character. Compiles nothing.

        Raises BadData for an id that the tokenizer does not have.
        """
        raise NotImplementedError


class Wrapper(Tokenizer):
    """A tokenizer that changes how another one encodes, and nothing else about it."""

    def __init__(self, wrapped: Tokenizer):
        self.vocab_size, self.eod, self.special_tokens = wrapped.vocab_size, wrapped.eod, wrapped.special_tokens
        self._wrapped = wrapped

    def decode(self, ids: Sequence[int] | Ids) -> bytes:
        return self._wrapped.decode(ids)


def identity(files: TokenizerFiles, given: str | Path) -> Identity:
    """How manifests name the tokenizer that the user gave as `given`, a path or a name."""
    return Identity(files.name, files.sha256(), absolute(given if os.path.exists(given) else files.files[0]))


def load(files: TokenizerFiles, special_tokens: SpecialTokens = "text") -> Tokenizer:
    """Raises BadData for files that are malformed or not supported."""
    parse = special_tokens == "parse"
    if files.kind == "sentencepiece":
        loaded = _sentencepiece(files, parse)
    else:
        from lt_preprocess import byte_level

        loaded = byte_level.load(files, parse)
    if special_tokens == "reject" and loaded.special_tokens:
        from lt_preprocess.special_tokens import Rejecting

        return Rejecting(loaded)
    return loaded


def _sentencepiece(files: TokenizerFiles, parse: bool) -> Tokenizer:
    from lt_preprocess import library_tokenizers, self_check, sentencepiece_bpe
    from lt_preprocess.vocabulary import Unrecognised

    loaded: Tokenizer
    try:
        compiled = sentencepiece_bpe.recognise(files.files[0])
        loaded = self_check.Checked(compiled, lambda: library_tokenizers.SentencePiece(files), files)
    except Unrecognised as reason:
        loaded = library_tokenizers.SentencePiece(files, str(reason))
    if parse and loaded.special_tokens:
        from lt_preprocess.special_tokens import Splitting

        return Splitting(loaded, loaded.special_tokens)
    return loaded
