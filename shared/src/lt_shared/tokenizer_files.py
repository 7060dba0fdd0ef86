"""Which files make a tokenizer, what kind it is, and the hash that identifies it.

A dataset's tokens mean nothing without the tokenizer that made them. The hash travels in every manifest and checkpoint, so a
run on data from another tokenizer is refused instead of trained. It covers the content of the files that define the encoding,
not their paths: the same tokenizer has the same hash on every machine.
"""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Literal

from lt_shared import storage
from lt_shared.console import BadData, NoInput

Kind = Literal["gpt2", "tiktoken", "sentencepiece", "tokenizer.json"]

COMPANIONS = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


@dataclasses.dataclass(frozen=True)
class TokenizerFiles:
    """The files of one tokenizer. `files` define the encoding, in a fixed order; `companions` only describe it."""

    kind: Kind
    files: tuple[Path, ...]
    companions: tuple[Path, ...]

    @property
    def directory(self) -> Path:
        return self.files[0].parent

    @property
    def name(self) -> str:
        """A short name for people: that of the directory."""
        return self.directory.resolve().name or self.files[0].name

    def sha256(self) -> str:
        """Hash of the kind and of every defining file's content."""
        digest = hashlib.sha256(self.kind.encode())
        for path in self.files:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    def copy_to(self, directory: Path) -> None:
        """Copy all files into `directory`, each appearing whole."""
        directory.mkdir(parents=True, exist_ok=True)
        for path in (*self.companions, *self.files):
            storage.write_bytes(directory / path.name, path.read_bytes())


def find(path: str | Path) -> TokenizerFiles:
    """Recognise the tokenizer at `path`: a directory, or one of its files.

    In a directory, a SentencePiece or tiktoken `tokenizer.model` comes before `tokenizer.json`, and that before GPT-2's
    `vocab.json` + `merges.txt`: a directory that holds the last two kinds (Qwen, for instance) may use another pre-tokenizer
    than GPT-2, and only `tokenizer.json` says so.

    Raises: NoInput when nothing is there, BadData when the files are not a tokenizer that is known here.
    """
    place = Path(path)
    if place.is_dir():
        for name in ("tokenizer.model", "tokenizer.json", "vocab.json"):
            if (place / name).is_file():
                return find(place / name)
        raise NoInput(
            f"{place}: no tokenizer in this directory",
            "expected tokenizer.model, tokenizer.json, or vocab.json with merges.txt",
        )
    if not place.is_file():
        raise NoInput(f"{place}: no such tokenizer file or directory")
    companions = tuple(found for name in COMPANIONS if (found := place.parent / name).is_file())
    if place.name == "tokenizer.json" or (place.suffix == ".json" and _is_tokenizer_json(place)):
        return TokenizerFiles("tokenizer.json", (place,), companions)
    if place.suffix in (".json", ".txt", ".bpe"):
        return TokenizerFiles("gpt2", _gpt2_pair(place), companions)
    return TokenizerFiles(_model_kind(place), (place,), companions)


def _is_tokenizer_json(path: Path) -> bool:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadData(f"{path}: not JSON: {error}") from None
    return isinstance(content, dict) and isinstance(content.get("model"), dict)


def _gpt2_pair(path: Path) -> tuple[Path, Path]:
    """The vocabulary and the merges of a GPT-2 tokenizer, given either of the two."""
    pairs = (("vocab.json", "merges.txt"), ("gpt2-vocab.json", "gpt2-merges.txt"), ("encoder.json", "vocab.bpe"))
    for vocabulary, merges in pairs:
        if path.name in (vocabulary, merges):
            for part in (path.parent / vocabulary, path.parent / merges):
                if not part.is_file():
                    raise NoInput(f"{part}: missing, needed beside {path.name} for a GPT-2 tokenizer")
            return path.parent / vocabulary, path.parent / merges
    raise BadData(
        f"{path}: not a tokenizer that is known here",
        "a GPT-2 vocabulary is vocab.json + merges.txt (or gpt2-vocab.json + gpt2-merges.txt, encoder.json + vocab.bpe)",
    )


def _model_kind(path: Path) -> Kind:
    """Tell a tiktoken file (lines of "base64 rank") from a SentencePiece protobuf."""
    with path.open("rb") as file:
        first_line = file.readline(4096)
    fields = first_line.split()
    if len(fields) == 2 and fields[1].isdigit() and first_line.endswith(b"\n"):
        return "tiktoken"
    if first_line[:1] == b"\n":
        return "sentencepiece"
    raise BadData(f"{path}: neither a tiktoken file nor a SentencePiece model")
