"""The state of AdamW between Megatron and TorchTitan, so that training continues where it stopped.

Both keep two moments of every weight under its name and in its shape, so the tables of the weights serve the moments too.
Megatron also keeps the weights themselves in fp32 beside those in bf16; TorchTitan trains fp32 weights, and gets them. Megatron's
flat formats hold buffers in which all weights of a rank lie one after the other, in an order that only a run of the same layout
knows: they are refused.
"""

import re
import struct
from collections.abc import Mapping
from typing import Any

from lt_convert.containers import torch_archive
from lt_convert.containers.dcp import Contents, Entry
from lt_convert.containers.torch_archive import Scalar
from lt_convert.formats import stacked_layers
from lt_convert.formats.checkpoint import OptimizerState
from lt_convert.tensors.tensor import Tensor, assemble
from lt_convert.weights import families
from lt_convert.weights.mapping import MEGATRON, PADDING, TORCHTITAN, Model
from lt_shared.architecture import Architecture
from lt_shared.checkpoint_layout import COMMON
from lt_shared.console import BadData
from lt_shared.pickles import Record

EXP_AVG, EXP_AVG_SQ, PARAM = "exp_avg", "exp_avg_sq", "param"
MOMENTS = (EXP_AVG, EXP_AVG_SQ)
TOKENS = "train_state.ntokens_seen"
HYPERPARAMETERS = ("lr", "betas", "eps", "weight_decay")
# What torch's AdamW keeps in a group besides; TorchTitan's default is the fused kernel.
FLAGS = {
    "amsgrad": False,
    "maximize": False,
    "foreach": False,
    "capturable": False,
    "differentiable": False,
    "fused": True,
    "decoupled_weight_decay": True,
}
# What a group of Megatron's has besides: its scheduler reads the multipliers, the optimizer finds the group by them.
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

_MEGATRON = re.compile(r"(?:chained_\d+\.)?optimizer\.state\.(?P<kind>exp_avg|exp_avg_sq|param|fp32_param)\.(?P<name>.+)")
_FLAT = re.compile(r"(?:chained_\d+\.)?optimizer\.distributed\..+")
_TORCHTITAN = re.compile(r"optimizer\.state\.(?P<name>.+)\.(?P<kind>exp_avg|exp_avg_sq|step)")
_FUSED = re.compile(r"(?P<stem>.*)wqkv\.(?P<leaf>weight|bias)")
_SEPARATE = re.compile(r"(?P<stem>.*attention\.(?:qkv_linear\.)?)w(?P<which>[qkv])\.(?P<leaf>weight|bias)")


def of_megatron(contents: Contents, model: Model, origin: str) -> OptimizerState | None:
    """The optimizer's state in a torch_dist checkpoint, None when it has none.

    One in a flat format has only its `problem`. Raises BadData for tensors that do not fit the model.
    """
    if any(_FLAT.fullmatch(key) for key in (*contents.entries, *contents.objects)):
        problem = f"{origin}: its optimizer state is stored as flat buffers, which fit one layout of one run only"
        return OptimizerState({}, 0, {}, problem=problem)
    found: dict[str, dict[str, Tensor]] = {}
    for key in contents.entries:
        if match := _MEGATRON.fullmatch(key):
            kind = PARAM if match["kind"] == "fp32_param" else match["kind"]
            whole = contents.tensor(key)
            found.setdefault(kind, {}).update(stacked_layers.unstacked(whole.named(match["name"])))
    if not all(found.get(kind) for kind in MOMENTS):
        return None
    family = families.family_of(model.architecture)
    prefix = stacked_layers.prefix_of(found[EXP_AVG])
    if _is_flattened(found[EXP_AVG], prefix):
        problem = f"{origin}: its optimizer state is stored as flattened pieces of the weights"
        return OptimizerState({}, 0, {}, problem=problem)
    moments = {
        kind: family.take_apart(
            MEGATRON, model, {name.removeprefix(prefix): tensor for name, tensor in named.items()}, f"{origin}: {kind}"
        )
        for kind, named in found.items()
    }
    return OptimizerState(moments, *_of_common(contents, origin))


def _is_flattened(named: Mapping[str, Tensor], prefix: str) -> bool:
    """Whether the embedding's moment is cut into (fragment, fragment, values), as `fully_sharded_model_space` has it."""
    embedding = named.get(f"{prefix}embedding.word_embeddings.weight")
    return embedding is not None and len(embedding.shape) != 2


def _of_common(contents: Contents, origin: str) -> tuple[int, dict[str, Any], int]:
    """How many updates there were, the hyperparameters in use, and the tokens: what Megatron keeps beside the tensors."""
    directory, files = contents.directory, contents.files
    shared = [place for key, place in contents.objects.items() if key.startswith("common_state/")]
    if shared:
        place = shared[0]
        common, locate = torch_archive.read(place.file, place.offset, place.length, files, "common_state")
        common = common[0] if isinstance(common, list) and common else common
    else:
        path = f"{directory}/{COMMON}"
        common, locate = torch_archive.read(path, 0, files.size_bytes(path), files, COMMON)
    optimizer = common.get("optimizer") if isinstance(common, dict) else None
    step = next((_first(optimizer, name) for name in ("common_step", "step") if _first(optimizer, name) is not None), None)
    if isinstance(step, Record):
        found = locate(step)
        if found.dtype == "float32" and found.view.shape == ():
            step = struct.unpack("<f", files.read(found.view.file, found.view.position, 4))[0]
    if not isinstance(step, int | float):
        raise BadData(f"{origin}: does not say how many steps its optimizer has made", "convert it with --no-optimizer")
    groups = {name: value for name in HYPERPARAMETERS if (value := _first(optimizer, name)) is not None}
    highest = _first(optimizer, "max_lr")
    return int(step), groups | ({} if highest is None else {"initial_lr": highest}), _tokens(common)


def _tokens(common: Mapping[str, Any]) -> int:
    if type(common.get(TOKENS)) is int:
        return int(common[TOKENS])
    arguments = vars(common["args"]) if isinstance(common.get("args"), Record) else {}
    samples, length = arguments.get("consumed_train_samples"), arguments.get("seq_length")
    return samples * length if type(samples) is int and type(length) is int else 0


def _first(tree: Any, name: str) -> Any:
    """The first value of that name in nested dictionaries and lists, None when there is none."""
    if isinstance(tree, dict) and tree.get(name) is not None:
        return tree[name]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return next((found for part in parts if (found := _first(part, name)) is not None), None)


def of_torchtitan(contents: Contents, table: str, model: Model, origin: str) -> OptimizerState | None:
    """The optimizer's state in a TorchTitan checkpoint, None when it has none, or one of another optimizer."""
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
    family = families.family_of(model.architecture)
    moments = {}
    for kind, named in found.items():
        padding = f"{PADDING}optimizer.state.{kind}."
        kept = {key.removeprefix(padding): contents.tensor(key) for key in contents.entries if key.startswith(padding)}
        separate = _separated(named, model.architecture)
        moments[kind] = family.take_apart(table, model, separate, f"{origin}: {kind}") | {
            PADDING + name: tensor for name, tensor in kept.items()
        }
    count = contents.tensor(step)
    view = count.parts[0].view
    if count.dtype != "float32" or count.shape or view is None:
        raise BadData(f"{origin}: {step} is no count of steps")
    groups = {name: value for name in (*HYPERPARAMETERS, "initial_lr") if (value := _of_group(contents, name)) is not None}
    steps = int(struct.unpack("<f", contents.files.read(view.file, view.position, 4))[0])
    tokens = contents.object(TOKENS) if TOKENS in contents.objects else 0
    return OptimizerState(moments, steps, groups, tokens if type(tokens) is int else 0)


def _of_group(contents: Contents, name: str) -> Any:
    """A hyperparameter of the first weight's group: the embedding's, which decays where anything does."""
    value = None
    keys = [key for key in contents.objects if key.startswith("optimizer.param_groups.") and key.endswith(f".{name}")]
    for key in sorted(keys, key=lambda key: "tok_embeddings" not in key)[:1]:
        value = contents.object(key)
    numbers = value if isinstance(value, tuple | list) else (value,)
    return value if all(isinstance(number, int | float) for number in numbers) else None


def torchtitan(state: OptimizerState, model: Model, iteration: int, origin: str) -> tuple[list[Entry], dict[str, Any]]:
    """What a TorchTitan checkpoint holds of the state: tensors, and the objects beside them with the trainer's counters.

    Raises BadData for a state in a flat format.
    """
    check(state)
    family = families.family_of(model.architecture)
    entries: list[Entry] = []
    objects: dict[str, Any] = {}
    names: dict[str, Tensor] = {}
    for kind in MOMENTS:
        tensors = family.make(TORCHTITAN, model, state.moments[kind], f"{origin}: {kind}")
        if model.architecture.tie_embeddings:
            del tensors["lm_head.weight"]
        names = _fused(tensors, model.architecture)
        entries += [Entry.whole(f"optimizer.state.{name}.{kind}", tensor) for name, tensor in names.items()]
        entries += [
            Entry.whole(f"{PADDING}optimizer.state.{kind}.{name.removeprefix(PADDING)}", tensor)
            for name, tensor in state.moments[kind].items()
            if name.startswith(PADDING)
        ]
    groups = {"lr": 0.0, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0} | dict(state.groups)
    groups = {"initial_lr": groups["lr"]} | groups
    for name, tensor in names.items():
        objects[f"optimizer.state.{name}.step"] = Scalar(state.step)
        for key, value in (groups | FLAGS).items():
            objects[f"optimizer.param_groups.{name}.{key}"] = 0.0 if key == "weight_decay" and len(tensor.shape) == 1 else value
    return entries, objects | {"lr_scheduler.last_epoch": iteration, "train_state.step": iteration, TOKENS: state.tokens}


def megatron(state: OptimizerState, model: Model, weights: Mapping[str, Tensor] | None, origin: str) -> dict[str, Tensor]:
    """What a torch_dist checkpoint holds of the state, by Megatron's names, one tensor a layer; raises as `torchtitan`.

    `weights` are the canonical fp32 weights where the model's own are of less precision, else None.
    """
    check(state)
    family = families.family_of(model.architecture)
    kinds = {kind: state.moments[kind] for kind in MOMENTS} | ({} if weights is None else {"fp32_param": weights})
    return {
        f"optimizer.state.{kind}.{name}": tensor
        for kind, canonical in kinds.items()
        for name, tensor in family.make(MEGATRON, model, canonical, f"{origin}: {kind}").items()
    }


def megatron_common(state: OptimizerState, mixed_precision: bool) -> dict[str, Any]:
    """What Megatron keeps of the state beside the tensors: a group that decays and one that does not; and the tokens."""
    given = {"lr": 0.0, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0} | dict(state.groups)
    # The run that continues sets its own highest and lowest rate, where a group does not.
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
    """Queries, keys and values as the one parameter that TorchTitan's optimizer sees: by group, its heads, its key, its value.

    TorchTitan splits it in the model's state alone.
    """
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match = _SEPARATE.fullmatch(name)
        if not match:
            result[name] = tensor
        elif match["which"] == "q":
            parts = {which: tensors[f"{match['stem']}w{which}.{match['leaf']}"] for which in "qkv"}
            pieces = [
                ((place, *map(range, tensor.shape[1:])), parts[which].take(0, taken))
                for which, places in _fused_places(architecture).items()
                for taken, place in places
            ]
            fused = f"{match['stem']}wqkv.{match['leaf']}"
            result[fused] = assemble(fused, (sum(part.shape[0] for part in parts.values()), *tensor.shape[1:]), pieces)
    return result


def _separated(tensors: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """The inverse of `_fused`; tensors that are separate stay so."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match = _FUSED.fullmatch(name)
        if not match:
            result[name] = tensor
            continue
        for which, places in _fused_places(architecture).items():
            separate = f"{match['stem']}w{which}.{match['leaf']}"
            pieces = [((taken, *map(range, tensor.shape[1:])), tensor.take(0, place)) for taken, place in places]
            rows = sum(len(taken) for taken, _ in places)
            result[separate] = assemble(separate, (rows, *tensor.shape[1:]), pieces)
    return result


def _fused_places(architecture: Architecture) -> dict[str, list[tuple[range, range]]]:
    """For queries, keys and values: which of their rows lie at which rows of the fused parameter."""
    heads, head = architecture.num_attention_heads // architecture.num_query_groups, architecture.kv_channels
    places: dict[str, list[tuple[range, range]]] = {"q": [], "k": [], "v": []}
    start = 0
    for group in range(architecture.num_query_groups):
        for which, size in (("q", heads * head), ("k", head), ("v", head)):
            places[which].append((range(group * size, (group + 1) * size), range(start, start + size)))
            start += size
    return places
