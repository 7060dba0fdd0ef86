"""AdamW's state in Megatron's torch_dist: two moments per weight, and fp32 main weights beside 16-bit ones.

`flat_optimizer_state` takes Megatron's flat buffers apart.
"""

import itertools
import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

from lt_convert.containers import torch_archive
from lt_convert.containers.dcp import Contents
from lt_convert.containers.torch_archive import Scalar, StoredValues
from lt_convert.formats.adamw_state import EXP_AVG, FLAGS, HYPERPARAMETERS, MOMENTS, PARAM, TOKENS, check, is_of_muon
from lt_convert.formats.checkpoint import OptimizerState
from lt_convert.formats.megatron import flat_optimizer_state, stacked_layers
from lt_convert.tensors.reshape import reshaped
from lt_convert.tensors.tensor import Tensor, assemble
from lt_convert.weights import families
from lt_convert.weights.mapping import Model, is_trained
from lt_convert.weights.tensor_names import abbreviated
from lt_shared.console import BadData
from lt_shared.contracts.checkpoint_layout import COMMON
from lt_shared.pickles import Record

# The other entries of a param group of Megatron's: its scheduler reads the multipliers, the optimizer matches groups by them.
MEGATRON_FLAGS = {
    "is_expert_parallel": False,
    "default_config": True,
    "lr_mult": 1.0,
    "is_decoupled_lr": False,
    **FLAGS,
    "foreach": None,
    "fused": False,
}
# Settings that also identify a group in megatron-core 0.19 and newer, which refuses a state without them.
SCHEDULE = ("max_lr", "min_lr", "start_wd", "end_wd")
# The prefix of the averaged weights of lt-train.
AVERAGE = "optimizer.state.ema."
_MEGATRON = re.compile(r"(?:chained_\d+\.)?optimizer\.state\.(?P<kind>exp_avg|exp_avg_sq|param|fp32_param)\.(?P<name>.+)")


def from_megatron(
    contents: Contents, table: str, model: Model, weights: Mapping[str, Tensor], arguments: Mapping[str, Any], origin: str
) -> OptimizerState | None:
    """Read the optimizer state of a torch_dist checkpoint. None if it has no state, or Muon's.

    `table` names the tensors' table, `weights` are the model's canonical tensors, `arguments` the stored arguments of Megatron.
    Flat buffers that cannot be taken apart have only their `problem`. Raises BadData for tensors that do not fit the model.
    """
    if flat_optimizer_state.is_stored(contents):
        return _from_flat_buffers(contents, model, weights, arguments, origin)
    by_kind_stored: dict[str, dict[str, Tensor]] = {}
    for key in contents.entries:
        if match := _MEGATRON.fullmatch(key):
            kind = PARAM if match["kind"] == "fp32_param" else match["kind"]
            whole = contents.tensor(key)
            by_kind_stored.setdefault(kind, {}).update(stacked_layers.unstacked(whole.named(match["name"])))
    if is_of_muon(contents.entries) or not all(by_kind_stored.get(kind) for kind in MOMENTS):
        return None
    family = families.family_of(model.architecture).of_parameters()
    prefix = stacked_layers.prefix_of(by_kind_stored[EXP_AVG])
    shapes = {name: entry.shape for name, entry in family.entries(table, model).items()}
    by_kind = {}
    for kind, tensors in by_kind_stored.items():
        named = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        joined = {name: _joined_fragments(tensor, shapes.get(name, tensor.shape)) for name, tensor in named.items()}
        by_kind[kind] = family.to_canonical(table, model, joined, f"{origin}: {kind}")
    common, locate = _common(contents)
    # If run.json describes the model, the arguments were not read yet.
    stored = vars(common["args"]) if isinstance(common.get("args"), Record) else {}
    return OptimizerState(by_kind, *_counters(common, arguments or stored, common.get("optimizer"), locate, contents, origin))


def averages(
    contents: Contents, table: str, model: Model, tensors: Mapping[str, Tensor], origin: str
) -> Mapping[str, Tensor] | None:
    """Return the canonical averages of the weights that `lt-train --ema-decay` has saved, None without them.

    `tensors` are the model's by the names in `table`, one per layer: those that no optimizer knows are taken from there. Raises
    BadData if the average of a weight is missing.
    """
    stored: dict[str, Tensor] = {}
    for key in contents.entries:
        if key.startswith(AVERAGE):
            stored |= stacked_layers.unstacked(contents.tensor(key).named(key.removeprefix(AVERAGE)))
    if not stored:
        return None
    family = families.family_of(model.architecture)
    missing = [name for name in family.of_parameters().entries(table, model) if name in tensors and name not in stored]
    if missing:
        raise BadData(f"{origin}: has no average of {abbreviated(missing)}", "convert it without --ema")
    return family.to_canonical(table, model, {**tensors, **stored}, f"{origin}: averages")


def _from_flat_buffers(
    contents: Contents, model: Model, weights: Mapping[str, Tensor], arguments: Mapping[str, Any], origin: str
) -> OptimizerState:
    try:
        common, locate = _common(contents)
        by_kind = flat_optimizer_state.read(contents, model, weights, arguments, origin)
        if any(kind not in by_kind for kind in MOMENTS):
            raise BadData(f"{origin}: its optimizer is not Adam: it stores {', '.join(by_kind)}")
        settings = [contents.object(key) for key in contents.objects if flat_optimizer_state.SETTINGS.fullmatch(key)]
        return OptimizerState(by_kind, *_counters(common, arguments, settings, locate, contents, origin), is_flat=True)
    except BadData as error:
        return OptimizerState({}, 0, {}, problem=str(error), is_flat=True)


def _joined_fragments(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Give a tensor of `fully_sharded_model_space`, which megatron-core wrote up to 0.15, its own shape.

    The stored axes are (fragments along each axis of the weight ..., values per fragment): a weight [8, 6] on 2 tensor parallel
    ranks is stored as [2, 1, 24]. Other tensors are returned unchanged.
    """
    *counts, size = tensor.shape
    if tensor.shape == shape or len(counts) != len(shape) or math.prod(counts) * size != math.prod(shape):
        return tensor
    if any(length % max(1, count) for length, count in zip(shape, counts, strict=True)):
        return tensor
    fragment = tuple(length // count for length, count in zip(shape, counts, strict=True))
    pieces = [
        (
            tuple(
                range(index * size_of_axis, (index + 1) * size_of_axis) for index, size_of_axis in zip(at, fragment, strict=True)
            ),
            reshaped(tensor.at(*at), 0, fragment),
        )
        for at in itertools.product(*map(range, counts))
    ]
    return assemble(tensor.name, shape, pieces)


def _common(contents: Contents) -> tuple[dict[str, Any], Callable[[Any], StoredValues]]:
    """Return the values that Megatron stores beside the tensors, and a function that locates tensors among these values."""
    directory, files = contents.directory, contents.files
    stored = [key for key in contents.objects if key.startswith("common_state/")]
    if stored:
        common, locate = contents.stored_object(stored[0])
        common = common[0] if isinstance(common, list) and common else common
    else:
        path = f"{directory}/{COMMON}"
        common, locate = torch_archive.read(path, 0, files.size_bytes(path), files, COMMON)
    return (common if isinstance(common, dict) else {}), locate


def _counters(
    common: Mapping[str, Any],
    arguments: Mapping[str, Any],
    optimizer: Any,
    locate: Callable[[Any], StoredValues],
    contents: Contents,
    origin: str,
) -> tuple[int, dict[str, Any], int, dict[str, Any]]:
    """The number of updates, the hyperparameters in use, the number of tokens, and the schedule's bounds.

    `optimizer` has Megatron's param groups. Raises BadData without a number of updates.
    """
    step = next((_first(optimizer, name) for name in ("common_step", "step") if _first(optimizer, name) is not None), None)
    if isinstance(step, Record):
        stored = locate(step)
        if stored.dtype == "float32" and stored.view.shape == ():
            step = struct.unpack("<f", contents.files.read(stored.view.file, stored.view.offset_bytes, 4))[0]
    if not isinstance(step, int | float):
        raise BadData(f"{origin}: does not store the step count of its optimizer", "convert it with --no-optimizer")
    hyperparameters = {name: value for name in HYPERPARAMETERS if (value := _first(optimizer, name)) is not None}
    schedule = {name: value for name in SCHEDULE if (value := _first(optimizer, name)) is not None}
    initial = {"initial_lr": schedule["max_lr"]} if "max_lr" in schedule else {}
    return int(step), hyperparameters | initial, tokens(common, arguments), schedule


def tokens(common: Mapping[str, Any], arguments: Mapping[str, Any]) -> int:
    """Return the number of trained tokens; 0 if it is not stored."""
    if type(common.get(TOKENS)) is int:
        return int(common[TOKENS])
    samples, length = arguments.get("consumed_train_samples"), arguments.get("seq_length")
    return samples * length if type(samples) is int and type(length) is int else 0


def _first(tree: Any, name: str) -> Any:
    """The first value of that name in nested dictionaries and lists, None when there is none."""
    if isinstance(tree, dict) and tree.get(name) is not None:
        return tree[name]
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return next((match for value in values if (match := _first(value, name)) is not None), None)


def to_megatron(
    state: OptimizerState, table: str, model: Model, weights: Mapping[str, Tensor] | None, origin: str
) -> dict[str, Tensor]:
    """The state's tensors in a torch_dist checkpoint by the names in `table`, one per layer. Raises as `to_torchtitan`.

    `weights` are the canonical fp32 main weights of a model in a 16-bit dtype, else None.
    """
    check(state)
    family = families.family_of(model.architecture).of_parameters()
    kinds = {kind: state.tensors[kind] for kind in MOMENTS} | ({} if weights is None else {"fp32_param": _parameters(weights)})
    return {
        f"optimizer.state.{kind}.{name}": tensor
        for kind, canonical in kinds.items()
        for name, tensor in family.from_canonical(table, model, canonical, f"{origin}: {kind}").items()
    }


def _parameters(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if is_trained(name)}


def to_megatron_common(state: OptimizerState, mixed_precision: bool) -> dict[str, Any]:
    """The rest of the state, which Megatron stores beside the tensors: param groups with and without weight decay, the tokens."""
    hyperparameters = {"lr": 0.0, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0} | dict(state.hyperparameters)
    # Without max_lr and min_lr in a group, the resumed run uses its own: another trainer's checkpoint has none.
    hyperparameters.pop("initial_lr", None)
    common = hyperparameters | MEGATRON_FLAGS | dict(state.schedule)
    groups = [common | {"wd_mult": 1.0}, common | {"wd_mult": 0.0, "weight_decay": 0.0}]
    inner = {"state": {"common_step": Scalar(state.step)}, "param_groups": groups}
    return {"optimizer": {"optimizer": inner} if mixed_precision else inner, TOKENS: state.tokens}
