"""Tokenizers that run in their defining libraries: for files that the compiled encoder does not cover, and for its checks.

The libraries work without the GIL, so a call per thread scales like the compiled encoder. Every default that changes documents is
switched off: special tokens added or recognised in the text, truncation and padding.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lt_preprocess.texts import Lengths, Texts
from lt_preprocess.tokenizers.base import Encoder, Ids, Tokenizer
from lt_preprocess.tokenizers.files import directories, json_files, json_models
from lt_preprocess.tokenizers.tokenizers_package import Library
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


class HuggingFaceEncoder(Encoder):
    def __init__(self, library: Library):
        self._library = library

    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        return self._library.encode([text.decode() for text in texts.to_list()])


class HuggingFace(_Noting):
    """A tokenizer.json. Added tokens that are not special are matched in the text, as its author meant.

    Without a `reason` it stands for the `compiled` tokenizer, whose reader knows the normalizer.
    """

    def __init__(self, files: TokenizerFiles, parse: bool, reason: str | None = None, compiled: Tokenizer | None = None):
        path = files.files[0]
        super().__init__(path, reason)
        changed = directories.additions(files)
        content = changed or json_files.read_object(path)
        if reason is not None:
            json_models.check_normalizer(path, content.get("normalizer"))
            json_models.check_dropout(path, content.get("model"))
        self._library = Library(path, changed, parse)
        try:
            ids, self._added = _tokens(path, content, self._library)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise BadData(f"{path}: not a tokenizer: {type(error).__name__} {error}") from None
        if not parse:
            _check_special_tokens(path, self._library, self._added, content["model"])
        self.vocab_size = compiled.vocab_size if compiled else max(ids.values(), default=-1) + 1
        if not 0 < self.vocab_size <= 2**31:
            raise BadData(f"{path}: its vocabulary has ids up to {self.vocab_size - 1:,}")
        self.special_tokens = {token["content"]: number for number, token in self._added.items() if token.get("special")}
        eos_token = files.configuration().eos_token
        self.eod = compiled.eod if compiled else json_models.end_of_document_id(path, ids, self.special_tokens, eos_token)
        self._is_byte_level = (content.get("decoder") or {}).get("type") == "ByteLevel"
        self._bytes: Mapping[int, bytes] | None = None
        self._ids = ids

    def new_encoder(self) -> HuggingFaceEncoder:
        self._note()
        return HuggingFaceEncoder(self._library)

    def decode(self, ids: Sequence[int] | Ids) -> bytes:
        numbers = np.asarray(ids).tolist()
        if self._bytes is None:
            added = {number: token["content"].encode() for number, token in self._added.items()}
            self._bytes = token_bytes(self._ids) | added
        if any(number not in self._bytes for number in set(numbers)):
            raise _not_in_vocabulary(numbers, self.vocab_size)
        if not self._is_byte_level:
            return self._library.decode(numbers).encode()
        return b"".join([self._bytes[number] for number in numbers])


def _tokens(path: Path, content: dict[str, Any], library: Library) -> tuple[dict[str, int], dict[int, dict[str, Any]]]:
    """Every token with its id, and the added tokens by id.

    An id that the file states counts if the package has it; else the one that the package counts, by the order of the file.
    Versions count differently where the two disagree. The package shows a normalized token in its normal form.
    """
    vocab = content["model"]["vocab"]
    ids = dict(vocab) if isinstance(vocab, dict) else {entry[0]: number for number, entry in enumerate(vocab)}
    following, taken = len(ids), set(ids.values())

    def is_of(token: dict[str, Any], number: int) -> bool:
        shown = library.token(number)
        return shown == token["content"] or (bool(token.get("normalized")) and shown is not None and number not in taken)

    added: dict[int, dict[str, Any]] = {}
    for token in content.get("added_tokens") or []:
        text = token["content"]
        if not text:
            continue
        candidates = (ids.get(text), token.get("id"), following)
        number = next((one for one in candidates if one is not None and is_of(token, one)), None)
        if number is None:
            raise BadData(
                f"{path}: the tokenizers package gives its added token {text} another id than the file, {token.get('id')}",
                "save it again with transformers",
            )
        following = max(following, number + 1)
        ids[text] = number
        taken.add(number)
        added[number] = token
    return ids, added


def _check_special_tokens(path: Path, library: Library, added: Mapping[int, dict[str, Any]], model: dict[str, Any]) -> None:
    """A model may hold a special token as an ordinary entry and find it in text; the unknown token is no danger."""
    for number, token in added.items():
        if not token.get("special"):
            continue
        text = token["content"]
        is_found = number in library.encode([text], text)[0]
        if is_found and text != _unknown_token(model):
            raise BadData(
                f"{path}: text that reads {text} would become that special token",
                "use the model's SentencePiece or tiktoken file, or --special-tokens parse",
            )


def _unknown_token(model: dict[str, Any]) -> str | None:
    """Return the unknown token of a model: named by its text, or in a Unigram model by its id."""
    number = model.get("unk_id")
    token: str | None = model.get("unk_token") if number is None else model["vocab"][number][0]
    return token
