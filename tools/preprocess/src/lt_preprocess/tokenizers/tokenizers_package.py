"""Hugging Face's tokenizers package, from 0.20 to 1.0, through what these versions share.

1.0 reads a tokenizer.json and encodes and decodes texts. It lists no tokens, has no parts such as normalizers, and refuses files
that 0.23 reads: its splits are a list of known patterns. So tokens and ids are read from the file.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lt_preprocess.texts import Lengths
from lt_preprocess.tokenizers.base import Ids
from lt_shared.console import BadData, Unavailable
from lt_shared.tokenizers.byte_symbols import SYMBOL_OF_BYTE


class Library:
    """A tokenizer.json, from its `path` or with another `content`. It adds no tokens, cuts nothing off and pads nothing.

    With `parse`, special tokens in a text become tokens. Raises BadData for a file that the package refuses.
    """

    def __init__(self, path: Path, content: Mapping[str, Any] | None, parse: bool):
        # The library's own pool would compete with this tool's threads; it reads the variable at the first call.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        import tokenizers

        self._path = path
        self._version = tokenizers.__version__
        with self._failures("not a tokenizer", "read it"), _file(path, content) as name:
            # The stubs of one version lack the functions of the other.
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(name)
        self._options: dict[str, Any] = {"add_special_tokens": False}
        self._token_of: Callable[[int], str | None]
        if hasattr(self._tokenizer, "no_truncation"):
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self._tokenizer.encode_special_tokens = not parse
            self._encode_batch = self._tokenizer.encode_batch_fast
            self._token_of = self._tokenizer.id_to_token
        else:
            self._options |= {"encode_special_tokens": not parse, "truncation": None, "padding": None}
            self._encode_batch = self._tokenizer.encode_batch
            self._token_of = lambda number: next(iter(self._tokenizer.decode_tokens([number])), None)

    def encode(self, texts: Sequence[str], subject: str = "a text") -> tuple[Ids, Lengths]:
        """Return all texts' ids and each text's number of ids. Raises BadData that names `subject`."""
        with self._failures(f"its library cannot encode {subject}", f"encode {subject}"):
            encodings: list[Any] = self._encode_batch(list(texts), **self._options)
        if not encodings:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        has_arrays = hasattr(encodings[0], "ids_array")
        ids = [encoding.ids_array if has_arrays else np.array(encoding.ids, np.int32) for encoding in encodings]
        return np.concatenate(ids).astype(np.int32), np.array(list(map(len, ids)), np.int64)

    def decode(self, numbers: Sequence[int]) -> str:
        decoded: str = self._tokenizer.decode(list(numbers), skip_special_tokens=False)
        return decoded

    def token(self, number: int) -> str | None:
        """The token that the package has under an id."""
        token: str | None = self._token_of(number)
        return token

    @contextlib.contextmanager
    def _failures(self, problem: str, task: str) -> Iterator[None]:
        """Raise the package's errors as BadData: Exceptions without a class of their own, or pyo3's for a panic.

        Version 1 may refuse a file that is sound, so there the message names the version that cannot do the `task`.
        """
        try:
            yield
        except (AttributeError, TypeError) as error:
            # A function that the package lacks is no fault of the file.
            raise Unavailable(f"tokenizers {self._version} has not the functions of 0.20 to 1.0: {error}", _REMEDY) from None
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            if has_pattern_engine():
                raise BadData(f"{self._path}: {problem}: {error}") from None
            raise BadData(f"{self._path}: tokenizers {self._version} cannot {task}: {error}", _REMEDY) from None


def has_pattern_engine() -> bool:
    """Whether the installed version cuts text by any pattern; 1.0 knows a list of patterns."""
    import tokenizers

    return hasattr(tokenizers, "Regex")


_REMEDY = "pip install 'tokenizers<1'"


@contextlib.contextmanager
def _file(path: Path, content: Mapping[str, Any] | None) -> Iterator[str]:
    """A file with the content; the package's only common way to read is from a file."""
    if content is None:
        yield str(path)
        return
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(_json_bytes(content))
        file.flush()
        yield file.name


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    import orjson

    try:
        return orjson.dumps(content)
    except orjson.JSONEncodeError:
        # Half of a surrogate pair in a token.
        return json.dumps(content).encode()


def normalizer_of_form_c() -> Callable[[str], str]:
    """Return what converts a text to Unicode's normal form C, by the Unicode version of the package."""
    import tokenizers

    if hasattr(tokenizers, "normalizers"):
        normalize: Callable[[str], str] = tokenizers.normalizers.NFC().normalize_str
        return normalize
    # A vocabulary of the 256 bytes without merges: the ids are the bytes of the normalized text.
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {SYMBOL_OF_BYTE[byte]: byte for byte in range(256)}, "merges": []},
    }
    library = Library(Path("normal form C"), content, parse=False)
    return lambda text: library.encode([text])[0].astype(np.uint8).tobytes().decode()
