"""Compare an encoder with the library that defines the tokenizer, before any document depends on it.

A tokenizer that is read wrongly gives ids that look right. So before the first text, both encode a sample of difficult text
(scripts, white space, digits, contractions, combining marks, control characters, added tokens of each kind in all positions, and
the code points of all scripts, because a newer library knows a newer Unicode); when the ids differ, the library
is used, and a warning says so. That costs up to a second, mostly for the library to read its file. A check that was passed is
recorded beside the compiled code, until this package, the library or the tokenizer changes.
"""

import contextlib
import functools
import hashlib
import unicodedata
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers.base import Encoder, Tokenizer, Wrapper
from lt_preprocess.tokenizers.files import json_files
from lt_preprocess.tokenizers.vocabulary import AddedToken
from lt_shared import memory
from lt_shared.console import BadData, warn
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

_SAMPLE = (
    "The quick brown fox doesn't jump over 12345 lazy dogs; it's HE'LL, we've, I'd 'twas 'S.",
    "  two  leading\n\n\n and\ttabs \r\n\r\n  trailing   ",
    " \n \n  x\n  \t\n",
    "def f(x):\n    return {'a': [x**2 for _ in range(1000)], \"b\": 0x1F} != None  # ...\n\n\n",
    "https://example.com/a/b?c=d&e=f#g user@example.org 3.14159 1,000,000 2026-01-02T03:04:05Z",
    "Stra\xdfe na\xefve caf\xe9 \u0130stanbul \u017fo '\u017f it'\u017f",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u0393\u03b5\u03b9\u03ac \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "\u4eca\u65e5\u306f\u4e16\u754c\u3002\u3000\uff11\uff12\uff13",
    "\uc548\ub155\ud558\uc138\uc694 \u4f60\u597d\uff0c\u4e16\u754c\uff01",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0ba4\u0bae\u0bbf\u0bb4\u0bcd",
    "\u09ac\u09be\u0982\u09b2\u09be \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "e\u0301 e\u0323\u0302 a\u0300\u0323 \u1112\u1161\u11ab \u212b \ufb01 \u0958 \u09c7\u09be",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \U0001f1f0\U0001f1f7 \U0001d54f\U00020000",
    "\0 \x01\x1c\x1f\x7f\x85\xa0\u200b\u2028\ufeff\ufffd\U0010ffff",
    "\u0663\u0664\u0665 \xb2\xbd\u2167 1a2b3c 007 1234567890123",
    "====----____++++ !!! ... ??? \u2014\u2014 \u201cquoted\u201d /* // */ <br/> </s> [INST] <|endoftext|>",
    "supercalifragilisticexpialidocious" * 4 + " " + "ab" * 100 + " " * 40 + "camelCaseHTTPServer XML\xc9tat",
)


_TOKENS_OF_A_KIND = 40
_LAST_SCRIPTS = 0x20000
_LONG_RANGES = ((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xAC00, 0xD7A4), (0xD800, 0xF900), (0x17000, 0x18D80), (0x1B180, 0x1BC00))
_POINTS_IN_A_TEXT = 256
_SHORT_RUNS = 3
FEW_BYTES = 1 << 18
"""So much text is encoded by the library in a fraction of the time that compiling takes."""


class Checked(Wrapper):
    """A compiled tokenizer, or the `library`'s where the two disagree. The library's is loaded only when needed.

    `added` are tokens that are looked for in every text.
    """

    def __init__(
        self,
        fast: Tokenizer,
        library: Callable[[], Tokenizer],
        files: TokenizerFiles,
        options: str = "",
        added: Sequence[AddedToken] = (),
    ):
        super().__init__(fast)
        self._library = library
        self._files = files
        self._sha256 = files.sha256()
        self._options = options
        self._added = added
        self._chosen: Tokenizer | None = None

    def new_encoder(self) -> Encoder:
        if self._chosen is None:
            self._chosen = self._choose()
        return self._chosen.new_encoder()

    def uncompiled_encoder(self) -> Encoder | None:
        marker = self._marker()
        if not self.needs_library():
            return None
        if marker is not None:
            # Each short run reads the library's file again, and compiling is done once: a few runs are quicker without it.
            runs = marker.with_name(marker.name.replace("agrees", "short"))
            if runs.exists() and runs.stat().st_size >= _SHORT_RUNS:
                return None
            with contextlib.suppress(OSError), runs.open("ab") as file:
                file.write(b".")
        return self._reference.new_encoder()

    def needs_library(self) -> bool:
        """Whether the library is still needed to check the compiled encoder."""
        marker = self._marker()
        return self._chosen is None and (marker is None or not marker.exists())

    @functools.cached_property
    def _reference(self) -> Tokenizer:
        if self._files.sha256() != self._sha256:
            raise BadData(f"{self._files.files[0]}: the tokenizer has changed since it was loaded", "load it again")
        try:
            with memory.garbage_collection_paused():
                return self._library()
        finally:
            json_files.release_files()

    def _choose(self) -> Tokenizer:
        marker = self._marker()
        if marker is not None and marker.exists():
            return self._wrapped
        library = self._reference
        if not _agree(self._wrapped.new_encoder(), library.new_encoder(), self._sample()):
            warn(
                f"{self._files.files[0]}: the compiled encoder and the reference give different ids for a sample; "
                "the reference encodes, at a few MB a second"
            )
            return library
        if marker is not None:
            marker.touch()
        return self._wrapped

    def _sample(self) -> Texts:
        names = [*self.special_tokens][:_TOKENS_OF_A_KIND]
        tokens_by_kind: dict[tuple[bool, ...], list[str]] = {}
        for token in self._added:
            tokens_by_kind.setdefault(token[2:], []).append(token.content)
        for contents in tokens_by_kind.values():
            names += contents[:_TOKENS_OF_A_KIND]
        spelled_out = [text for name in dict.fromkeys(names) for text in _in_all_positions(name)]
        return Texts.from_list([text.encode() for text in (*_SAMPLE, *_SAMPLE[::-1], *spelled_out, *_code_points())])

    def _marker(self) -> Path | None:
        """The empty file that says that this check was passed; None without a cache directory."""
        from lt_preprocess.compiler import jit

        directory = jit.cache_directory()
        if directory is None:
            return None
        state = f"{self._files.sha256()} {self._options} {_versions()}"
        return directory / f"agrees-{hashlib.sha256(state.encode()).hexdigest()[:16]}"


def _in_all_positions(token: str) -> list[str]:
    """Write out a token at the start, in the middle and at the end of texts, twice in a row, and in each Unicode form."""
    texts = [token, f"a {token}b{token}{token} c", f" {token}  {token}\n\u3000{token}\u00e9_{token}1 {token}"]
    forms = dict.fromkeys(unicodedata.normalize(form, token) for form in ("NFC", "NFD", "NFKC", "NFKD"))
    return texts + [f"a{form}b {form}" for form in (*forms, token.upper(), token.lower()) if form != token]


def _code_points() -> list[str]:
    """Write out the code points of all scripts, and a few of each long range of ideographs, syllables or private use."""
    # Ranges instead of a question for each of 131,072 points: that took half of a check's time.
    starts, ends = (0x80, *(last for _, last in _LONG_RANGES)), (*(first for first, _ in _LONG_RANGES), _LAST_SCRIPTS)
    points = [point for start, end in zip(starts, ends, strict=True) for point in range(start, end)]
    points += [point for first, last in (*_LONG_RANGES, (_LAST_SCRIPTS, 0x110000)) for point in range(first, last, 251)]
    scripts = [point for point in points if not 0xD800 <= point < 0xE000]
    return [
        "".join(f" {chr(point)}{chr(point)}1" for point in scripts[start : start + _POINTS_IN_A_TEXT])
        for start in range(0, len(scripts), _POINTS_IN_A_TEXT)
    ]


@functools.cache
def _versions() -> str:
    """Name the library versions that the outcome depends on. The cache directory already identifies this package's source."""
    return " ".join(metadata.version(name) for name in ("tokenizers", "sentencepiece"))


def _agree(fast: Encoder, library: Encoder, texts: Texts) -> bool:
    ids, lengths = fast.encode(texts)
    expected_ids, expected_lengths = library.encode(texts)
    return bool(np.array_equal(lengths, expected_lengths) and np.array_equal(ids, expected_ids))
