"""AdamW's state between Megatron and TorchTitan, so that training resumes from the converted checkpoint.

Both store two moments per weight, under its name and in its shape, so the weights' tables convert the moments, too. Megatron
also stores fp32 main weights beside bf16 ones; TorchTitan trains fp32 weights, and gets the main weights. Megatron's flat
buffers are taken apart by `flat_optimizer_state`.
"""

import itertools
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lt_convert.containers import torch_archive
from lt_convert.containers.dcp import Contents, Entry
from lt_convert.containers.torch_archive import Scalar, StoredValues
from lt_convert.formats import flat_optimizer_state, stacked_layers
from lt_convert.formats.checkpoint import OptimizerState
from lt_convert.tensors.blocks import TensorReader, flat
from lt_convert.tensors.reshape import reshaped
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor, assemble
from lt_convert.weights import families
from lt_convert.weights.mapping import MEGATRON, PADDING, TORCHTITAN, Model, is_balancing_bias
from lt_shared.architecture import Architecture
from lt_shared.checkpoint_layout import COMMON
from lt_shared.console import BadData
from lt_shared.pickles import Record

EXP_AVG, EXP_AVG_SQ, PARAM = "exp_avg", "exp_avg_sq", "param"
MOMENTS = (EXP_AVG, EXP_AVG_SQ)
TOKENS = "train_state.ntokens_seen"
HYPERPARAMETERS = ("lr", "betas", "eps", "weight_decay")
# The other entries of a param group of torch's AdamW; the fused implementation is TorchTitan's default.
FLAGS = {
    "amsgrad": False,
    "maximize": False,
    "foreach": False,
    "capturable": False,
    "differentiable": False,
    "fused": True,
    "decoupled_weight_decay": True,
}
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
REMEDY = "save it once with Megatron-LM's --dist-ckpt-optim-fully-reshardable, or convert the weights alone with --no-optimizer"
# Rows of each tensor that are compared with the main weights.
SAMPLED_ROWS = 8

_MEGATRON = re.compile(r"(?:chained_\d+\.)?optimizer\.state\.(?P<kind>exp_avg|exp_avg_sq|param|fp32_param)\.(?P<name>.+)")
# Of the matrices that Muon updates; AdamW has the other parameters.
_MUON = re.compile(r"(?:chained_\d+\.)?optimizer\.state\.momentum_buffer\..+")
_TORCHTITAN = re.compile(r"optimizer\.state\.(?P<name>.+)\.(?P<kind>exp_avg|exp_avg_sq|step)")
_FUSED = re.compile(r"(?P<stem>.*)wqkv\.(?P<leaf>weight|bias)")
_SEPARATE = re.compile(r"(?P<stem>.*attention\.(?:qkv_linear\.)?)w(?P<which>[qkv])\.(?P<leaf>weight|bias)")


def from_megatron(
    contents: Contents, model: Model, weights: Mapping[str, Tensor], arguments: Mapping[str, Any], origin: str
) -> OptimizerState | None:
    """The optimizer state in a torch_dist checkpoint, None when it has none, or that of Muon.

    `weights` are the model's canonical tensors, `arguments` Megatron's, as far as they are stored.
    Flat buffers that cannot be taken apart have only their `problem`. Raises BadData for tensors that do not fit the model.
    """
    if flat_optimizer_state.is_stored(contents):
        return _from_flat_buffers(contents, model, weights, arguments, origin)
    found: dict[str, dict[str, Tensor]] = {}
    for key in contents.entries:
        if match := _MEGATRON.fullmatch(key):
            kind = PARAM if match["kind"] == "fp32_param" else match["kind"]
            whole = contents.tensor(key)
            found.setdefault(kind, {}).update(stacked_layers.unstacked(whole.named(match["name"])))
    if is_of_muon(contents.entries) or not all(found.get(kind) for kind in MOMENTS):
        return None
    family = families.family_of(model.architecture).of_parameters()
    prefix = stacked_layers.prefix_of(found[EXP_AVG])
    shapes = {name: entry.shape for name, entry in family.entries(MEGATRON, model).items()}
    by_kind = {}
    for kind, tensors in found.items():
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        joined = {name: _joined_fragments(tensor, shapes.get(name, tensor.shape)) for name, tensor in own.items()}
        by_kind[kind] = family.to_canonical(MEGATRON, model, joined, f"{origin}: {kind}")
    common, locate = _common(contents)
    # Where run.json says what the model is, nobody has read the arguments.
    stored = vars(common["args"]) if isinstance(common.get("args"), Record) else {}
    return OptimizerState(by_kind, *_counters(common, arguments or stored, common.get("optimizer"), locate, contents, origin))


def is_of_muon(keys: Iterable[str]) -> bool:
    """Whether the training state with these keys is Muon's, for which no other format has a form."""
    return any(_MUON.fullmatch(key) for key in keys)


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


def check_main_weights(state: OptimizerState, weights: Mapping[str, Tensor], files: Files, origin: str) -> None:
    """Raises BadData where main weights, rounded, are not the model's: flat buffers in an unknown order, or damaged ones."""
    one, other = TensorReader(files), TensorReader(files)
    for name, main in state.tensors.get(PARAM, {}).items():
        if name.startswith(PADDING):
            continue
        mine, its = flat(main.cast(weights[name].dtype)), flat(weights[name])
        for row in sorted({number * (its.shape[0] - 1) // (SAMPLED_ROWS - 1) for number in range(SAMPLED_ROWS)}):
            if one.rows(mine, row, row + 1).tobytes() != other.rows(its, row, row + 1).tobytes():
                raise BadData(f"{origin}: the optimizer's main weights of {name} are not the model's weights", REMEDY)


def _joined_fragments(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tensor of `fully_sharded_model_space`, which megatron-core wrote up to 0.15, in its own shape.

    It has the axes (fragments along each axis of the weight ..., values of one fragment): shards of 2 tensor parallel ranks
    of a weight [8, 6] are [2, 1, 24]. Any other tensor is returned as it is.
    """
    *counts, size = tensor.shape
    if tensor.shape == shape or len(counts) != len(shape) or math.prod(counts) * size != math.prod(shape):
        return tensor
    if any(length % max(1, count) for length, count in zip(shape, counts, strict=True)):
        return tensor
    fragment = tuple(length // count for length, count in zip(shape, counts, strict=True))
    pieces = [
        (
            tuple(range(index * each, (index + 1) * each) for index, each in zip(at, fragment, strict=True)),
            reshaped(tensor.at(*at), 0, fragment),
        )
        for at in itertools.product(*map(range, counts))
    ]
    return assemble(tensor.name, shape, pieces)


def _common(contents: Contents) -> tuple[dict[str, Any], Callable[[Any], StoredValues]]:
    """What Megatron stores beside the tensors, and a function that locates tensors in it."""
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
) -> tuple[int, dict[str, Any], int]:
    """The number of updates, the hyperparameters in use, and the number of tokens. `optimizer` has Megatron's param groups."""
    step = next((_first(optimizer, name) for name in ("common_step", "step") if _first(optimizer, name) is not None), None)
    if isinstance(step, Record):
        found = locate(step)
        if found.dtype == "float32" and found.view.shape == ():
            step = struct.unpack("<f", contents.files.read(found.view.file, found.view.offset_bytes, 4))[0]
    if not isinstance(step, int | float):
        raise BadData(f"{origin}: does not store the step count of its optimizer", "convert it with --no-optimizer")
    hyperparameters = {name: value for name in HYPERPARAMETERS if (value := _first(optimizer, name)) is not None}
    max_lr = _first(optimizer, "max_lr")
    return int(step), hyperparameters | ({} if max_lr is None else {"initial_lr": max_lr}), tokens(common, arguments)


def tokens(common: Mapping[str, Any], arguments: Mapping[str, Any]) -> int:
    """How many tokens were trained on, 0 where it is not stored."""
    if type(common.get(TOKENS)) is int:
        return int(common[TOKENS])
    samples, length = arguments.get("consumed_train_samples"), arguments.get("seq_length")
    return samples * length if type(samples) is int and type(length) is int else 0


def _first(tree: Any, name: str) -> Any:
    """The first value of that name in nested dictionaries and lists, None when there is none."""
    if isinstance(tree, dict) and tree.get(name) is not None:
        return tree[name]
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return next((found for value in values if (found := _first(value, name)) is not None), None)


def from_torchtitan(contents: Contents, table: str, model: Model, origin: str) -> OptimizerState | None:
    """The optimizer state in a TorchTitan checkpoint, None when it has none, or that of another optimizer than AdamW."""
    found: dict[str, dict[str, Tensor]] = {kind: {} for kind in MOMENTS}
    step = None
    for key in contents.entries:
        match = _TORCHTITAN.fullmatch(key)
        if match and match["kind"] == "step":
            step = key if step is None else step
        elif match:
            found[match["kind"]][match["name"]] = contents.tensor(key)
    if step is None or not all(found.values()):
        return None
    family = families.family_of(model.architecture).of_parameters()
    by_kind = {}
    for kind, named in found.items():
        padding = f"{PADDING}optimizer.state.{kind}."
        kept = {key.removeprefix(padding): contents.tensor(key) for key in contents.entries if key.startswith(padding)}
        separate = _separated(named, model.architecture)
        by_kind[kind] = family.to_canonical(table, model, separate, f"{origin}: {kind}") | {
            PADDING + name: tensor for name, tensor in kept.items()
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


def to_megatron(state: OptimizerState, model: Model, weights: Mapping[str, Tensor] | None, origin: str) -> dict[str, Tensor]:
    """The state's tensors in a torch_dist checkpoint by Megatron's names, one per layer. Raises as `to_torchtitan`.

    `weights` are the canonical fp32 main weights of a model in a 16-bit dtype, else None.
    """
    check(state)
    family = families.family_of(model.architecture).of_parameters()
    kinds = {kind: state.tensors[kind] for kind in MOMENTS} | ({} if weights is None else {"fp32_param": _parameters(weights)})
    return {
        f"optimizer.state.{kind}.{name}": tensor
        for kind, canonical in kinds.items()
        for name, tensor in family.from_canonical(MEGATRON, model, canonical, f"{origin}: {kind}").items()
    }


def _parameters(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if not is_balancing_bias(name)}


def to_megatron_common(state: OptimizerState, mixed_precision: bool) -> dict[str, Any]:
    """The rest of the state, which Megatron stores beside the tensors: param groups with and without weight decay, the tokens."""
    given = {"lr": 0.0, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0} | dict(state.hyperparameters)
    # Without max_lr and min_lr in a group, the resumed run uses its own.
    given.pop("initial_lr", None)
    common = given | MEGATRON_FLAGS
    groups = [common | {"wd_mult": 1.0}, common | {"wd_mult": 0.0, "weight_decay": 0.0}]
    inner = {"state": {"common_step": Scalar(state.step)}, "param_groups": groups}
    return {"optimizer": {"optimizer": inner} if mixed_precision else inner, TOKENS: state.tokens}


def check(state: OptimizerState) -> None:
    """Raises BadData for a state that cannot be converted."""
    if state.problem:
        raise BadData(state.problem, REMEDY)


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
            result[fused] = assemble(fused, (sum(each.shape[0] for each in separate.values()), *tensor.shape[1:]), pieces)
    return result


def _separated(tensors: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """The inverse of `_fused`; tensors that are not fused are returned as they are."""
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
