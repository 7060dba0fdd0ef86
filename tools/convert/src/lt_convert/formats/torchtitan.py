"""TorchTitan: a distributed checkpoint of the model under its own names, the optimizer, and the trainer's counters.

TorchTitan keeps no model configuration with a checkpoint: it comes from the run record that lt-convert leaves, or from a Hugging
Face `config.json` in the checkpoint, in the folder with the steps, or in the run's folder. It is not guessed from the shapes:
Llama 3 8B and 3.1 8B have the same, and TorchTitan's own 1B has another RoPE factor than Meta's.
"""

import importlib.metadata
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lt_convert.containers import dcp
from lt_convert.containers.dcp import METADATA, Contents, Entry
from lt_convert.formats import adamw_state
from lt_convert.formats.checkpoint import Result, Source
from lt_convert.formats.location import TORCHTITAN_STEP, listing
from lt_convert.tensors.output_files import OutputFile
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor
from lt_convert.tokenizers import discovery
from lt_convert.weights import families
from lt_convert.weights.mapping import PADDING, ROTARY_BUFFERS, TORCHTITAN, TORCHTITAN_2025, Model
from lt_shared import checkpoint_layout, huggingface
from lt_shared.architecture import Architecture
from lt_shared.checkpoint_layout import COMMON, RunRecord
from lt_shared.console import BadConfig, BadData, UsageError

TABLE = TORCHTITAN
CONFIG = "config.json"
EMBEDDING = "tok_embeddings.weight"
STEP = "train_state.step"

# Until the spring of 2025 the model's keys began with this.
_MODEL_PREFIX = "model."
_STATE = re.compile(r"(optimizer|lr_scheduler|dataloader|train_state)(\.|$).*")
_OTHER_BACKEND = re.compile(r"model_\d+\.pt")
# Checkpoints before 0.3 have the projections of attention under its own name.
_PROJECTIONS = ".qkv_linear."


def recognise(names: Sequence[str]) -> bool:
    # Megatron's torch_dist has a `.metadata` too, and a configuration beside it.
    return (METADATA in names and "metadata.json" not in names and COMMON not in names) or any(
        _OTHER_BACKEND.fullmatch(name) for name in names
    )


def open_source(directory: str, files: Files) -> Source:
    """Raises BadData for anything malformed and for a checkpoint whose configuration is not beside it."""
    names = listing(directory)
    if METADATA not in names:
        raise BadData(
            f"{directory}: written by TorchTitan's torch_checkpointing backend, which has no fixed format yet",
            "save it with the default backend (--checkpoint dcp)",
        )
    contents = dcp.read(directory, files)
    tensors = model_tensors(contents)
    if EMBEDDING not in tensors:
        raise BadData(f"{directory}: has no {EMBEDDING}: not a checkpoint of one of TorchTitan's language models")
    saved = _record(directory, names, files)
    architecture = saved.architecture if saved else _configuration(directory, tensors, files)
    padding = {key: contents.tensor(key) for key in contents.entries if key.startswith(PADDING) and ".state." not in key}
    padded = architecture.padded_vocab_size()
    if saved:
        padded = saved.padded_vocab_size
    model = Model(architecture, padded)
    family = families.family_of(architecture)
    table = TORCHTITAN if any(_PROJECTIONS in name for name in tensors) else TORCHTITAN_2025
    iteration = _step(contents, directory)
    run = directory if saved else _run_of(directory)
    return Source(
        directory=directory,
        format="torchtitan",
        table=table,
        model=model,
        tensors=family.take_apart(table, model, tensors, directory) | padding,
        copies=tuple(family.repeated(table, model, tensors)),
        tokenizer=discovery.of_run(run, saved.tokenizer if saved else None),
        iteration=iteration,
        loss=saved.loss if saved else None,
        optimizer=adamw_state.of_torchtitan(contents, table, model, directory),
        left_out=tuple(key for key in (*contents.entries, *contents.objects) if _STATE.fullmatch(key) and key != STEP),
        details={"files": len({place.file for place in contents.places.values()})},
    )


def model_tensors(contents: Contents) -> dict[str, Tensor]:
    """The model's tensors; everything that is neither the training's state nor set aside by a conversion."""
    names = {key: key for key in contents.entries if not _STATE.fullmatch(key) and not key.startswith(PADDING)}
    if EMBEDDING not in names and _MODEL_PREFIX + EMBEDDING in names:
        names = {key.removeprefix(_MODEL_PREFIX): key for key in names}
    return {name: contents.tensor(key) for name, key in names.items() if not re.fullmatch(ROTARY_BUFFERS, name)}


def _record(directory: str, names: Sequence[str], files: Files) -> RunRecord | None:
    """What lt-convert wrote about the checkpoint."""
    if checkpoint_layout.RECORD not in names:
        return None
    path = f"{directory}/{checkpoint_layout.RECORD}"
    return RunRecord.parse(files.read(path, 0, files.size_bytes(path)), path)


def _run_of(directory: str) -> str:
    """The folder of the steps, for one of TorchTitan's own checkpoints; any other directory itself."""
    parent, _, name = directory.rpartition("/")
    return parent or "." if TORCHTITAN_STEP.fullmatch(name) else directory


def configuration_places(directory: str) -> list[str]:
    """Where the configuration of a checkpoint may be: beside it, in the folder with the steps, in the run's folder."""
    steps = _run_of(directory)
    return [directory] if steps == directory else [directory, steps, steps.rpartition("/")[0] or "."]


def _configuration(directory: str, tensors: Mapping[str, Tensor], files: Files) -> Architecture:
    """The architecture in the nearest config.json: the checkpoint's, that of the folder with the steps, or of the run."""
    places = configuration_places(directory)
    for place in places:
        if CONFIG not in listing(place):
            continue
        path = f"{place}/{CONFIG}"
        try:
            config = dict(json.loads(files.read(path, 0, files.size_bytes(path))))
            return huggingface.from_config(config, place.rsplit("/", 1)[-1])
        except (ValueError, TypeError) as error:
            raise BadData(f"{path}: not a model configuration: {error}") from None
        except BadConfig as error:
            raise BadData(f"{path}: {error}", error.hint) from None
    rows, hidden = tensors[EMBEDDING].shape
    raise BadData(
        f"{directory}: TorchTitan does not store the model's configuration (this one has {rows} x {hidden} embeddings)",
        f"put the {CONFIG} of the model (the one in TorchTitan's hf_assets_path) into {places[-1]}",
    )


def _step(contents: Contents, directory: str) -> int | None:
    """How many steps it has been trained for: the trainer's count, or the number in the directory's name."""
    if STEP in contents.objects:
        step = contents.object(STEP)
        if type(step) is int:
            return step
    match = TORCHTITAN_STEP.fullmatch(directory.rsplit("/", 1)[-1])
    return int(match[1]) if match else None


def outputs(result: Result) -> list[OutputFile]:
    """A checkpoint for TorchTitan's `checkpoint.initial_load_path`, `.metadata` last."""
    model, source = result.model, result.source
    _check(model.architecture, source.directory)
    family = families.family_of(model.architecture)
    canonical = _weights(result)
    tensors = family.make(TORCHTITAN, model, canonical, source.directory)
    entries = [Entry.whole(name, tensor) for name, tensor in tensors.items()]
    entries += [Entry.whole(name, tensor) for name, tensor in canonical.items() if name.startswith(PADDING)]
    objects: dict[str, Any] = {}
    if source.optimizer:
        moments, objects = adamw_state.torchtitan(source.optimizer, model, source.iteration or 0, source.directory)
        entries += moments
    made = dcp.outputs(entries, objects)
    record = RunRecord(
        architecture=model.architecture,
        padded_vocab_size=model.padded_vocab_size,
        iteration=source.iteration or 0,
        consumed_samples=0,
        tokenizer=discovery.recorded(source.tokenizer, result.destination),
        dtype=tensors[EMBEDDING].dtype,
        versions={"lt-convert": importlib.metadata.version("lt-convert")},
        files={output.name: output.size_bytes for output in made},
        loss=source.loss,
    )
    beside = [OutputFile(checkpoint_layout.RECORD, (record.to_bytes(),)), *discovery.outputs(source.tokenizer)]
    return [*made[:-1], *beside, made[-1]]


def _weights(result: Result) -> Mapping[str, Tensor]:
    """The weights to train on: the optimizer's in fp32 where it has them, unless a dtype was asked for."""
    source = result.source
    is_cast = any(tensor.dtype != source.tensors[name].dtype for name, tensor in result.tensors.items())
    precise = source.optimizer.moments.get(adamw_state.PARAM) if source.optimizer else None
    return result.tensors if is_cast or precise is None else precise


def _check(architecture: Architecture, origin: str) -> None:
    """Raises UsageError for a model that TorchTitan would compute otherwise."""
    if architecture.sliding_window is not None:
        raise UsageError(
            f"{origin}: attends to {architecture.sliding_window} tokens, and TorchTitan's models have no sliding window",
            "convert it to hf or megatron-dist",
        )
