"""Megatron-FSDP's `fsdp_dtensor`: a DCP checkpoint of the state dicts of Megatron-LM or Megatron-Bridge, read only.

Keys are paths in nested dicts: `model.` and a parameter's name, `optimizer.state.` with a name and the kind of state, `args`.
Each layer has its own names, as local or TransformerEngine layers have them, behind a `module.` for each wrapper. With SwiGLU,
`linear_fc1` is two tensors: `weight_w` is the gate, `weight_v` the up projection. The weights are the optimizer's fp32 weights.
"""

import re
import struct
from collections.abc import Mapping
from typing import Any

from lt_convert.containers import dcp
from lt_convert.containers.dcp import METADATA, Contents
from lt_convert.formats import MEGATRON_FSDP, adamw_state, beside_model
from lt_convert.formats.adamw_state import MOMENTS
from lt_convert.formats.checkpoint import OptimizerState, Source
from lt_convert.formats.directories import listing
from lt_convert.formats.megatron import megatron_args, optimizer_state, provider_config, train_state
from lt_convert.tensors.source_files import UNFINISHED, Files
from lt_convert.tensors.tensor import Tensor, concatenate
from lt_convert.tokenizers import discovery
from lt_convert.weights import families
from lt_convert.weights.mapping import MEGATRON_LOCAL, MEGATRON_TE, Model
from lt_shared import pickles
from lt_shared.console import BadData
from lt_shared.contracts import checkpoint_layout

EMBEDDING = "embedding.word_embeddings.weight"

_MODEL = re.compile(r"model\d*\.(?P<name>.+)")
_STATE = re.compile(r"optimizer\.state\.(?P<name>.+)\.(?P<kind>exp_avg|exp_avg_sq|step)")
_GROUP = re.compile(r"optimizer\.param_to_group_meta\.(?P<name>.+)\.(?P<setting>\w+)")
_LOCAL_NAME = re.compile(r".*\.input_layernorm\.weight")
_HALF = re.compile(r"(?P<whole>.*\.linear_fc1\.(?:weight|bias)\d*)_(?P<half>[wv])")


def is_stored(directory: str, files: Files) -> bool:
    """Whether a DCP checkpoint names Megatron's embedding; TorchTitan has another name for it. Its metadata is not unpickled."""
    path = f"{directory}/{METADATA}"
    return EMBEDDING.encode() in files.read(path, 0, files.size_bytes(path))


def open_source(directory: str, files: Files) -> Source:
    """Raises BadData for anything malformed, and for models of a family that is not known here."""
    names = listing(directory)
    contents = dcp.read(directory, files)
    tensors = _named({match["name"]: key for key in contents.entries if (match := _MODEL.fullmatch(key))}, contents)
    if EMBEDDING in contents.entries:
        raise BadData(f"{directory}/{checkpoint_layout.CONFIGURATION}: missing: Megatron writes it last", UNFINISHED)
    if EMBEDDING not in tensors:
        raise BadData(f"{directory}: has no {EMBEDDING}: not a checkpoint of megatron-core's GPTModel")
    provided = provider_config.read(directory, files)
    run = directory.rpartition("/")[0] or "."
    arguments = train_state.added(provided[0], directory, names, files) if provided else _arguments(contents)
    rows = {"padded_vocab_size": tensors[EMBEDDING].shape[0]} if provided else {}
    origin = provided[1] if provided else f"{directory}/{METADATA}"
    architecture = megatron_args.architecture(arguments | rows, origin, run.rsplit("/", 1)[-1])
    model = Model(architecture, tensors[EMBEDDING].shape[0])
    table = MEGATRON_LOCAL if any(_LOCAL_NAME.fullmatch(name) for name in tensors) else MEGATRON_TE
    family = families.family_of(architecture)
    has_own = checkpoint_layout.TOKENIZER_DIRECTORY in names
    tokenizer = discovery.of_run(directory if has_own else run, None, files)
    return Source(
        directory=directory,
        format=MEGATRON_FSDP.name,
        table=table,
        model=model,
        tensors=family.to_canonical(table, model, tensors, directory),
        aliases=tuple(family.aliases(table, model, tensors)),
        tokenizer=tokenizer,
        **beside_model.stored_fields(MEGATRON_FSDP.name, run, names, tokenizer, files),
        iteration=_iteration(contents, directory),
        optimizer=_optimizer(contents, table, model, arguments, directory),
        left_out=tuple(key for key in (*contents.entries, *contents.objects) if not _MODEL.fullmatch(key) and key != "args"),
        details={
            "consumed_samples": arguments.get("consumed_train_samples"),
            "files": len({location.file for location in contents.locations.values()}),
        },
    )


def _named(keys: Mapping[str, str], contents: Contents) -> dict[str, Tensor]:
    """The tensors at these keys by their names without wrappers, and the halves of SwiGLU's first layer joined."""
    prefix = next((name.removesuffix(EMBEDDING) for name in keys if name.endswith(EMBEDDING)), "")
    by_name = {name.removeprefix(prefix): contents.tensor(key) for name, key in keys.items() if not name.endswith("_extra_state")}
    tensors: dict[str, Tensor] = {}
    for name, tensor in by_name.items():
        match = _HALF.fullmatch(name)
        if not match:
            tensors[name] = tensor
        elif match["half"] == "w":
            other = f"{match['whole']}_v"
            if other not in by_name:
                raise BadData(f"{contents.directory}: has {name} and no {other}", "the checkpoint is incomplete: copy it again")
            tensors[match["whole"]] = concatenate(match["whole"], 0, [tensor, by_name[other]])
    return tensors


def _arguments(contents: Contents) -> dict[str, Any]:
    record = contents.object("args") if "args" in contents.objects else None
    if not isinstance(record, pickles.Record):
        raise BadData(f"{contents.directory}: holds no Megatron arguments, and no {provider_config.RUN_CONFIG}")
    return dict(vars(record))


def _iteration(contents: Contents, directory: str) -> int | None:
    """The number of the iteration that the checkpoint stores, or that the directory is named after."""
    stored = contents.object("iteration") if "iteration" in contents.objects else None
    match = re.fullmatch(r"iter_(\d+)", directory.rsplit("/", 1)[-1])
    return stored if type(stored) is int else int(match[1]) if match else None


def _optimizer(contents: Contents, table: str, model: Model, arguments: Mapping[str, Any], origin: str) -> OptimizerState | None:
    keys: dict[str, dict[str, str]] = {}
    for key in contents.entries:
        if match := _STATE.fullmatch(key):
            keys.setdefault(match["kind"], {})[match["name"]] = key
    if not all(keys.get(kind) for kind in MOMENTS):
        return None
    settings: dict[str, Any] = {}
    for key in contents.objects:
        match = _GROUP.fullmatch(key)
        # The embedding's group has weight decay if any has.
        if match and match["name"].endswith(EMBEDDING) and match["setting"] in (*adamw_state.HYPERPARAMETERS, "step", "max_lr"):
            settings[match["setting"]] = contents.object(key)
    step = _step(contents, keys.get("step", {}), settings.pop("step", None))
    if step is None:
        return OptimizerState({}, 0, {}, problem=f"{origin}: does not store the step count of its optimizer")
    family = families.family_of(model.architecture)
    by_kind = {kind: family.to_canonical(table, model, _named(keys[kind], contents), f"{origin}: {kind}") for kind in MOMENTS}
    max_lr = settings.pop("max_lr", None)
    tokens = optimizer_state.tokens({}, arguments)
    return OptimizerState(by_kind, step, settings | ({} if max_lr is None else {"initial_lr": max_lr}), tokens)


def _step(contents: Contents, keys: Mapping[str, str], of_group: Any) -> int | None:
    """torch's Adam has a scalar for each parameter, TransformerEngine's a number in each param group."""
    if type(of_group) in (int, float):
        return int(of_group)
    for key in keys.values():
        count = contents.tensor(key)
        view = count.chunks[0].view
        if count.dtype == "float32" and not count.shape and view is not None:
            return int(struct.unpack("<f", contents.files.read(view.file, view.offset_bytes, 4))[0])
    return None
