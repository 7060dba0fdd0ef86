"""Plan a conversion, then carry it out: every tensor is located and checked before the first byte is written."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from lt_convert import formats
from lt_convert.engine import division, occupancy, result, source_verification
from lt_convert.engine.result import Result
from lt_convert.formats import FORMATS, adamw_state, directories, location
from lt_convert.formats.checkpoint import ONE_RANK, LegacyTarget, Source, Target
from lt_convert.formats.megatron import megatron_args
from lt_convert.tensors.block_fp8 import BlockFp8
from lt_convert.tensors.blocks import TensorReader, parts, row_blocks
from lt_convert.tensors.output_files import OutputFile, Payload, views
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor
from lt_convert.weights import families
from lt_convert.weights.mapping import is_balancing_bias
from lt_convert.weights.tensor_names import abbreviated
from lt_shared import memory
from lt_shared.console import BadData, NoInput, UsageError, note, warn
from lt_shared.console.shard_option import WHOLE, Slice
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.manifest import Checkpoint, absolute
from lt_shared.files import storage

# A warning names every file of a directory that people made; of a wrong one, with thousands, the first.
SHOWN_FILES = 200


@dataclasses.dataclass(frozen=True)
class Request:
    """The options of a conversion. `dtype` None keeps every tensor's dtype; `legacy_target` is for the legacy format.

    `optimizer` says whether the optimizer state is converted, where both formats have one; `verify`, whether the source is
    compared with the checksums that were recorded when it was written; `quantize`, whether weights are written in block fp8;
    `ema`, whether the averages of the weights are converted in their place, without the optimizer state; `copies`, whether a
    source that has the format already is copied instead of refused.
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
    ema: bool = False
    copies: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """The files of the destination, in the order of publication. `operations` describes how each tensor is made."""

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

    def parts(self, count: int) -> list[dict[str, Any]]:
        """Describe what each of `count` parts reads and writes, for --dry-run."""
        return [division.to_record(entries) for entries in division.divide(self.files, count)]

    def _operation(self, payload: Payload) -> str:
        operation = self.operations.get(payload.name, "copy")
        tensor = payload.tensor
        if isinstance(tensor, BlockFp8):
            return f"{operation}, quantize"
        if tensor.encodings:
            return f"{operation}, dequantize"
        return operation if tensor.dtype == tensor.stored_dtype else f"{operation}, cast from {tensor.stored_dtype}"


def destinations(sources: Sequence[str], output: str) -> list[tuple[str, str]]:
    """Pairs of a source and its destination: `output`, or with several sources a directory in it with the source's name.

    A `release` directory has the name of its run. Raises UsageError when two sources have the same name, CannotCreate as
    `occupancy.check_links`.
    """
    occupancy.check_links(output)
    output = directories.normalized(output)
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
    parts = directories.normalized(source).split("/")
    return parts[-2] if parts[-1] == checkpoint_layout.RELEASE and len(parts) > 1 else parts[-1]


def plan(request: Request, files: Files, reads_values: bool = True, part: Slice = WHOLE) -> Plan:
    """Locate, map and check every tensor. Raises as the format's `open_source`, and UsageError when there is nothing to do.

    Without `reads_values`, tensors that are stored twice are not compared: the embeddings of DeepSeek-V3 are 7 GB. Each `part` of
    a conversion compares its share of the values.
    """
    with memory.garbage_collection_paused():
        return _plan(request, files, reads_values, part)


def _plan(request: Request, files: Files, reads_values: bool, part: Slice) -> Plan:
    directory, source_format = location.locate(request.source, files)
    source, target_format = FORMATS[source_format].open_source(directory, files), FORMATS[request.to]
    is_flat = source.optimizer is not None and source.optimizer.is_flat and request.optimizer
    if request.ema:
        source = with_averages(source)
    is_changed = request.dtype or request.quantize or request.ema or source.quantization or is_flat or source.is_partial
    if source_format == request.to and not target_format.has_target_options and not is_changed and not request.copies:
        raise UsageError(f"{directory}: is in the format {source_format} already")
    if request.quantize and (not target_format.is_quantizable or source.quantization):
        why = (
            f"{directory}: is quantized already: {source.quantization}"
            if source.quantization
            else f"only {formats.names_with('is_quantizable')} has quantized weights"
        )
        raise UsageError(why, "drop --quantize")
    if target_format.warns_of_arguments:
        megatron_args.warn_of_absent(source.model.architecture, directory, target_format.is_hybrid)
    if not request.optimizer or not target_format.has_optimizer:
        source = dataclasses.replace(source, optimizer=None)
    elif adamw_state.is_of_muon(source.left_out):
        warn(f"{directory}: its optimizer is Muon, whose state is not converted: the result has the weights alone")
    if reads_values:
        check_aliases(source, files, part)
    if source.optimizer:
        adamw_state.check(source.optimizer)
        adamw_state.check_main_weights(source.optimizer, source.tensors, files, directory, part)
    tensors = {name: _cast(name, tensor, request.dtype) for name, tensor in source.tensors.items()}
    outputs = target_format.outputs(Target(source, tensors, request.destination, request.legacy_target, request.quantize))
    family = families.family_of(source.model.architecture)
    return Plan(source, request, tuple(outputs), family.operations(source.table, target_format.table, source.model))


def with_averages(source: Source) -> Source:
    """Return `source` with the averages of its weights, in the dtypes of the weights. Raises NoInput without averages."""
    averages = source.averages
    if averages is None:
        raise NoInput(
            f"{source.directory}: has no averaged weights",
            "lt-train --ema-decay saves them; without --ema the weights are converted",
        )
    tensors = {name: averages[name].cast(tensor.dtype) for name, tensor in source.tensors.items()}
    return dataclasses.replace(source, tensors=tensors, optimizer=None)


def _cast(name: str, tensor: Tensor, dtype: str | None) -> Tensor:
    """A balancing bias is float32 in every model: steps of 0.001 are lost in bfloat16 beside a bias of 1."""
    if is_balancing_bias(name):
        return tensor.cast("float32")
    return tensor if dtype is None else tensor.cast(dtype)


def check_aliases(source: Source, files: Files, part: Slice = WHOLE) -> None:
    """Raises BadData when an alias differs from the tensor that it must equal: its values would be lost.

    Each `part` of a conversion compares its share of the rows.
    """
    for name, alias, original in source.aliases:
        if alias.chunks == original.chunks:
            continue
        one, other = TensorReader(files), TensorReader(files)
        for piece, its in parts(alias, original):
            blocks = [*row_blocks(piece)][part.index :: part.count]
            if any(one.rows(piece, *rows).tobytes() != other.rows(its, *rows).tobytes() for rows in blocks):
                raise BadData(
                    f"{source.directory}: {name} differs from {original.name}, but the configuration ties them",
                    "set tie_word_embeddings to false in its configuration if they are meant to differ",
                )


def convert(request: Request) -> Checkpoint:
    """Convert, unless the destination is up to date. Returns the checkpoint at the destination."""
    checkpoint = convert_part(request, WHOLE)
    assert checkpoint is not None
    return checkpoint


def convert_part(request: Request, part: Slice) -> Checkpoint | None:
    """Convert a part, unless the destination is up to date. Returns the checkpoint, None while other parts are unfinished."""
    if part.count > 1 and storage.is_remote(request.destination):
        raise UsageError(f"{request.destination}: --shard is for a destination on a file system", "drop --shard")
    occupancy.check_links(request.destination)
    request = dataclasses.replace(request, destination=directories.normalized(request.destination))
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
            **({"ema": True} if request.ema else {}),
        }
        fingerprint = result.fingerprint(directory, source_format, request.destination)
        before = None if part.count == 1 else result.identity_of(request.destination)
        output = Result(request.to, request.destination, request.force, options, fingerprint)
        finished = output.finished()
        if finished:
            return finished
        result.check_destination(request.destination, directory)
        output.check_unoccupied()
        if request.verify:
            files.reader = source_verification.open_checksums([(directory, source_format, directories.listing(directory))])
        todo = plan(dataclasses.replace(request, source=directory), files, part=part)
        if part.count == 1:
            files.reader.planned(views(todo.files), files)
        else:
            shares = division.views(todo.files, part.count)
            files.reader.planned(shares.pop(part.index), files, itertools.chain.from_iterable(shares))
    source = todo.source
    tokenizer_file = source.tokenizer.files[0].name if source.tokenizer else None
    written = todo, files.reader, source.iteration, source.loss, tokenizer_file
    checkpoint = output.write(*written) if part.count == 1 else output.write_part(*written, part, before)
    if checkpoint is not None:
        tell_what_is_missing(source, request.ema)
    return checkpoint


def tell_what_is_missing(source: Source, ema: bool = False) -> None:
    """Say what of a source is not in the result. `ema` says that the result has the averaged weights."""
    if source.averages is not None and not ema:
        note(f"{source.directory}: has averaged weights, too: --ema converts them")
    if source.left_out and not source.optimizer:
        note(f"{source.directory}: left out the training state ({len(source.left_out)} keys)")
    if source.state_files:
        note(f"{source.directory}: left out files of training state: {', '.join(source.state_files)}")
    if source.other_parts:
        note(f"{source.directory}: left out what is not the language model: {abbreviated(source.other_parts)}")
    if source.not_carried:
        names = ", ".join(source.not_carried[:SHOWN_FILES]) + (" ..." if len(source.not_carried) > SHOWN_FILES else "")
        warn(f"{source.directory}: not taken along: {names} ({len(source.not_carried)} in all)")
    if source.tokenizer is None:
        warn(f"{source.directory}: no tokenizer beside it: the result has none")
