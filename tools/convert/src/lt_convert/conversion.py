"""Plan a conversion, then carry it out: every tensor is located and checked before the first byte is written.

The destination directory appears whole, by rename. Tensors stream from the source's files to the destination's in blocks, so
memory does not grow with the model.
"""

import argparse
import dataclasses
import importlib.metadata
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lt_convert import record, safetensors_files, tokenizer
from lt_convert import source as sources
from lt_convert.llama import LLAMA
from lt_convert.mapping import PADDING
from lt_convert.record import ConversionRecord
from lt_convert.source import CONFIG, HF, MEGATRON_DIST, PADDING_FILE, Source
from lt_convert.tensors import AssembledTensor, CastTensor, OpenFiles, Tensor, size_bytes
from lt_shared import checkpoint_layout, huggingface, megatron_arguments, storage
from lt_shared.checkpoint_layout import RunRecord
from lt_shared.console import CannotCreate, Progress, UsageError, note, warn
from lt_shared.manifest import Checkpoint, Tokenizer, absolute
from lt_shared.tokenizer_files import TokenizerFiles

SHARD_BYTES = safetensors_files.SHARD_BYTES


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asks for. `dtype` None keeps every tensor's own."""

    source: str
    to: str
    destination: Path
    dtype: str | None = None
    force: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """Every tensor of the destination, in the order of writing."""

    source: Source
    to: str
    destination: Path
    tensors: Mapping[str, Tensor]

    @property
    def size_bytes(self) -> int:
        return sum(size_bytes(tensor) for tensor in self.tensors.values())

    def to_record(self) -> dict[str, Any]:
        return {
            "source": absolute(self.source.directory),
            "from": self.source.format,
            "to": self.to,
            "destination": absolute(self.destination),
            "architecture": self.source.model.architecture.to_record(),
            "padded_vocab_size": self.source.model.padded_vocab_size,
            "tokenizer": str(self.source.tokenizer.directory) if self.source.tokenizer else None,
            "left_out": list(self.source.left_out),
            "bytes": self.size_bytes,
            "tensors": [
                {"name": name, "dtype": tensor.dtype, "shape": list(tensor.shape), "bytes": size_bytes(tensor), **_origin(tensor)}
                for name, tensor in self.tensors.items()
            ],
        }


def _origin(tensor: Tensor) -> dict[str, Any]:
    if isinstance(tensor, CastTensor):
        inner = _origin(tensor.source)
        return inner | {"operation": f"{inner['operation']}, cast from {tensor.source.dtype}"}
    assert isinstance(tensor, AssembledTensor)
    return {"operation": tensor.operation, "from": list(dict.fromkeys(piece.name for piece in tensor.pieces))}


def plan(request: Request, files: OpenFiles) -> Plan:
    """Locate, map and check every tensor. Raises as `source.open_source`, and UsageError when there is nothing to convert."""
    directory, source_format = sources.locate(request.source)
    if source_format == request.to:
        raise UsageError(f"{directory}: is in the format {source_format} already")
    source = sources.open_source(directory, source_format, files)
    model = source.model
    if request.to == MEGATRON_DIST:
        sources.check_megatron_can(model.architecture, str(directory))
        canonical = {name: _cast(name, tensor, request.dtype) for name, tensor in source.tensors.items()}
        made = LLAMA.to_megatron(model, canonical, str(directory))
        tensors: Mapping[str, Tensor] = made
    else:
        made = {name: tensor for name, tensor in source.tensors.items() if isinstance(tensor, AssembledTensor)}
        tensors = {name: _cast(name, tensor, request.dtype) for name, tensor in made.items()}
    for name, assembled in made.items():
        assembled.check(name)
    return Plan(source, request.to, request.destination, tensors)


def _cast(name: str, tensor: Tensor, dtype: str | None) -> Tensor:
    return tensor if dtype in (None, tensor.dtype) else CastTensor(name, tensor, str(dtype))


def convert(request: Request) -> Checkpoint:
    """Convert, or find that it has been done. Returns the checkpoint that is now at the destination."""
    destination = request.destination
    storage.require_local(str(destination), "lt-convert")
    directory, source_format = sources.locate(request.source)
    options = {"from": str(directory.resolve()), "to": request.to, "dtype": request.dtype}
    fingerprint = _fingerprint(directory, source_format)
    if destination.is_dir() and not request.force:
        made = record.read(destination)
        if made and made.made_of(options, fingerprint, destination):
            note(f"{destination}: up to date")
            return _result(request.to, destination, directory)
    _check_free(destination, directory, request.force)
    with OpenFiles() as files:
        todo = plan(dataclasses.replace(request, source=str(directory)), files)
        with storage.publish_directory(destination, replace=request.force) as partial:
            with Progress("convert", todo.size_bytes, "B") as progress:
                write = _write_hf if request.to == HF else _write_megatron
                write(todo, partial, progress.advance)
            first = todo.source.tokenizer.files[0].name if todo.source.tokenizer else None
            ConversionRecord(options, fingerprint, {}, first).write(partial)
    if todo.source.left_out:
        note(f"{directory}: left out the training state ({len(todo.source.left_out)} keys)")
    if todo.source.tokenizer is None:
        warn(f"{directory}: no tokenizer beside it: the result has none")
    return _result(request.to, destination, directory)


def _check_free(destination: Path, source: Path, force: bool) -> None:
    """Refuse an occupied destination before the source is read, and one that holds the source, which --force would delete."""
    if source.resolve().is_relative_to(destination.resolve()):
        raise UsageError(f"{destination}: holds the source {source}", "choose another output")
    if destination.exists() and not destination.is_dir():
        raise CannotCreate(f"{destination}: exists and is not a directory")
    if not force and destination.is_dir() and any(destination.iterdir()):
        raise CannotCreate(f"{destination}: exists and is not empty", "choose another output or pass --force")


def _fingerprint(directory: Path, source_format: str) -> list[dict[str, str | int]]:
    paths = [path for path in directory.iterdir() if path.is_file()]
    if source_format == MEGATRON_DIST:
        beside = checkpoint_layout.tokenizer_directory(directory.parent)
        paths += [path for path in beside.rglob("*") if path.is_file()]
    return [storage.fingerprint(path) for path in sorted(paths)]


def _result(to: str, destination: Path, source: Path) -> Checkpoint:
    if to == MEGATRON_DIST:
        return Checkpoint(absolute(destination / checkpoint_layout.RELEASE), to)
    saved = RunRecord.read(source) if (source / checkpoint_layout.RECORD).is_file() else None
    return Checkpoint(absolute(destination), to, checkpoint_layout.iteration_of(source), saved.loss if saved else None)


def _write_hf(todo: Plan, directory: Path, advance: Callable[[int], None]) -> None:
    """config.json is written last: without it nothing takes the directory for a model."""
    architecture = todo.source.model.architecture
    model = {name: tensor for name, tensor in todo.tensors.items() if not name.startswith(PADDING)}
    padding = {name: tensor for name, tensor in todo.tensors.items() if name.startswith(PADDING)}
    safetensors_files.write_model(directory, model, advance, SHARD_BYTES)
    if padding:
        safetensors_files.write_file(directory / PADDING_FILE, padding, advance)
    special: dict[str, int | None] = {"bos_token_id": None, "eos_token_id": None}
    if todo.source.tokenizer:
        special = tokenizer.write(todo.source.tokenizer, directory, architecture.max_position_embeddings)
    if not (directory / tokenizer.GENERATION).is_file():
        _write_json(directory / tokenizer.GENERATION, {name: value for name, value in special.items() if value is not None})
    _write_json(directory / CONFIG, huggingface.to_config(architecture, sources.dtype_of(model)) | special)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    storage.write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def _write_megatron(todo: Plan, run: Path, advance: Callable[[int], None]) -> None:
    """A run directory with a `release` checkpoint, the tracker last."""
    import torch

    from lt_convert import torch_dist_writer

    model = todo.source.model
    directory = run / checkpoint_layout.RELEASE
    directory.mkdir()
    dtype = todo.tensors["embedding.word_embeddings.weight"].dtype
    common = {
        "args": argparse.Namespace(**_arguments(todo, getattr(torch, dtype))),
        "checkpoint_version": 3.0,
        "iteration": 0,
        "num_floating_point_operations_so_far": 0,
    }
    torch_dist_writer.write(directory, todo.tensors, model.architecture.num_layers, common, advance)
    identity = _carry_tokenizer(todo.source.tokenizer, checkpoint_layout.tokenizer_directory(run), todo.destination)
    RunRecord(
        architecture=model.architecture,
        padded_vocab_size=model.padded_vocab_size,
        iteration=0,
        consumed_samples=0,
        tokenizer=identity,
        dtype=dtype,
        versions={name: importlib.metadata.version(name) for name in ("lt-convert", "torch")},
        files={},
    ).write(directory)
    checkpoint_layout.write_tracker(run, checkpoint_layout.RELEASE)


def _arguments(todo: Plan, dtype: Any) -> dict[str, Any]:
    """Megatron's arguments of a checkpoint that one process saved without a training state."""
    model = todo.source.model
    return megatron_arguments.to_arguments(model.architecture) | {
        "padded_vocab_size": model.padded_vocab_size,
        "make_vocab_size_divisible_by": 128,
        "add_position_embedding": True,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "data_parallel_size": 1,
        "world_size": 1,
        "ckpt_format": "torch_dist",
        "no_save_optim": True,
        "no_save_rng": True,
        "consumed_train_samples": 0,
        "consumed_valid_samples": 0,
        "params_dtype": dtype,
        "bf16": str(dtype) == "torch.bfloat16",
        "fp16": str(dtype) == "torch.float16",
    }


def _carry_tokenizer(files: TokenizerFiles | None, directory: Path, destination: Path) -> Tokenizer | None:
    if files is None:
        return None
    files.copy_to(directory)
    final = checkpoint_layout.tokenizer_directory(destination)
    return Tokenizer(files.name, files.sha256(), absolute(final))
