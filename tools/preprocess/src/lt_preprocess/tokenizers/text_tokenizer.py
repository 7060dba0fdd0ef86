"""A tokenizer for notebooks and scripts: strings in, the ids that `lt-preprocess` writes for them out, and back.

An encoder belongs to a thread while it encodes, so a call takes an idle one, or makes another; from several threads the compiled
ones run in parallel.
"""

import collections
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers import loading, self_check
from lt_preprocess.tokenizers.base import Encoder, SpecialTokens, Tokenizer
from lt_shared.console import BadData, UsageError
from lt_shared.data import indexed_dataset
from lt_shared.tokenizers import tokenizer_files

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.int32]


class TextTokenizer:
    """A tokenizer that `load_tokenizer` has loaded. Its methods may be called from several threads.

    Attributes: `name`, for people; `sha256`, which identifies it in manifests and checkpoints; `vocab_size`, the whole id space;
    `eod`, the id that `--append-eod` ends a document with, or None; `special_tokens`, the ids of special tokens that a text could
    spell out; `dtype` of its datasets: uint16 below 65,500 entries, int32 from there.
    """

    def __init__(self, tokenizer: Tokenizer, name: str, sha256: str, loaded_from: tuple[str, SpecialTokens]):
        self._loaded_from = loaded_from
        self.name = name
        self.sha256 = sha256
        self.vocab_size = tokenizer.vocab_size
        self.eod = tokenizer.eod
        self.special_tokens: Mapping[str, int] = dict(tokenizer.special_tokens)
        self.dtype: np.dtype[np.uint16] | np.dtype[np.int32] = indexed_dataset.dtype_for(tokenizer.vocab_size)
        self._tokenizer = tokenizer
        self._idle: collections.deque[Encoder] = collections.deque()
        self._lock = threading.Lock()
        self._first_encoder: Encoder | None = None
        self._text_bytes = 0

    def encode(self, text: str) -> Ids:
        """The ids of a text, of shape [tokens] and `dtype`, without an end of the document. Much text at once, or in
        all, is encoded by compiled code: the call may then compile for 5 s.

        Raises BadData for a text with half of a surrogate pair, which UTF-8 cannot have, or with a special token that the
        tokenizer was loaded to reject.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Iterable[str]) -> list[Ids]:
        """Encode texts, much faster than a call for each text. Raises as `encode`; errors number the texts."""
        if isinstance(texts, str):
            raise TypeError("encode_batch takes several texts; encode takes one")
        encoded = Texts.from_list([_utf8(text, number) for number, text in enumerate(texts)])
        shared_encoder = self._uncompiled_encoder(encoded)
        try:
            encoder = shared_encoder or self._idle.pop()
        except IndexError:
            encoder = self._new_encoder()
        forbidden = encoder.forbidden(encoded)
        if not forbidden:
            ids, lengths = encoder.encode(encoded)
        # One that was interrupted is not used again.
        if shared_encoder is None:
            self._idle.append(encoder)
        if forbidden:
            raise BadData(f"text {forbidden[0].text}: {forbidden[0]}", "special_tokens='text' and 'parse' encode it")
        # A copy: the encoder may use its buffer again.
        return np.split(np.array(ids, self.dtype), np.cumsum(lengths)[:-1]) if len(lengths) else []

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        """The text of the ids, integers of shape [tokens]; bytes that are no UTF-8, as half of a character is, become U+FFFD.

        Raises BadData for an id that the tokenizer does not have.
        """
        numbers = np.asarray(ids)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise TypeError(f"ids of shape {list(numbers.shape)} and dtype {numbers.dtype}; expected integers of shape [tokens]")
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.vocab_size:
            wrong = int(numbers.min()) if int(numbers.min()) < 0 else int(numbers.max())
            raise BadData(f"token id {wrong} is not in the vocabulary of {self.vocab_size:,}")
        return self._tokenizer.decode(numbers.tolist()).decode("utf-8", "replace")

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process loads it from its files, as `datasets.map(num_proc=...)` needs."""
        return load_tokenizer, self._loaded_from

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"<TextTokenizer {self.name}: {self.vocab_size:,} entries, {self.dtype}>"

    def _uncompiled_encoder(self, texts: Texts) -> Encoder | None:
        """The encoder of all threads until so much text has come that compiling is worth it; None from then on."""
        if self._text_bytes > self_check.FEW_BYTES:
            return None
        with self._lock:
            if self._text_bytes == 0:
                self._first_encoder = self._tokenizer.uncompiled_encoder()
            self._text_bytes += 1 + int(texts.offsets[-1])
            if self._text_bytes > self_check.FEW_BYTES:
                self._first_encoder = None
            return self._first_encoder

    def _new_encoder(self) -> Encoder:
        from lt_preprocess.compiler import jit

        with self._lock:
            return jit.apart(self._tokenizer.new_encoder)


def load_tokenizer(path_or_name: str | os.PathLike[str], special_tokens: SpecialTokens = "text") -> TextTokenizer:
    """Load a tokenizer as `lt-preprocess --tokenizer`: a directory, one of its files, or a name such as llama3.

    `special_tokens` decides about special tokens that are written out in a text, like the option with that name: "text" encodes
    them as any other text, "parse" as the tokens, and "reject" raises BadData.

    Raises: NoInput if the tokenizer does not exist, BadData for malformed or unsupported files, UsageError for an empty path.
    """
    if special_tokens not in get_args(SpecialTokens):
        raise UsageError(f"special_tokens {special_tokens!r} is not one of {', '.join(get_args(SpecialTokens))}")
    path_text = os.fspath(path_or_name)
    if not path_text:
        # To pathlib it is the working directory.
        raise UsageError("an empty path", "is a variable not set?")
    # Files are read later, too, perhaps from another directory.
    place = os.path.abspath(path_text) if os.path.exists(path_text) else path_text
    files = tokenizer_files.find(place)
    return TextTokenizer(loading.load(files, special_tokens), files.name, files.sha256(), (place, special_tokens))


def _utf8(text: str, number: int) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"text {number} is {type(text).__name__}; expected str")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise BadData(
            f"text {number}: the character at {error.start} is U+{code:04X}, half of a surrogate pair",
            "text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace') joins pairs and replaces halves",
        ) from None
