"""Which checkpoint SRC means: a directory, the newest checkpoint of a run, or the last one of a manifest, local or remote."""

import os
import re
from collections.abc import Sequence

from lt_convert import formats
from lt_convert.containers.dcp import METADATA
from lt_convert.formats import (
    FORMATS,
    MEGATRON_DIST,
    MEGATRON_FSDP,
    MEGATRON_HYBRID,
    OLMO_CORE,
    TORCHTITAN,
    olmo_core,
    unread_formats,
)
from lt_convert.formats.checkpoint import Source
from lt_convert.formats.directories import STEPS, listing, normalized
from lt_convert.formats.megatron import fsdp, torch_dist, train_state
from lt_convert.tensors.source_files import INCOMPLETE, Files
from lt_shared.console import BadData, NoInput, warn
from lt_shared.contracts import checkpoint_layout, manifest
from lt_shared.contracts.manifest import Checkpoint, Dataset
from lt_shared.files import ownership, storage

_DEEPSPEED = re.compile(
    r"global_step\d+(_universal)?|(\w+_)?zero_pp_rank_\d+_mp_rank_\d+_\w+\.pt|layer_\d+-model_\d+-model_states\.pt|mp_rank_\d+_model_states\.pt"
)


def open_source(argument: str, files: Files) -> Source:
    """The checkpoint that SRC means, opened. Raises as `locate` and as the format's own `open_source`."""
    directory, name = locate(argument, files)
    return FORMATS[name].open_source(directory, files)


def locate(argument: str, files: Files) -> tuple[str, str]:
    """The checkpoint directory and its format.

    Raises: NoInput when there is no checkpoint, BadData for one that is incomplete or a tracker that names none.
    """
    requested = _last_of_manifest(argument) if argument == "-" or argument.startswith("@") else argument
    path = normalized(requested)
    if path.endswith(".nemo") and not os.path.isdir(path):
        raise BadData(f"{path}: an archive of NeMo 1, which is not read", "convert it first: convert_nemo1_to_nemo2.py of NeMo")
    if not storage.is_remote(path) and os.path.isfile(path):
        raise unread_formats.error(os.path.dirname(path), [os.path.basename(path)]) or NoInput(f"{path}: not a directory")
    names = listing(path)
    if not storage.is_remote(path):
        ownership.check_link(requested.removeprefix("file://"))
    _check_not_deepspeed(path, names)
    if checkpoint_layout.TRACKER in names:
        path = f"{path}/{_tracked(path, files)}"
        names = listing(path)
    elif train_state.TRACKER in names:
        path = f"{path}/iter_{train_state.tracked_step(path, files):07d}"
        names = listing(path)
    if {"weights", "context"} <= set(names):
        path = _weights_of_nemo(path)
        names = listing(path)
    steps = [(int(match[1]), name) for pattern in STEPS for name in names if (match := pattern.fullmatch(name))]
    if steps and not olmo_core.recognise(names):
        path = _newest_step(path, steps)
        names = listing(path)
    if olmo_core.recognise(names):
        return path, OLMO_CORE.name
    recognised = formats.recognise(names)
    # TorchTitan and Megatron-FSDP have the same files; the names of the tensors tell them apart.
    # What was recorded of a checkpoint's files is known only after its format: `files` has to open `.metadata` after that.
    with Files() as unchecked:
        if recognised == TORCHTITAN.name and METADATA in names and fsdp.is_stored(path, unchecked):
            return path, MEGATRON_FSDP.name
        if recognised == MEGATRON_DIST.name and torch_dist.is_hybrid(path, unchecked):
            return path, MEGATRON_HYBRID.name
    if recognised is None and any(name.endswith(".distcp") for name in names):
        raise BadData(f"{path}/.metadata: missing", "the checkpoint is incomplete: use another one or copy it again")
    if recognised is None:
        raise (
            unread_formats.error(path, names)
            or unread_formats.error_below(path)
            or NoInput(
                f"{path}: no checkpoint of a supported format",
                "expected config.json with safetensors, .metadata with .distcp files, mp_rank_* directories, or "
                f"{checkpoint_layout.TRACKER}",
            )
        )
    return path, recognised


def _last_of_manifest(argument: str) -> str:
    entries = manifest.read([argument])
    last = entries[-1]
    if isinstance(last, Dataset) and last == Dataset(last.prefix):
        return last.prefix
    checkpoints: list[Checkpoint] = manifest.checkpoints(entries, "standard input" if argument == "-" else argument[1:])
    return checkpoints[-1].path


def tracked_iteration(run: str, files: Files) -> int | None:
    """The iteration that a run's tracker file names, None for a `release`. Raises BadData when it holds anything else."""
    path = f"{run}/{checkpoint_layout.TRACKER}"
    content = files.read(path, 0, min(files.size_bytes(path), 100)).decode(errors="replace").strip()
    if content == checkpoint_layout.RELEASE:
        return None
    if not (content.isascii() and content.isdigit()):
        raise BadData(f"{path}: holds {content[:40]!r}, expected an iteration or {checkpoint_layout.RELEASE!r}")
    return int(content)


def _tracked(run: str, files: Files) -> str:
    """The name of the checkpoint directory that a run's tracker file names."""
    iteration = tracked_iteration(run, files)
    return checkpoint_layout.RELEASE if iteration is None else f"iter_{iteration:07d}"


def _check_not_deepspeed(path: str, names: Sequence[str]) -> None:
    """Raise BadData for a DeepSpeed checkpoint or run, except beside a complete model, where transformers keeps one."""
    if any(_DEEPSPEED.fullmatch(name) for name in names) and formats.recognise(names) is None:
        raise BadData(
            f"{path}: a checkpoint of DeepSpeed (Megatron-DeepSpeed, GPT-NeoX), which is not read",
            "export it to Hugging Face first: GPT-NeoX with tools/ckpts/convert_neox_to_hf.py, "
            "Megatron-DeepSpeed with tools/convert_checkpoint/deepspeed_to_transformers.py",
        )


def _weights_of_nemo(path: str) -> str:
    """The directory of the tensors in a checkpoint of NeMo 2. Raises BadData for one that NeMo has not finished."""
    parent, _, name = path.rpartition("/")
    if not storage.is_remote(path) and f"{name}-unfinished" in listing(parent or "/"):
        raise BadData(f"{path}: NeMo has not finished it: {name}-unfinished is beside it", INCOMPLETE)
    return f"{path}/weights"


def is_finished_step(directory: str) -> bool:
    """Whether a trainer takes its directory of a step for a checkpoint.

    TorchTitan writes `.metadata` or the index of safetensors last, OLMo-core two files beside the tensors.
    """
    try:
        names = listing(directory)
        return olmo_core.is_finished(names) if olmo_core.recognise(names) else formats.recognise(names) is not None
    except NoInput:
        return False


def _newest_step(path: str, steps: list[tuple[int, str]]) -> str:
    """The newest complete step of TorchTitan or OLMo-core. Warns of newer ones that are not complete."""
    for position, (_, name) in enumerate(ordered := sorted(steps, reverse=True)):
        if is_finished_step(f"{path}/{name}"):
            if position:
                newer = ", ".join(name for _, name in ordered[:position])
                warn(f"{path}: {newer}: not complete: the newest complete one is {name}")
            return f"{path}/{name}"
    raise BadData(f"{path}: none of its {len(steps)} checkpoints is complete", INCOMPLETE)
