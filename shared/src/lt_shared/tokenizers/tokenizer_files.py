"""Recognise the files and the kind of a tokenizer, and compute the hash that identifies it.

A dataset's tokens mean nothing without the tokenizer that made them. The hash travels in every manifest and checkpoint, so a
run on data from another tokenizer is refused instead of trained. It covers the content of the files that define the encoding,
not their paths: the same tokenizer has the same hash on every machine.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from lt_shared.console import BadData, NoInput
from lt_shared.files import ownership, storage, strict_json
from lt_shared.tokenizers import configuration
from lt_shared.tokenizers.configuration import Configuration

Kind = Literal["gpt2", "tiktoken", "sentencepiece", "tokenizer.json", "tekken"]

COMPANIONS = (
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json"),
    *("chat_template.jinja", "chat_template.json"),
)
# Folders of further chat templates: transformers' name, and an older one.
TEMPLATE_FOLDERS = ("additional_chat_templates", "chat_templates")
NAMED_FILES = (
    "tokenizer.model",
    "tiktoken.model",
    "tekken.json",
    "tokenizer.json",
    "vocab.json",
    "encoder.json",
    "gpt2-vocab.json",
)
# A model's own file, which can also decide the class of its tokenizer.
MODEL_CONFIGURATION = "config.json"
_BYTE_LEVEL = re.compile(rb'"type"\s*:\s*"ByteLevel"')
# The same tokenizer in another library's files, which some programs load instead: copied, never read here.
OTHER_FORMS = (
    *NAMED_FILES,
    "merges.txt",
    "gpt2-merges.txt",
    "vocab.bpe",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
_BEGINNING_CHARACTERS = 1 << 16
REPOSITORIES = {
    "gpt2": ("openai-community/gpt2", "gpt2"),
    "llama2": ("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-7b"),
    "llama3": ("meta-llama/Meta-Llama-3-8B", "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.2-1B"),
    "llama4": ("meta-llama/Llama-4-Scout-17B-16E",),
    "mistral": ("mistralai/Mistral-7B-v0.1",),
    "mistral-nemo": ("mistralai/Mistral-Nemo-Base-2407",),
    "qwen2": ("Qwen/Qwen2-7B", "Qwen/Qwen2.5-7B", "Qwen/Qwen2-0.5B", "Qwen/Qwen2.5-0.5B"),
    "qwen3": ("Qwen/Qwen3-8B-Base", "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B-Base", "Qwen/Qwen3-0.6B"),
}
"""Repositories of the Hugging Face Hub whose tokenizer a short name means; any of them will do."""


@dataclasses.dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer on disk. `files` define the encoding, in a fixed order; `companions` describe it, and may add tokens.

    `other_forms` hold the same tokenizer for other libraries. They are copied with the tokenizer and never read.
    """

    kind: Kind
    files: tuple[Path, ...]
    companions: tuple[Path, ...]
    other_forms: tuple[Path, ...] = ()

    @property
    def directory(self) -> Path:
        return self.files[0].parent

    @property
    def all_files(self) -> tuple[Path, ...]:
        return (*self.companions, *self.other_forms, *self.files)

    @property
    def name(self) -> str:
        """A short name for people: the directory's name, or the repository's name in the Hub's cache."""
        directory = self.directory.resolve()
        if directory.parent.name == "snapshots" and directory.parent.parent.name.startswith("models--"):
            return directory.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
        return directory.name or self.files[0].name

    def relative_name(self, path: Path) -> str:
        """Return the path of a file relative to `directory`."""
        return path.relative_to(self.directory).as_posix()

    def sha256(self) -> str:
        """Hash the kind, every defining file's content and the companions' additions."""
        return _hash(self, self._state())

    def _state(self) -> tuple[tuple[int, ...], ...]:
        """Tell when the files were written: results about them hold until this changes."""
        paths = (*self.files, *self.companions, self.directory / MODEL_CONFIGURATION)
        states = (os.stat(path) for path in paths if path.exists())
        return tuple((state.st_ino, state.st_size, state.st_mtime_ns) for state in states)

    def _digest(self) -> str:
        digest = hashlib.sha256(self.kind.encode())
        for path in self.files:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        if additions := self._additions():
            digest.update(hashlib.sha256(json.dumps(additions, sort_keys=True).encode()).digest())
        return digest.hexdigest()

    def _additions(self) -> list[Any]:
        """List the companions' additions to the encoding. Companions that repeat the main file do not change the hash."""
        if self.kind not in ("gpt2", "sentencepiece", "tokenizer.json"):
            return []
        config = self.configuration()
        content = self.files[0].read_bytes()
        if self.kind == "tokenizer.json":
            added = config.unlisted_in(content) + config.changed_flags(content)
        else:
            added = config.missing_from(content, quoted=self.kind != "sentencepiece")
            added += [token for token in config.added_tokens if not token["special"] and token not in added]
        prefix: list[Any] = []
        if self.kind == "gpt2" and config.add_prefix_space:
            prefix = ["add_prefix_space"]
        elif self.kind == "sentencepiece" and (config.add_prefix_space is False or (added and config.legacy)):
            prefix = [config.add_prefix_space, bool(config.legacy)]
        elif self.kind == "tokenizer.json" and (changed := config.changed_prefix_spaces(content)):
            prefix = [changed, config.add_prefix_space]
        elif self.kind == "tokenizer.json" and (scheme := config.changed_metaspace(content)):
            prefix = ["prepend_scheme", scheme]
        if self.kind == "tokenizer.json" and config.changed_digits(content):
            prefix.append("digits together")
        return [*added, *prefix]

    def configuration(self) -> Configuration:
        """Read the settings in the companions. Raises BadData as `configuration.read`."""
        return _configuration(self, self._state())

    def _configuration(self) -> Configuration:
        if self.kind != "tokenizer.json":
            return configuration.read(self.companions, self.kind == "sentencepiece")
        return self._configured_by(self.model_configuration())

    def model_configuration(self) -> dict[str, Any]:
        """Read the tokenizer's class from the config.json beside a tokenizer.json; {} without such a file."""
        path = self.directory / MODEL_CONFIGURATION
        config = configuration.read_object(path) if path.is_file() else {}
        return {name: config[name] for name in ("model_type", "tokenizer_class") if config.get(name) is not None}

    def _configured_by(self, model: dict[str, Any]) -> Configuration:
        config = configuration.read(self.companions, model=model)
        # AutoTokenizer does not take LlamaTokenizer for a file that spells bytes: Llama 3, DeepSeek.
        if config.class_name == "LlamaTokenizer" and _is_byte_level(self.files[0]):
            return configuration.read(self.companions, model={"model_type": "mistral"})
        return config

    def contents(self) -> dict[str, bytes]:
        """Return the content of each file to copy, by relative name.

        If config.json decides the class of the tokenizer, a config.json with these settings alone is among them.
        """
        contents = {self.relative_name(path): path.read_bytes() for path in self.all_files}
        model = self.model_configuration() if self.kind == "tokenizer.json" else {}
        if model and self._configured_by(model) != self._configured_by({}):
            contents[MODEL_CONFIGURATION] = (json.dumps(model) + "\n").encode()
        return contents

    def copy_to(self, directory: Path) -> None:
        """Copy all files into `directory`, each appearing whole."""
        for name, content in self.contents().items():
            copy = directory / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            storage.write_bytes(copy, content)


@functools.lru_cache(maxsize=4)
def _hash(files: TokenizerFiles, state: tuple[tuple[int, ...], ...]) -> str:
    return files._digest()


@functools.lru_cache(maxsize=4)
def _configuration(files: TokenizerFiles, state: tuple[tuple[int, ...], ...]) -> Configuration:
    return files._configuration()


def _is_byte_level(path: Path) -> bool:
    """Whether a tokenizer.json spells bytes. In most files the pre-tokenizer stands before the vocabulary."""
    content = path.read_bytes()
    vocabulary = content.find(b'"vocab"')
    return _BYTE_LEVEL.search(content, 0, vocabulary) is not None or _BYTE_LEVEL.search(content, vocabulary) is not None


def find(path: str | Path) -> TokenizerFiles:
    """Recognise the tokenizer at `path`: a directory, one of its files, or the name of a tokenizer (see `search_path`).

    In a directory, a tiktoken `tokenizer.model` comes first, then `tekken.json`, then `tokenizer.json`, then a SentencePiece
    `tokenizer.model`, then GPT-2's `vocab.json` + `merges.txt`. A tokenizer.json comes before the SentencePiece model that it was
    made from, as in transformers: it has the added tokens. In a directory with `tokenizer.json` and GPT-2's files (Qwen, for
    instance) the pre-tokenizer may not be GPT-2's, and only `tokenizer.json` says so.

    Raises: NoInput when nothing is there, BadData when the files are not a tokenizer that is known here.
    """
    place = Path(path)
    if not place.exists():
        return find(_named(str(path)))
    if place.is_dir():
        for name in NAMED_FILES:
            if (place / name).is_file() and not (name == "tokenizer.model" and _is_replaced(place)):
                return find(place / name)
        ranks = sorted(place.glob("*.tiktoken"))
        if len(ranks) == 1:
            return find(ranks[0])
        raise NoInput(
            f"{place}: {'several' if ranks else 'no'} tokenizer{'s' if ranks else ''} in this directory",
            "name the file"
            if ranks
            else "expected tokenizer.model, tekken.json, one *.tiktoken, tokenizer.json, or vocab.json with merges.txt",
        )
    if not place.is_file():
        raise BadData(f"{place}: not a regular file")
    companions = _companions(place.parent)
    if place.name == "tokenizer.json":
        return _with_other_forms(TokenizerFiles("tokenizer.json", (place,), companions))
    if place.suffix == ".json":
        kind = _json_kind(place)
        if kind is not None:
            return _with_other_forms(TokenizerFiles(kind, (place,), companions))
    if place.suffix in (".json", ".txt", ".bpe"):
        return _with_other_forms(TokenizerFiles("gpt2", _gpt2_pair(place), companions))
    kind = _model_kind(place)
    # The code beside a tiktoken file says how the text is cut, which the file itself does not.
    code = sorted(place.parent.glob("tokenization_*.py")) if kind == "tiktoken" else []
    return _with_other_forms(TokenizerFiles(kind, (place, *code), companions))


def find_made_with(path: str | Path, sha256: str) -> TokenizerFiles:
    """Find a tokenizer like `find`. If a directory has several tokenizers, prefer the one with this hash.

    Before 2026-11-29 a SentencePiece model came before a tokenizer.json beside it.
    """
    preferred = find(path)
    place = Path(path)
    if not place.is_dir() or preferred.sha256() == sha256:
        return preferred
    for name in NAMED_FILES:
        if (place / name).is_file():
            with contextlib.suppress(BadData, NoInput):
                other = find(place / name)
                if other.sha256() == sha256:
                    return other
    return preferred


def _is_replaced(directory: Path) -> bool:
    """Whether the SentencePiece model of a directory has been made into a tokenizer.json."""
    if not (directory / "tokenizer.json").is_file():
        return False
    try:
        return _model_kind(directory / "tokenizer.model") == "sentencepiece"
    except BadData:
        return False


def _with_other_forms(tokenizer: TokenizerFiles) -> TokenizerFiles:
    """Add the files of other libraries to `tokenizer` and check the links among all files.

    Raises BadData for a link that another user made, because all files are copied into checkpoints that others may read.
    """
    paths = (tokenizer.directory / name for name in OTHER_FORMS)
    tokenizer = dataclasses.replace(
        tokenizer, other_forms=tuple(path for path in paths if path.is_file() and path not in tokenizer.files)
    )
    for path in tokenizer.all_files:
        ownership.check_link(path)
    return tokenizer


def _companions(directory: Path) -> tuple[Path, ...]:
    """The files that describe the tokenizer in a directory, with its chat templates."""
    beside = (path for name in COMPANIONS if (path := directory / name).is_file())
    templates = (path for folder in TEMPLATE_FOLDERS for path in sorted((directory / folder).glob("*.jinja")) if path.is_file())
    return (*beside, *templates)


def search_path() -> list[Path]:
    """Return the directories for look-ups by name: LT_TOKENIZERS, then the user's data directory."""
    directories = [Path(part).expanduser() for part in os.environ.get("LT_TOKENIZERS", "").split(os.pathsep) if part]
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    return [*directories, data / "lt/tokenizers"]


def hub_directory() -> Path:
    """Return the download cache of Hugging Face's tools."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def _named(name: str) -> Path:
    """The directory or file of the tokenizer called `name`; a repository of the Hub is a name too."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or {".", ".."} & set(name.split("/")):
        raise NoInput(f"{name}: no such tokenizer file or directory")
    for directory in search_path():
        for candidate in (name, f"{name}.model", f"{name}.tiktoken", f"{name}.json"):
            if (directory / candidate).exists():
                return directory / candidate
    repositories = REPOSITORIES.get(name, (name,))
    for repository in repositories:
        for snapshot in _snapshots(repository):
            if any((snapshot / file).is_file() for file in NAMED_FILES):
                return snapshot
    looked_in = ", ".join(map(str, [*search_path(), hub_directory()]))
    raise NoInput(
        f"{name}: no such file, directory or tokenizer; looked for the name in {looked_in}",
        f"put its files in {search_path()[-1] / name}, or: hf download {repositories[0]} --include '*token*' 'vocab*' 'merges*'",
    )


def _snapshots(repository: str) -> Iterator[Path]:
    """List the downloaded versions of a repository: the main branch first, then from the newest."""
    directory = hub_directory() / f"models--{repository.replace('/', '--')}"
    main = directory / "refs/main"
    if main.is_file():
        yield directory / "snapshots" / main.read_text(encoding="utf-8").strip()
    versions = [path for path in (directory / "snapshots").glob("*") if path.is_dir()]
    yield from sorted(versions, key=lambda path: path.stat().st_mtime, reverse=True)


def _json_kind(path: Path) -> Kind | None:
    """Return the tokenizer kind of a JSON file by its content, or None if it may be a vocabulary."""
    if _begins_as_tekken(path):
        return "tekken"
    try:
        content = strict_json.loads(path.read_bytes())
    except ValueError as error:
        raise BadData(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        return None
    if isinstance(content.get("model"), dict):
        return "tokenizer.json"
    is_tekken = isinstance(content.get("config"), dict) and isinstance(content.get("vocab"), list)
    return "tekken" if is_tekken else None


def _begins_as_tekken(path: Path) -> bool:
    """Return whether a file begins as Mistral's files do, with "config" and "vocab".

    Parsing all 19 MB takes 0.4 s at every start.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        beginning = file.read(_BEGINNING_CHARACTERS)
    config = re.match(r'\s*\{\s*"config"\s*:\s*(?=\{)', beginning)
    if config is None:
        return False
    try:
        _, end = json.JSONDecoder().raw_decode(beginning, config.end())
    except (ValueError, RecursionError):
        return False
    return re.compile(r'\s*,\s*"vocab"\s*:\s*\[').match(beginning, end) is not None


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
