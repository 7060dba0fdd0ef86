"""The files of a training run's directory, and which of its checkpoints are complete.

    RUN/latest_checkpointed_iteration.txt   the newest iteration, or "release" (Megatron's tracker file)
    RUN/iter_0001000/                       one checkpoint in Megatron's torch_dist format
        .metadata, *.distcp, common.pt, metadata.json
        run.json                            the record below: architecture, tokenizer, file sizes
    RUN/release/                            weights without training state, written by lt-convert
    RUN/tokenizer/                          the tokenizer's files
    RUN/huggingface/                        model card, licence and other files of the Hugging Face model that the run began with

A checkpoint directory appears by rename and the tracker is written last. `run.json` lists every other file with its size, so a
shard that was lost or cut off later is noticed without unpickling anything.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from lt_shared.console import BadConfig, BadData, NoInput
from lt_shared.contracts.manifest import Tokenizer
from lt_shared.files import storage, strict_json
from lt_shared.models.architecture import Architecture

TRACKER = "latest_checkpointed_iteration.txt"
RELEASE = "release"
RECORD = "run.json"
TOKENIZER_DIRECTORY = "tokenizer"
HUGGINGFACE_DIRECTORY = "huggingface"
# All state that is not a tensor: megatron-core 0.16 writes it to this file, 0.19 into the .distcp files; 0.19 reads both.
COMMON = "common.pt"
CONFIGURATION, SHARDED_BACKEND = "metadata.json", "torch_dist"
RECORD_VERSION = 1

_ITERATION = re.compile(r"iter_(\d{7,})")


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """The description that a checkpoint holds. `files` maps every file's name to its size in bytes.

    `kernels` maps each part of a training step to the implementation that computed it, `versions` each package to its version,
    `datasets` the absolute prefix of a trained dataset to `bin_bytes`, `idx_bytes` and, if its sidecar has them, `bin_crc32` and
    `idx_crc32`. `phase` names the data schedule's phase of the checkpoint's step. `streams` has for each stream
    of the blend its name, the tokens of its shuffle windows, and its shards so far; a shard has its prefix and tokens beside the
    fields of `datasets`. `ema_decay` is the decay of the averaged weights in the optimizer's state, None without them.
    """

    architecture: Architecture
    padded_vocab_size: int
    iteration: int
    consumed_samples: int
    tokenizer: Tokenizer | None
    dtype: str
    versions: dict[str, str]
    files: dict[str, int]
    loss: float | None = None
    distributed_optimizer: bool | None = None
    kernels: dict[str, str] | None = None
    datasets: dict[str, dict[str, int]] | None = None
    phase: str | None = None
    streams: list[dict[str, Any]] | None = None
    ema_decay: float | None = None

    def write(self, directory: Path, elsewhere: Mapping[str, int] | None = None) -> None:
        """Write `run.json` into a directory that is not yet visible, with the sizes of the files that are there.

        `elsewhere` has the sizes in bytes of the checkpoint's files on other nodes, by name.
        """
        files = {
            str(path.relative_to(directory)): path.stat().st_size
            for path in sorted(directory.rglob("*"))
            if path.is_file() and path.name != RECORD
        } | dict(elsewhere or {})
        (directory / RECORD).write_bytes(dataclasses.replace(self, files=files).to_bytes())

    def to_bytes(self) -> bytes:
        """The content of a `run.json`."""
        fields = dataclasses.asdict(self) | {"architecture": self.architecture.to_record()}
        if self.streams is None:
            # Versions before 2026-11-26 do not know this field; they read checkpoints without it.
            del fields["streams"]
        if self.ema_decay is None:
            del fields["ema_decay"]
        return (json.dumps({"v": RECORD_VERSION, **fields}, indent=2) + "\n").encode()

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Raises NoInput when the directory has no run.json, BadData when it is malformed."""
        path = directory / RECORD
        if not path.is_file():
            raise NoInput(f"{path}: no such file", "the directory is not a checkpoint of lt-train or lt-convert")
        return cls.parse(path.read_bytes(), str(path))

    @classmethod
    def parse(cls, content: bytes, path: str) -> Self:
        """The record in the content of a `run.json`. Raises BadData, naming `path`, when it is malformed."""
        try:
            record: dict[str, Any] = dict(strict_json.loads(content))
            if record.pop("v") != RECORD_VERSION:
                raise BadData(f"{path}: written by another version")
            for name in ("files", "versions", "kernels", "datasets"):
                if not isinstance(record.get(name) or {}, dict):
                    raise TypeError(f"{name} is not an object")
            if not isinstance(record.get("streams") or [], list):
                raise TypeError("streams is not a list")
            if not isinstance(record["files"], dict):
                raise TypeError("files is not an object")
            architecture = Architecture.from_record(record.pop("architecture"))
            tokenizer = record.pop("tokenizer")
            if not isinstance(record.get("phase"), str | None):
                raise TypeError("phase is no name")
            for field, least in (("padded_vocab_size", architecture.vocab_size), ("iteration", 0), ("consumed_samples", 0)):
                if type(record[field]) is not int or record[field] < least:
                    raise ValueError(f"{field} is {record[field]!r:.40}, must be a whole number from {least} on")
            if not isinstance(record.get("loss"), int | float | None) or isinstance(record.get("loss"), bool):
                raise TypeError(f"loss is {record['loss']!r:.40}, must be a number")
            read = Tokenizer(**tokenizer) if tokenizer else None
            if read and not all(isinstance(text, str) for text in (read.name, read.sha256, read.path or "")):
                raise TypeError("its tokenizer is not described in words")
            return cls(architecture=architecture, tokenizer=read, **record)
        except KeyError as error:
            raise BadData(f"{path}: not a run record: it has no {error}") from None
        except (ValueError, TypeError) as error:
            raise BadData(f"{path}: not a run record: {error}") from None
        except BadConfig as error:
            raise BadData(f"{path}: {error}", error.hint) from None


def iteration_directory(run: Path, iteration: int) -> Path:
    return run / f"iter_{iteration:07d}"


def iteration_of(directory: Path) -> int | None:
    """The iteration in a checkpoint directory's name; None for `release` and for other names."""
    match = _ITERATION.fullmatch(directory.name)
    return int(match[1]) if match else None


def check_shard_name(name: object, origin: str) -> None:
    """Raises BadData if a shard's name leads out of the checkpoint's directory or into a subfolder."""
    if not isinstance(name, str):
        raise BadData(f"{origin}: names a shard that is no text")
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise BadData(f"{origin}: names a file outside the checkpoint: {name!r:.80}", "do not load it")


def check_configuration(content: bytes, path: str) -> None:
    """Raises BadData for a `metadata.json` that megatron-core would not write beside a torch_dist checkpoint."""
    try:
        backend = strict_json.loads(content)["sharded_backend"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadData(f"{path}: not as megatron-core writes it: {error}") from None
    if backend != SHARDED_BACKEND:
        raise BadData(f"{path}: stored with {backend!r}, read here is {SHARDED_BACKEND!r}")


def torch_dist_format(directory: Path) -> str:
    """Return lt-convert's name of the format of a torch_dist checkpoint, by the layers that it has."""
    path = directory / ".metadata"
    return "megatron-hybrid" if path.is_file() and has_hybrid_layers(path.read_bytes()) else "megatron-dist"


def has_hybrid_layers(metadata: bytes) -> bool:
    """Return whether the `.metadata` of a torch_dist checkpoint names the last norm of megatron-core's HybridModel.

    GPTModel names it `decoder.final_layernorm`. The pickle has the names in plain text.
    """
    return b"decoder.final_norm." in metadata


def damage(directory: Path) -> str | None:
    """Why a checkpoint directory cannot be loaded, or None when all its files are there with their sizes."""
    if not (directory / ".metadata").is_file():
        return f"{directory / '.metadata'}: missing"
    if not (directory / RECORD).is_file():
        return None if any(directory.glob("*.distcp")) else f"{directory}: has no .distcp file"
    try:
        files = RunRecord.read(directory).files
    except BadData as error:
        return str(error)
    for name, size in files.items():
        path = directory / name
        if not path.is_file():
            return f"{path}: missing"
        if path.stat().st_size != size:
            return f"{path}: {path.stat().st_size} bytes, expected {size}"
    return None


def read_tracker(run: Path) -> int | str | None:
    """The tracker's iteration, `RELEASE`, or None when there is no tracker. Raises BadData when it holds something else."""
    path = run / TRACKER
    if not path.is_file():
        return None
    content = path.read_text(errors="replace").strip()
    if content == RELEASE:
        return RELEASE
    if not (content.isascii() and content.isdigit()):
        raise BadData(f"{path}: holds {content[:40]!r}, expected an iteration or {RELEASE!r}")
    return int(content)


def write_tracker(run: Path, content: int | str) -> None:
    storage.write_bytes(run / TRACKER, f"{content}".encode())


def checkpoints(run: Path) -> list[Path]:
    """Iteration directories of a run, newest first, complete or not."""
    if not run.is_dir():
        return []
    checkpoint_paths = [(iteration, path) for path in run.iterdir() if (iteration := iteration_of(path)) is not None]
    return [path for _, path in sorted(checkpoint_paths, reverse=True)]


def newest_before(run: Path, step: int) -> Path | None:
    """The newest complete checkpoint that was saved before `step` was trained, None when there is none."""
    before = (path for path in checkpoints(run) if (iteration_of(path) or 0) < step)
    return next((path.absolute() for path in before if damage(path) is None), None)


def expired(complete: Iterable[int], keep_last: int | None, keep_every: int | None) -> list[int]:
    """Return the `complete` iterations that may be deleted: all but the newest `keep_last` and the multiples of `keep_every`."""
    older = sorted(complete)[:-keep_last] if keep_last else []
    return [iteration for iteration in older if not keep_every or iteration % keep_every]


def resolve_checkpoint_directory(path: Path) -> Path:
    """The checkpoint directory for `path`: a checkpoint itself, or for a run the one that its tracker names.

    Raises: NoInput when there is none, BadData when it is damaged.
    """
    if not path.is_dir():
        raise NoInput(f"{path}: no such directory")
    tracked = read_tracker(path)
    if tracked is None:
        directory = path
        if not (path / ".metadata").is_file():
            raise NoInput(f"{path}: neither a checkpoint nor a run: it has no .metadata and no {TRACKER}")
    else:
        directory = path / RELEASE if isinstance(tracked, str) else iteration_directory(path, tracked)
    problem = damage(directory)
    if problem:
        raise BadData(problem, "the checkpoint is incomplete: use another one or copy it again")
    return directory


def tokenizer_directory(run: Path) -> Path:
    return run / TOKENIZER_DIRECTORY
