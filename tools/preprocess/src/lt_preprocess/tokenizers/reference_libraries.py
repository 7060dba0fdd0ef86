"""Tokenizers that run in their defining libraries: for files that the compiled encoder does not cover, and for its checks.

The libraries work without the GIL, so a call per thread scales like the compiled encoder. Every default that changes documents is
switched off: special tokens added or recognised in the text, truncation and padding.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lt_preprocess.texts import Lengths, Texts
from lt_preprocess.tokenizers.base import Encoder, Ids, Tokenizer
from lt_preprocess.tokenizers.files import directories, json_files, json_models
from lt_preprocess.tokenizers.vocabulary import token_bytes
from lt_shared.console import BadData, note
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles


def _joined(texts_ids: list[list[int]]) -> tuple[Ids, Lengths]:
    lengths = np.array([len(ids) for ids in texts_ids], np.int64)
    flat = (number for ids in texts_ids for number in ids)
    return np.fromiter(flat, np.int32, int(lengths.sum())), lengths


def _not_in_vocabulary(ids: Sequence[int], vocab_size: int) -> BadData:
    number = next(number for number in ids if not 0 <= number < vocab_size)
    return BadData(f"token id {number} is not in the vocabulary of {vocab_size:,}")


class _Noting(Tokenizer):
    """Tells the user once, when encoding begins, that and why a library does it."""

    def __init__(self, path: Path, reason: str | None):
        self._path = path
        self._reason = reason

    def _note(self) -> None:
        if self._reason is not None:
            note(f"{self._path}: {self._reason}; its library encodes, at a few MB a second and thread")
            self._reason = None


class SentencePieceEncoder(Encoder):
    def __init__(self, processor: Any):
        self._processor = processor

    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        return _joined(self._processor.encode([text.decode() for text in texts.to_list()], out_type=int, num_threads=1))


class SentencePiece(_Noting):
    """A SentencePiece model. Control symbols (`<s>`, `</s>`) in a text are ordinary text; user-defined symbols are matched."""

    def __init__(self, files: TokenizerFiles, reason: str | None = None):
        import sentencepiece

        path = files.files[0]
        super().__init__(path, reason)
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
        except RuntimeError:
            raise BadData(f"{path}: not a SentencePiece model", "is the file truncated?") from None
        self.vocab_size = self._processor.get_piece_size()
        eos = self._processor.eos_id()
        self.eod = eos if eos >= 0 else None
        controls = (number for number in range(self.vocab_size) if self._processor.is_control(number))
        self.special_tokens = {self._processor.id_to_piece(number): number for number in controls}

    def new_encoder(self) -> SentencePieceEncoder:
        self._note()
        return SentencePieceEncoder(self._processor)

    def decode(self, ids: Sequence[int] | Ids) -> bytes:
        numbers = np.asarray(ids).tolist()
        try:
            decoded: bytes = self._processor.decode(numbers).encode()
        except IndexError:
            raise _not_in_vocabulary(numbers, self.vocab_size) from None
        if "\ufffd".encode() not in decoded:
            return decoded
        exact = b"".join(map(self._piece_bytes, numbers))
        while exact.startswith(b" ") and not decoded.startswith(b" "):
            exact = exact[1:]
        return exact

    def _piece_bytes(self, number: int) -> bytes:
        piece: str = self._processor.id_to_piece(number)
        if self._processor.is_byte(number):
            return bytes([int(piece[3:5], 16)])
        if self._processor.is_control(number):
            return b""
        if self._processor.is_unknown(number):
            return bytes(self._processor.decode([number]).encode())
        return piece.replace("\u2581", " ").encode()


@contextlib.contextmanager
def _failures(path: Path, what: str) -> Iterator[None]:
    """Turn the library's errors into BadData. They are plain Exceptions, or pyo3's exception for a panic."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise BadData(f"{path}: {what}: {error}") from None


class HuggingFaceEncoder(Encoder):
    def __init__(self, path: Path, tokenizer: Any):
        self._path = path
        self._tokenizer = tokenizer

    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        contents = [text.decode() for text in texts.to_list()]
        with _failures(self._path, "its library cannot encode a text"):
            encodings = self._tokenizer.encode_batch_fast(contents, add_special_tokens=False)
        return _joined([encoding.ids for encoding in encodings])


class HuggingFace(_Noting):
    """A tokenizer.json. Added tokens that are not special are matched in the text, as its author meant.

    Without a `reason` it stands for the `compiled` tokenizer, whose reader knows the normalizer.
    """

    def __init__(self, files: TokenizerFiles, parse: bool, reason: str | None = None, compiled: Tokenizer | None = None):
        path = files.files[0]
        super().__init__(path, reason)
        changed = directories.additions(files)
        if reason is not None:
            content = changed or json_files.read_object(path)
            json_models.check_normalizer(path, content.get("normalizer"))
            json_models.check_dropout(path, content.get("model"))
        self._tokenizer = _read(path, path.read_bytes() if changed is None else _json_bytes(changed))
        self._tokenizer.encode_special_tokens = not parse
        if not parse:
            _check_special_tokens(path, self._tokenizer, changed)
        # All tokens of the library take half a second to list.
        ids = {} if compiled else self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = compiled.vocab_size if compiled else max(ids.values(), default=-1) + 1
        if not 0 < self.vocab_size <= 2**31:
            raise BadData(f"{path}: its vocabulary has ids up to {self.vocab_size - 1:,}")
        self._added = dict(self._tokenizer.get_added_tokens_decoder())
        self.special_tokens = {token.content: number for number, token in self._added.items() if token.special}
        eos_token = files.configuration().eos_token
        self.eod = compiled.eod if compiled else json_models.end_of_document_id(path, ids, self.special_tokens, eos_token)
        self._bytes: Mapping[int, bytes] | None = None

    def new_encoder(self) -> HuggingFaceEncoder:
        self._note()
        return HuggingFaceEncoder(self._path, self._tokenizer)

    def decode(self, ids: Sequence[int] | Ids) -> bytes:
        numbers = np.asarray(ids).tolist()
        if any(self._tokenizer.id_to_token(number) is None for number in set(numbers)):
            raise _not_in_vocabulary(numbers, self.vocab_size)
        if type(self._tokenizer.decoder).__name__ != "ByteLevel":
            decoded: str = self._tokenizer.decode(numbers, skip_special_tokens=False)
            return decoded.encode()
        if self._bytes is None:
            added = {number: token.content.encode() for number, token in self._added.items()}
            self._bytes = token_bytes(self._tokenizer.get_vocab(with_added_tokens=False)) | added
        return b"".join([self._bytes[number] for number in numbers])


def _json_bytes(content: dict[str, Any]) -> bytes:
    import orjson

    try:
        return orjson.dumps(content)
    except orjson.JSONEncodeError:
        # Half of a surrogate pair in a token.
        return json.dumps(content).encode()


def _read(path: Path, content: bytes) -> Any:
    # The library's own pool would compete with this tool's threads; it reads the variable at the first call.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    with _failures(path, "not a tokenizer"):
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _check_special_tokens(path: Path, tokenizer: Any, changed: dict[str, Any] | None) -> None:
    """A model may hold a special token as an ordinary entry and find it in text; the unknown token is no danger."""
    for number, token in tokenizer.get_added_tokens_decoder().items():
        if not token.special:
            continue
        with _failures(path, f"its library cannot encode {token.content}"):
            is_found = number in tokenizer.encode(token.content, add_special_tokens=False).ids
        if is_found and token.content != _unknown_token((changed or json_files.read_object(path))["model"]):
            raise BadData(
                f"{path}: text that reads {token.content} would become that special token",
                "use the model's SentencePiece or tiktoken file, or --special-tokens parse",
            )


def _unknown_token(model: dict[str, Any]) -> str | None:
    """Return the unknown token of a model: named by its text, or in a Unigram model by its id."""
    number = model.get("unk_id")
    token: str | None = model.get("unk_token") if number is None else model["vocab"][number][0]
    return token
