"""AdamW's state in TorchTitan, which trains fp32 weights and stores two moments per weight."""

import re
import struct
from collections.abc import Mapping
from typing import Any

from lt_convert.containers.dcp import Contents, Entry
from lt_convert.containers.torch_archive import Scalar
from lt_convert.formats.adamw_state import FLAGS, HYPERPARAMETERS, MOMENTS, TOKENS, check
from lt_convert.formats.checkpoint import OptimizerState
from lt_convert.tensors.tensor import Tensor, assemble
from lt_convert.weights import families
from lt_convert.weights.mapping import PADDING, TORCHTITAN, Model
from lt_shared.console import BadData
from lt_shared.models.architecture import Architecture

_TORCHTITAN = re.compile(r"optimizer\.state\.(?P<name>.+)\.(?P<kind>exp_avg|exp_avg_sq|step)")
_FUSED = re.compile(r"(?P<stem>.*)wqkv\.(?P<leaf>weight|bias)")
_SEPARATE = re.compile(r"(?P<stem>.*attention\.(?:qkv_linear\.)?)w(?P<which>[qkv])\.(?P<leaf>weight|bias)")


def from_torchtitan(contents: Contents, table: str, model: Model, origin: str) -> OptimizerState | None:
    """Read the optimizer state of a TorchTitan checkpoint. None if it has no state, or one that is not AdamW's."""
    stored: dict[str, dict[str, Tensor]] = {kind: {} for kind in MOMENTS}
    step = None
    for key in contents.entries:
        match = _TORCHTITAN.fullmatch(key)
        if match and match["kind"] == "step":
            step = key if step is None else step
        elif match:
            stored[match["kind"]][match["name"]] = contents.tensor(key)
    if step is None or not all(stored.values()):
        return None
    family = families.family_of(model.architecture).of_parameters()
    by_kind = {}
    for kind, named in stored.items():
        padding = f"{PADDING}optimizer.state.{kind}."
        padding_rows = {key.removeprefix(padding): contents.tensor(key) for key in contents.entries if key.startswith(padding)}
        separate = _separated(named, model.architecture)
        by_kind[kind] = family.to_canonical(table, model, separate, f"{origin}: {kind}") | {
            PADDING + name: tensor for name, tensor in padding_rows.items()
        }
    count = contents.tensor(step)
    view = count.chunks[0].view
    if count.dtype != "float32" or count.shape or view is None:
        raise BadData(f"{origin}: {step} is not a step count")
    hyperparameters = {
        name: value for name in (*HYPERPARAMETERS, "initial_lr") if (value := _hyperparameter(contents, name)) is not None
    }
    steps = int(struct.unpack("<f", contents.files.read(view.file, view.offset_bytes, 4))[0])
    tokens = contents.object(TOKENS) if TOKENS in contents.objects else 0
    return OptimizerState(by_kind, steps, hyperparameters, tokens if type(tokens) is int else 0)


def _hyperparameter(contents: Contents, name: str) -> Any:
    """A hyperparameter of the embedding's param group: it has weight decay if any group has."""
    value = None
    keys = [key for key in contents.objects if key.startswith("optimizer.param_groups.") and key.endswith(f".{name}")]
    for key in sorted(keys, key=lambda key: "tok_embeddings" not in key)[:1]:
        value = contents.object(key)
    numbers = value if isinstance(value, tuple | list) else (value,)
    return value if all(isinstance(number, int | float) for number in numbers) else None


def to_torchtitan(state: OptimizerState, model: Model, iteration: int, origin: str) -> tuple[list[Entry], dict[str, Any]]:
    """The state as a TorchTitan checkpoint stores it: its tensors, and its other objects with the trainer's counters.

    Raises BadData for a state that cannot be converted.
    """
    check(state)
    family = families.family_of(model.architecture).of_parameters()
    entries: list[Entry] = []
    objects: dict[str, Any] = {}
    parameters: dict[str, Tensor] = {}
    for kind in MOMENTS:
        tensors = family.from_canonical(TORCHTITAN, model, state.tensors[kind], f"{origin}: {kind}")
        if model.architecture.tie_embeddings:
            del tensors["lm_head.weight"]
        parameters = _fused(tensors, model.architecture)
        entries += [Entry.whole(f"optimizer.state.{name}.{kind}", tensor) for name, tensor in parameters.items()]
        entries += [
            Entry.whole(f"{PADDING}optimizer.state.{kind}.{name.removeprefix(PADDING)}", tensor)
            for name, tensor in state.tensors[kind].items()
            if name.startswith(PADDING)
        ]
    groups = {"lr": 0.0, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0} | dict(state.hyperparameters)
    groups = {"initial_lr": groups["lr"]} | groups
    for name, tensor in parameters.items():
        objects[f"optimizer.state.{name}.step"] = Scalar(state.step)
        for key, value in (groups | FLAGS).items():
            objects[f"optimizer.param_groups.{name}.{key}"] = 0.0 if key == "weight_decay" and len(tensor.shape) == 1 else value
    return entries, objects | {"lr_scheduler.last_epoch": iteration, "train_state.step": iteration, TOKENS: state.tokens}


def _fused(tensors: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """Queries, keys and values as the one parameter `wqkv` of TorchTitan's optimizer: by query group its queries, key, value.

    TorchTitan splits `wqkv` in the model's state dict, but not in the optimizer's.
    """
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match = _SEPARATE.fullmatch(name)
        if not match or f"{match['stem']}wk.{match['leaf']}" not in tensors:
            result[name] = tensor
        elif match["which"] == "q":
            separate = {which: tensors[f"{match['stem']}w{which}.{match['leaf']}"] for which in "qkv"}
            pieces = [
                ((fused_rows, *map(range, tensor.shape[1:])), separate[which].take(0, own_rows))
                for which, pairs in _qkv_rows(architecture).items()
                for own_rows, fused_rows in pairs
            ]
            fused = f"{match['stem']}wqkv.{match['leaf']}"
            result[fused] = assemble(fused, (sum(part.shape[0] for part in separate.values()), *tensor.shape[1:]), pieces)
    return result


def _separated(tensors: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """Separate fused tensors, the inverse of `_fused`; other tensors are returned unchanged."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match = _FUSED.fullmatch(name)
        if not match:
            result[name] = tensor
            continue
        for which, pairs in _qkv_rows(architecture).items():
            separate = f"{match['stem']}w{which}.{match['leaf']}"
            pieces = [((own_rows, *map(range, tensor.shape[1:])), tensor.take(0, fused_rows)) for own_rows, fused_rows in pairs]
            rows = sum(len(own_rows) for own_rows, _ in pairs)
            result[separate] = assemble(separate, (rows, *tensor.shape[1:]), pieces)
    return result


def _qkv_rows(architecture: Architecture) -> dict[str, list[tuple[range, range]]]:
    """For queries, keys and values: pairs of their own rows and the same rows of the fused parameter."""
    heads, head = architecture.num_attention_heads // architecture.num_query_groups, architecture.kv_channels
    pairs: dict[str, list[tuple[range, range]]] = {"q": [], "k": [], "v": []}
    start = 0
    for group in range(architecture.num_query_groups):
        for which, size in (("q", heads * head), ("k", head), ("v", head)):
            pairs[which].append((range(group * size, (group + 1) * size), range(start, start + size)))
            start += size
    return pairs
