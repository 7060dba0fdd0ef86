"""Megatron's torch_dist: a DCP checkpoint that stacks a weight's layers in one tensor, with the arguments in `common.pt`.

Here every layer has a tensor of its own, such as `decoder.layers.3.mlp.linear_fc2.weight`, whatever the parallel sizes were. They
are written as megatron-core stores them: GPTModel as one stacked key with one chunk per layer, HybridModel as a key per layer.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lt_convert.containers import dcp, torch_archive
from lt_convert.containers.dcp import METADATA
from lt_convert.formats import MEGATRON_DIST, Format, adamw_state, beside_model, range_checksums
from lt_convert.formats.checkpoint import Source, Target
from lt_convert.formats.directories import listing
from lt_convert.formats.megatron import (
    flat_optimizer_state,
    megatron_args,
    optimizer_state,
    provider_config,
    stacked_layers,
    train_state,
)
from lt_convert.formats.megatron.stacked_layers import EMBEDDING
from lt_convert.tensors.output_files import OutputFile
from lt_convert.tensors.source_files import INCOMPLETE, UNFINISHED, Files
from lt_convert.tensors.tensor import Tensor
from lt_convert.tokenizers import discovery
from lt_convert.weights import families, mapping
from lt_convert.weights.mapping import MEGATRON, Model, has_stacked_layers
from lt_convert.weights.tensor_names import abbreviated
from lt_shared import pickles, version_of
from lt_shared.console import BadData
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.checkpoint_layout import COMMON, RunRecord
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

CONFIGURATION_FILE = checkpoint_layout.CONFIGURATION
CONFIGURATION = {
    "sharded_backend": checkpoint_layout.SHARDED_BACKEND,
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
TABLE = MEGATRON

_STATE = re.compile(r"(.*\.)?(_extra_state|rng_state|rerun_state_machine_state|common_state)(/.*)?|(chained_\d+\.)?optimizer\..*")


def recognise(names: Sequence[str]) -> bool:
    return METADATA in names and (CONFIGURATION_FILE in names or COMMON in names)


def is_finished(names: Sequence[str]) -> bool:
    """Return whether a checkpoint with these names has the file that megatron-core writes behind all others."""
    return CONFIGURATION_FILE in names


def is_hybrid(directory: str, files: Files) -> bool:
    """Return whether a checkpoint has the layers of HybridModel. The names of the tensors tell it from GPTModel's."""
    path = f"{directory}/{METADATA}"
    return checkpoint_layout.has_hybrid_layers(files.read(path, 0, files.size_bytes(path)))


def open_source(directory: str, files: Files, stored_format: Format = MEGATRON_DIST) -> Source:
    """Open a checkpoint with the layers of GPTModel, or of HybridModel by its format.

    Raises BadData for anything malformed, and for models of a family that is not known here.
    """
    table = mapping.MEGATRON_HYBRID if stored_format.is_hybrid else MEGATRON
    names = listing(directory)
    path = f"{directory}/{CONFIGURATION_FILE}"
    if not is_finished(names):
        raise BadData(f"{path}: missing: Megatron writes it last", UNFINISHED)
    checkpoint_layout.check_configuration(files.read(path, 0, files.size_bytes(path)), path)
    saved = _record(directory, names, files)
    contents = dcp.read(directory, files)
    tensors = model_tensors(contents)
    if EMBEDDING not in tensors:
        raise BadData(f"{directory}: has no {EMBEDDING}: not a checkpoint of megatron-core's GPTModel or HybridModel")
    run = directory.rpartition("/")[0] or "."
    provided = None if saved else provider_config.read(directory, files)
    # With a run.json, only flat buffers need more: the parallel sizes.
    is_read = not saved or flat_optimizer_state.is_stored(contents)
    common = read_common(contents, names, required=not saved and not provided) if is_read else {}
    arguments = train_state.added(provided[0], directory, names, files) if provided else common.get("args", {})
    if saved:
        architecture = saved.architecture
    else:
        rows = {"padded_vocab_size": tensors[EMBEDDING].shape[0]} if provided else {}
        origin = provided[1] if provided else f"{directory}/{COMMON}"
        architecture = megatron_args.architecture(arguments | rows, origin, run.rsplit("/", 1)[-1], provided is not None)
    model = Model(architecture, tensors[EMBEDDING].shape[0])
    family = families.family_of(architecture)
    states = [key for key in (*contents.entries, *contents.objects) if _STATE.fullmatch(key)]
    left_out = tuple(key for key in states if "_extra_state" not in key)
    unknown = [key for key in contents.objects if not _STATE.fullmatch(key)]
    if unknown:
        raise BadData(f"{directory}: this model has no {abbreviated(unknown)}", "the model family is another one")
    if architecture.gated_delta and any(name.endswith(".self_attention.out_norm.weight") for name in tensors):
        raise BadData(
            f"{directory}: has megatron-core's gated delta layers, whose out_norm multiplies by 1 + weight as nowhere else",
            "export it with the program that wrote it",
        )
    canonical = family.to_canonical(table, model, tensors, directory)
    tokenizer = _tokenizer(directory, names, saved, files)
    return Source(
        directory=directory,
        format=stored_format.name,
        table=table,
        model=model,
        tensors=canonical,
        aliases=tuple(family.aliases(table, model, tensors)),
        tokenizer=tokenizer,
        **beside_model.stored_fields(stored_format.name, run, names, tokenizer, files),
        iteration=_iteration(directory, {} if saved else common),
        loss=saved.loss if saved else None,
        optimizer=optimizer_state.from_megatron(contents, table, model, canonical, arguments, directory),
        left_out=left_out,
        averages=optimizer_state.averages(contents, table, model, tensors, directory),
        details=_details(contents, {} if saved else arguments, saved),
    )


def _record(directory: str, names: Sequence[str], files: Files) -> RunRecord | None:
    """The `run.json` of lt-train or lt-convert. Raises BadData when a file that it lists is missing or has another size."""
    if checkpoint_layout.RECORD not in names:
        return None
    path = f"{directory}/{checkpoint_layout.RECORD}"
    saved = RunRecord.parse(files.read(path, 0, files.size_bytes(path)), path)
    for name, size in saved.files.items():
        if name not in names:
            raise BadData(f"{directory}/{name}: missing", INCOMPLETE)
        if files.size_bytes(f"{directory}/{name}") != size:
            raise BadData(f"{directory}/{name}: {files.size_bytes(f'{directory}/{name}')} bytes, expected {size}", INCOMPLETE)
    return saved


def _tokenizer(directory: str, names: Sequence[str], saved: RunRecord | None, files: Files) -> TokenizerFiles | None:
    """The tokenizer of the run; Megatron-Bridge's in the checkpoint itself, NeMo's beside the model's configuration."""
    run, _, name = directory.rpartition("/")
    if name == provider_config.WEIGHTS:
        return discovery.of_run(f"{run}/{provider_config.CONTEXT}", None, files, "nemo_tokenizer")
    has_own = provider_config.RUN_CONFIG in names and checkpoint_layout.TOKENIZER_DIRECTORY in names
    return discovery.of_run(directory if has_own else run or ".", saved.tokenizer if saved else None, files)


def _iteration(directory: str, common: Mapping[str, Any]) -> int | None:
    """The iteration in the directory's name, or else the one stored in the checkpoint: NeMo has another name for it."""
    name = directory.rsplit("/", 1)[-1]
    match = re.fullmatch(r"iter_(\d+)", name)
    stored = None if name == checkpoint_layout.RELEASE else common.get("iteration", common.get("global_step"))
    return int(match[1]) if match else stored if isinstance(stored, int) else None


def model_tensors(contents: dcp.Contents) -> dict[str, Tensor]:
    """The model's tensors, one per layer, without the prefix that some trainers add to names."""
    tensors: dict[str, Tensor] = {}
    for key in contents.entries:
        if not _STATE.fullmatch(key):
            tensors |= stacked_layers.unstacked(contents.tensor(key))
    prefix = next(
        (name.removesuffix(stacked_layers.EMBEDDING) for name in tensors if name.endswith(stacked_layers.EMBEDDING)), ""
    )
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def read_common(contents: dcp.Contents, names: Sequence[str], required: bool = True) -> dict[str, Any]:
    """Return what Megatron stores beside the tensors: `args` as a dict, plain values, and inert records of everything else.

    megatron-core 0.16 stores it in common.pt, 0.19 as an object among the tensors. Raises BadData when `required` arguments are
    missing: Megatron-Bridge and NeMo store none.
    """
    path = f"{contents.directory}/{COMMON}"
    if COMMON in names:
        content, _ = torch_archive.read(path, 0, contents.files.size_bytes(path), contents.files, COMMON)
    else:
        keys = [key for key in contents.objects if key.startswith("common_state/")]
        if not keys and required:
            raise BadData(f"{path}: missing", "without run.json, the architecture is read from it")
        content = contents.object(keys[0]) if keys else {}
        # A sharded object is stored as a list with one entry.
        content = content[0] if isinstance(content, list) and content else content
    stored = content.get("args") if isinstance(content, dict) else None
    if isinstance(stored, pickles.Record):
        return dict(content) | {"args": vars(stored)}
    if required:
        raise BadData(f"{contents.directory}: holds no Megatron arguments")
    return {name: value for name, value in content.items() if name != "args"} if isinstance(content, dict) else {}


def _details(contents: dcp.Contents, arguments: Mapping[str, Any], saved: RunRecord | None) -> dict[str, Any]:
    """Return the facts about the training run that `lt-convert inspect` prints."""
    sizes = {
        name: arguments.get(argument)
        for name, argument in (
            ("tensor_parallel", "tensor_model_parallel_size"),
            ("pipeline_parallel", "pipeline_model_parallel_size"),
            ("data_parallel", "data_parallel_size"),
        )
        if isinstance(arguments.get(argument), int)
    }
    samples = saved.consumed_samples if saved else arguments.get("consumed_train_samples")
    return {
        "parallel": sizes,
        "consumed_samples": samples,
        "files": len({location.file for location in contents.locations.values()}),
    }


def outputs(target: Target, table: str = TABLE) -> list[OutputFile]:
    """A run directory with one checkpoint, the tracker last: `release`, or `iter_*` when the optimizer state is converted.

    `table` is the table of GPTModel or HybridModel.
    """
    model, source = target.model, target.source
    family = families.family_of(model.architecture)
    tensors = family.from_canonical(table, model, target.tensors, source.directory)
    dtype = tensors[EMBEDDING].dtype
    common = megatron_args.common_state(model, dtype, hybrid=table == mapping.MEGATRON_HYBRID)
    iteration, tracked, samples = 0, checkpoint_layout.RELEASE, source.details.get("consumed_samples")
    if source.optimizer:
        iteration = source.optimizer.step if source.iteration is None else source.iteration
        tracked = str(iteration)
        tensors |= optimizer_state.to_megatron(source.optimizer, table, model, _main_weights(target, dtype), source.directory)
        common |= {"iteration": iteration} | optimizer_state.to_megatron_common(source.optimizer, dtype != "float32")
        # Without consumed_train_samples lt-train computes it from the iteration and its own batch size.
        arguments = common["args"].state
        del arguments["consumed_train_samples"]
        arguments.update({"consumed_train_samples": samples} if samples else {})
    directory = f"iter_{iteration:07d}/" if source.optimizer else f"{checkpoint_layout.RELEASE}/"
    is_stacked = has_stacked_layers(table, model.architecture)
    stacked = stacked_layers.entries(tensors, model.architecture.num_layers if is_stacked else 0)
    files = dcp.outputs(stacked, {key: [None] for key in family.extra_states(table, model)}, directory)
    files.insert(-1, OutputFile(f"{directory}{COMMON}", torch_archive.archive(common)))
    files.insert(-1, OutputFile(f"{directory}{CONFIGURATION_FILE}", (json.dumps(CONFIGURATION).encode(),)))
    record = RunRecord(
        architecture=model.architecture,
        padded_vocab_size=model.padded_vocab_size,
        iteration=iteration,
        consumed_samples=(samples or 0) if source.optimizer else 0,
        tokenizer=discovery.recorded(source.tokenizer, target.destination),
        dtype=dtype,
        versions={"lt-convert": version_of("lt-convert")},
        files={output.name.removeprefix(directory): output.size_bytes for output in files},
        loss=source.loss if source.optimizer else None,
        distributed_optimizer=False if source.optimizer else None,
    )
    files.append(OutputFile(f"{directory}{checkpoint_layout.RECORD}", (record.to_bytes(),)))
    files.append(range_checksums.summary(directory, files))
    files += discovery.outputs(source.tokenizer)
    files += beside_model.outputs(source.beside, source.special_ids, source.tokenizer)
    return [*files, OutputFile(checkpoint_layout.TRACKER, (tracked.encode(),))]


def _main_weights(target: Target, dtype: str) -> Mapping[str, Tensor] | None:
    """The optimizer's fp32 main weights for a model in a 16-bit dtype."""
    if dtype == "float32" or target.source.optimizer is None:
        return None
    main_weights = target.source.optimizer.tensors.get(adamw_state.PARAM)
    return (
        main_weights
        if main_weights is not None
        else {name: tensor.cast("float32") for name, tensor in target.source.tensors.items()}
    )
