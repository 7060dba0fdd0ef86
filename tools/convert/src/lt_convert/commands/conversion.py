"""Plan a conversion, then carry it out: every tensor is located and checked before the first byte is written."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lt_convert import formats
from lt_convert.commands import leftovers, occupancy, source_verification
from lt_convert.commands.output_writer import write_outputs
from lt_convert.commands.receipt import ConversionRecord
from lt_convert.formats import adamw_state, location, megatron_args, provider_config
from lt_convert.formats.checkpoint import ONE_RANK, LegacyTarget, Source, Target
from lt_convert.tensors.block_fp8 import BlockFp8
from lt_convert.tensors.blocks import TensorReader, parts, row_blocks
from lt_convert.tensors.checksums import Checksums
from lt_convert.tensors.output_files import OutputFile, Payload, views
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor
from lt_convert.weights import families
from lt_convert.weights.mapping import abbreviated, is_balancing_bias
from lt_shared import checkpoint_layout, storage, version_of
from lt_shared.console import BadData, CannotCreate, UsageError, note, warn
from lt_shared.manifest import Checkpoint, absolute

MEGATRON = ("megatron-dist", "megatron-legacy")
WITH_OPTIMIZER = ("megatron-dist", "torchtitan")


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asks for. `dtype` None keeps every tensor's dtype; `legacy_target` is for the legacy format.

    `optimizer` says whether the optimizer state is converted, where both formats have one; `verify`, whether the source is
    compared with the checksums that were recorded when it was written; `quantize`, whether weights are written in block fp8.
    """

    source: str
    to: str
    destination: str
    dtype: str | None = None
    force: bool = False
    legacy_target: LegacyTarget = ONE_RANK
    optimizer: bool = True
    verify: bool = True
    quantize: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """The files of the destination in the order in which they are published. `operations` says how each tensor is made."""

    source: Source
    request: Request
    files: tuple[OutputFile, ...]
    operations: Mapping[str, str]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def to_record(self) -> dict[str, Any]:
        source = self.source
        return {
            "source": absolute(source.directory),
            "from": source.format,
            "to": self.request.to,
            "destination": absolute(self.request.destination),
            "architecture": source.model.architecture.to_record(),
            "padded_vocab_size": source.model.padded_vocab_size,
            "tokenizer": str(source.tokenizer.directory) if source.tokenizer else None,
            "left_out": [*source.left_out, *source.other_parts],
            "bytes": self.size_bytes,
            "files": [{"name": file.name, "bytes": file.size_bytes} for file in self.files],
            "tensors": [
                {
                    "name": segment.name,
                    "dtype": segment.tensor.dtype,
                    "shape": list(segment.tensor.shape),
                    "bytes": segment.size_bytes,
                    "file": file.name,
                    "offset": offset,
                    "operation": self._operation(segment),
                    "from": segment.tensor.name.split(", "),
                }
                for file in self.files
                for offset, segment in file.segments_at()
                if isinstance(segment, Payload)
            ],
        }

    def _operation(self, payload: Payload) -> str:
        found = self.operations.get(payload.name, "copy")
        tensor = payload.tensor
        if isinstance(tensor, BlockFp8):
            return f"{found}, quantize"
        if tensor.encodings:
            return f"{found}, dequantize"
        return found if tensor.dtype == tensor.stored_dtype else f"{found}, cast from {tensor.stored_dtype}"


def destinations(sources: Sequence[str], output: str) -> list[tuple[str, str]]:
    """Pairs of a source and its destination: `output`, or with several sources a directory in it with the source's name.

    A `release` directory has the name of its run. Raises UsageError when two sources have the same name, CannotCreate as
    `occupancy.check_links`.
    """
    occupancy.check_links(output)
    output = location.normalized(output)
    if len(sources) == 1:
        return [(sources[0], output)]
    names = [_name(source) for source in sources]
    repeated = sorted({name for name in names if names.count(name) > 1 or name.startswith(("-", "@"))})
    if repeated:
        raise UsageError(f"several checkpoints would go to {output}/{repeated[0]}", "convert them one by one")
    return [(source, f"{output.rstrip('/')}/{name}") for source, name in zip(sources, names, strict=True)]


def _name(source: str) -> str:
    if source == "-" or source.startswith("@"):
        return source
    parts = location.normalized(source).split("/")
    return parts[-2] if parts[-1] == checkpoint_layout.RELEASE and len(parts) > 1 else parts[-1]


def plan(request: Request, files: Files) -> Plan:
    """Locate, map and check every tensor. Raises as the format's `open_source`, and UsageError when there is nothing to do."""
    directory, source_format = location.locate(request.source, files)
    source: Source = formats.module(source_format).open_source(directory, files)
    is_flat = source.optimizer is not None and source.optimizer.is_flat and request.optimizer
    is_changed = request.dtype or request.quantize or source.quantization or is_flat
    if source_format == request.to and request.to != "megatron-legacy" and not is_changed:
        raise UsageError(f"{directory}: is in the format {source_format} already")
    if request.quantize and (request.to != "hf" or source.quantization):
        why = (
            f"{directory}: is quantized already: {source.quantization}"
            if source.quantization
            else "only hf has quantized weights"
        )
        raise UsageError(why, "drop --quantize")
    if request.to == "megatron-dist":
        megatron_args.warn_of_absent(source.model.architecture, directory)
    if not request.optimizer or request.to not in WITH_OPTIMIZER:
        source = dataclasses.replace(source, optimizer=None)
    check_aliases(source, files)
    if source.optimizer:
        adamw_state.check(source.optimizer)
        adamw_state.check_main_weights(source.optimizer, source.tensors, files, directory)
    tensors = {name: _cast(name, tensor, request.dtype) for name, tensor in source.tensors.items()}
    target_format = formats.module(request.to)
    outputs = target_format.outputs(Target(source, tensors, request.destination, request.legacy_target, request.quantize))
    family = families.family_of(source.model.architecture)
    return Plan(source, request, tuple(outputs), family.operations(source.table, target_format.TABLE, source.model))


def _cast(name: str, tensor: Tensor, dtype: str | None) -> Tensor:
    """A balancing bias is float32 in every model: steps of 0.001 are lost in bfloat16 beside a bias of 1."""
    if is_balancing_bias(name):
        return tensor.cast("float32")
    return tensor if dtype is None else tensor.cast(dtype)


def check_aliases(source: Source, files: Files) -> None:
    """Raises BadData when an alias differs from the tensor that it must equal: its values would be lost."""
    for name, alias, original in source.aliases:
        if alias.chunks == original.chunks:
            continue
        one, other = TensorReader(files), TensorReader(files)
        for part, its in parts(alias, original):
            if any(one.rows(part, *rows).tobytes() != other.rows(its, *rows).tobytes() for rows in row_blocks(part)):
                raise BadData(
                    f"{source.directory}: {name} differs from {original.name}, but the configuration ties them",
                    "set tie_word_embeddings to false in its configuration if they are meant to differ",
                )


def convert(request: Request) -> Checkpoint:
    """Convert, unless the destination is up to date. Returns the checkpoint at the destination."""
    occupancy.check_links(request.destination)
    request = dataclasses.replace(request, destination=location.normalized(request.destination))
    destination = request.destination
    with Files() as files:
        directory, source_format = location.locate(request.source, files)
        options = {
            "from": absolute(directory),
            "to": request.to,
            "dtype": request.dtype,
            "layout": dataclasses.astuple(request.legacy_target),
            "optimizer": request.optimizer,
            # Records of other conversions are as they were before this option.
            **({"quantize": True} if request.quantize else {}),
        }
        fingerprint = _fingerprint(directory, source_format, destination)
        made = ConversionRecord.read(destination)
        if made and not request.force and made.is_up_to_date(options, fingerprint, destination):
            occupancy.check_own(destination, made.files.sizes)
            leftovers.remove(destination)
            note(f"{destination}: up to date")
            return _result(request.to, destination, list(made.files.sizes), made.iteration, made.loss)
        check_destination(destination, directory)
        _check_unoccupied(destination, request.force)
        if request.verify:
            files.reader = source_verification.open_checksums(directory, source_format, location.listing(directory))
        todo = plan(dataclasses.replace(request, source=directory), files)
        files.reader.planned(views(todo.files), files)
    source = todo.source
    content = json.dumps([version_of("lt-convert"), options, fingerprint, todo.to_record()["tensors"]])
    record = ConversionRecord(
        options=options,
        source=fingerprint,
        files=Checksums({}, {}),
        tokenizer_file=source.tokenizer.files[0].name if source.tokenizer else None,
        iteration=source.iteration,
        loss=source.loss,
    )

    def finish(checksums: Checksums) -> bytes:
        return dataclasses.replace(record, files=checksums).to_bytes()

    identity = hashlib.sha256(content.encode()).hexdigest()
    write_outputs(todo.files, destination, identity, request.force, finish, files.reader)
    if source.left_out and not source.optimizer:
        note(f"{directory}: left out the training state ({len(source.left_out)} keys)")
    if source.other_parts:
        note(f"{directory}: left out what is not the language model: {abbreviated(source.other_parts)}")
    if source.tokenizer is None:
        warn(f"{directory}: no tokenizer beside it: the result has none")
    return _result(request.to, destination, [file.name for file in todo.files], source.iteration, source.loss)


def check_destination(destination: str, source: str) -> None:
    """Raises UsageError for a destination that contains the source or the working directory, which would be deleted."""
    if f"{source}/".startswith(f"{destination}/"):
        raise UsageError(f"{destination}: holds the source {source}", "choose another output")
    if not storage.is_remote(destination) and f"{os.getcwd()}/".startswith(f"{destination.rstrip('/')}/"):
        raise UsageError(f"{destination}: holds the working directory", "choose another output, or start elsewhere")


def _check_unoccupied(destination: str, force: bool) -> None:
    """Raises CannotCreate for an occupied local destination, before the source is read; others need the journal."""
    if storage.is_remote(destination):
        return
    if force:
        occupancy.check_replaceable(destination)
    path = Path(destination)
    if path.exists() and not path.is_dir():
        raise CannotCreate(f"{destination}: exists and is not a directory")
    if not force and path.is_dir() and any(path.iterdir()):
        raise occupancy.occupied(destination)


def _fingerprint(directory: str, source_format: str, destination: str) -> list[dict[str, str | int]]:
    """Size and time (or ETag) of the source's files, by which changes are noticed, without a destination inside the source."""
    if storage.is_remote(directory):
        return [storage.fingerprint(f"{directory}/{name}", refresh=True) for name in sorted(storage.sizes_below(directory))]
    own = (destination, os.path.join(os.path.dirname(destination), f".{os.path.basename(destination)}."))
    paths = [path for path in Path(directory).rglob("*") if path.is_file() and not str(path).startswith(own)]
    if source_format in MEGATRON:
        run = Path(directory).parent
        beside = (checkpoint_layout.tokenizer_directory(run), run / provider_config.CONTEXT)
        paths += [path for place in beside for path in place.rglob("*") if path.is_file()]
    if source_format == "torchtitan":
        candidates = formats.module(source_format).configuration_directories(directory)[1:]
        paths += [path for candidate in candidates if (path := Path(candidate) / "config.json").is_file()]
    return [storage.fingerprint(path) for path in sorted(paths)]


def _result(to: str, destination: str, names: Sequence[str], iteration: int | None, loss: float | None) -> Checkpoint:
    if to in MEGATRON:
        if any(name.startswith(f"{checkpoint_layout.RELEASE}/") for name in names):
            return Checkpoint(absolute(f"{destination}/{checkpoint_layout.RELEASE}"), to)
        return Checkpoint(absolute(f"{destination}/iter_{iteration or 0:07d}"), to, iteration, loss)
    return Checkpoint(absolute(destination), to, iteration, loss)
