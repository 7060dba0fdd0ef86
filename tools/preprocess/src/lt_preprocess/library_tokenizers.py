"""SentencePiece models and tokenizer.json, encoded by the libraries that define them.

Both libraries work without the GIL, so one call per thread scales as the compiled encoder does. Whatever a library does by
default that changes documents is switched off: special tokens added or recognised in the text, truncation and padding.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from lt_preprocess.tokenizer import Encoder, Ids, Lengths, Texts, Tokenizer
from lt_shared.console import BadData
from lt_shared.tokenizer_files import TokenizerFiles

END_OF_DOCUMENT_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


def _joined(texts_ids: list[list[int]]) -> tuple[Ids, Lengths]:
    lengths = np.array([len(ids) for ids in texts_ids], np.int64)
    flat = (number for ids in texts_ids for number in ids)
    return np.fromiter(flat, np.int32, int(lengths.sum())), lengths


class SentencePieceEncoder(Encoder):
    def __init__(self, processor: Any):
        self._processor = processor

    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        return _joined(self._processor.encode([text.decode() for text in texts.to_list()], out_type=int, num_threads=1))


class SentencePiece(Tokenizer):
    """A SentencePiece model. Control symbols (`<s>`, `</s>`) in a text are ordinary text; user-defined symbols are matched."""

    def __init__(self, files: TokenizerFiles):
        import sentencepiece

        path = files.files[0]
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
        except RuntimeError:
            raise BadData(f"{path}: not a SentencePiece model", "is the file truncated?") from None
        self.vocab_size = self._processor.get_piece_size()
        eos = self._processor.eos_id()
        self.eod = eos if eos >= 0 else None

    def new_encoder(self) -> SentencePieceEncoder:
        return SentencePieceEncoder(self._processor)


class HuggingFaceEncoder(Encoder):
    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer

    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        encodings = self._tokenizer.encode_batch_fast([text.decode() for text in texts.to_list()], add_special_tokens=False)
        return _joined([encoding.ids for encoding in encodings])


class HuggingFace(Tokenizer):
    """A tokenizer.json. Added tokens that are not special are matched in the text, as its author meant."""

    def __init__(self, files: TokenizerFiles):
        # The library's own pool would compete with this tool's threads; it reads the variable at the first call.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        import tokenizers

        path = files.files[0]
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises nothing narrower
            raise BadData(f"{path}: not a tokenizer: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self._check_special_tokens(path)
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.eod = self._end_of_document(files.companions)

    def _check_special_tokens(self, path: Path) -> None:
        """A model may hold a special token as an ordinary entry and find it in text; the unknown token is no danger."""
        for number, token in self._tokenizer.get_added_tokens_decoder().items():
            if not token.special or number not in self._tokenizer.encode(token.content, add_special_tokens=False).ids:
                continue
            if token.content != _unknown_token(path):
                raise BadData(
                    f"{path}: text that reads {token.content} would become that special token",
                    "use the model's SentencePiece or tiktoken file instead",
                )

    def _end_of_document(self, companions: tuple[Path, ...]) -> int | None:
        for path in companions:
            if path.name == "tokenizer_config.json":
                name = _eos_token(path)
                if name is not None:
                    number: int | None = self._tokenizer.token_to_id(name)
                    if number is None:
                        raise BadData(f"{path}: eos_token {name} is not in the vocabulary")
                    return number
        numbers = (self._tokenizer.token_to_id(name) for name in END_OF_DOCUMENT_NAMES)
        return next((number for number in numbers if number is not None), None)

    def new_encoder(self) -> HuggingFaceEncoder:
        return HuggingFaceEncoder(self._tokenizer)


def _unknown_token(path: Path) -> str | None:
    """The token for what the model has no other for: named by itself, or in a Unigram model by its place."""
    model: dict[str, Any] = json.loads(path.read_bytes())["model"]
    number = model.get("unk_id")
    token: str | None = model.get("unk_token") if number is None else model["vocab"][number][0]
    return token


def _eos_token(path: Path) -> str | None:
    try:
        configuration = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadData(f"{path}: not JSON: {error}") from None
    token = configuration.get("eos_token") if isinstance(configuration, dict) else None
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
