"""Load an optimizer state of another kind: saved with or without --use-distributed-optimizer, or in another precision.

All kinds save the moments of a parameter under the same name, whole and independent of the layout. The kinds differ in the place
of the fp32 weights, and in the small values around the tensors. The small values come from the present optimizer, except for
Adam's step count and the state of the loss scale, which come from the checkpoint.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import extract_matching_values, merge, nested_values
from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedBase

from lt_train.optim.fused_adamw import FP32_WEIGHTS

# AdamW's first moment, and Muon's momentum of matrices.
MOMENTS = ("optimizer.state.exp_avg.", "optimizer.state.momentum_buffer.")
# A saved group of parameters matches the present group with the same STRUCTURE, and the same rate in comparison with the other
# groups. SCHEDULE may differ.
STRUCTURE = ("wd_mult", "is_expert_parallel", "is_decoupled_lr")
SCHEDULE = ("max_lr", "min_lr", "start_wd", "end_wd")
# Sharded tensors are loaded under this name, so that the saved optimizer's small values do not mix with them.
TENSORS = "tensors_of_optimizer"


@dataclasses.dataclass(frozen=True)
class Kind:
    """The kind of an optimizer, which decides under which name fp32 weights are saved."""

    distributed: bool
    dtype: str

    @property
    def weights_prefix(self) -> str:
        """The prefix that precedes the parameter's name in the name of its fp32 weight."""
        if self.distributed:
            return "optimizer.state.param."
        return "" if self.dtype == "float32" else "optimizer.state.fp32_param."


def requests(sharded: dict[str, Any], saved: Kind, present: Kind) -> tuple[dict[str, Any], dict[str, Any]]:
    """Convert `sharded`, the state that the present run would save, into requests to a checkpoint of the kind `saved`.

    Return a request for the model and a request for the optimizer. They are separate, because an fp32 weight of the optimizer may
    be the model's weight in the checkpoint.
    """
    optimizer = sharded["optimizer"]
    models = {name: part for name, part in sharded.items() if name != "optimizer"}
    keys = [base.key for base in _bases(optimizer)]
    parameters = {key.removeprefix(moment) for moment in MOMENTS for key in keys if key.startswith(moment)}
    if present.weights_prefix:
        for base in _bases(optimizer):
            if base.key.startswith(present.weights_prefix):
                base.key = saved.weights_prefix + base.key.removeprefix(present.weights_prefix)
    else:
        for base in _bases(models):
            if base.key in parameters:
                base.key = saved.weights_prefix + base.key
    return models, {TENSORS: optimizer}


def _bases(tree: dict[str, Any]) -> list[ShardedBase]:
    return [value for value in nested_values(tree) if isinstance(value, ShardedBase)]


def assemble(sharded: dict[str, Any], loaded: dict[str, Any]) -> dict[str, Any]:
    """Assemble the state for the present optimizer from the `loaded` tensors and the small values in `sharded`."""
    _, local_state = extract_matching_values(
        sharded["optimizer"], lambda value: isinstance(value, ShardedBase | LocalNonpersistentObject)
    )
    state: dict[str, Any] = merge(local_state, loaded[TENSORS])
    saved = loaded["optimizer"]
    _set_steps(state, _steps(saved))
    scaler = _find(saved, "grad_scaler")
    if scaler is not None:
        _set_scaler(state, scaler)
    return state


def count_as_torch(state: dict[str, Any]) -> None:
    """Move the step count of TransformerEngine's or apex's Adam from the groups to torch's place, beside the moments.

    `state` is a loaded state, and is changed in place. With the distributed optimizer, every Adam counts in the groups.
    """
    if counts_steps(state) and "common_step" not in state["state"]:
        counts = [group.pop("step") for group in state["param_groups"] if "step" in group]
        # megatron-core does not save a step count of 0.
        state["state"]["common_step"] = torch.tensor(float(max(counts, default=0)))
    for name, part in state.items():
        if isinstance(part, dict) and name not in ("state", "param_state"):
            count_as_torch(part)


def counts_steps(tree: dict[str, Any]) -> bool:
    """Return whether `tree` is the state of AdamW. Muon's groups have a momentum."""
    return "state" in tree and not any("momentum" in group for group in tree.get("param_groups", ()))


def complete(state: dict[str, Any]) -> None:
    """Add the empty entries that megatron-core does not save to `state`, the loaded state of Muon, in place.

    An optimizer has empty entries if it has no parameters on this rank: for example the experts' optimizer in a pipeline stage of
    dense layers.
    """
    if "param_groups" in state:
        state.setdefault("state", {})
    elif "param_groups" in state.get("optimizer", {}):
        state.setdefault(FP32_WEIGHTS, [])
    for name, part in state.items():
        if isinstance(part, dict) and name not in ("state", "param_state"):
            complete(part)


def take_schedule(state: dict[str, Any], groups: Sequence[dict[str, Any]]) -> None:
    """Give the groups in the loaded `state` the schedule of the present `groups`, in place.

    megatron-core's scheduler reads the learning rates from the groups, and would continue with the saved run's rates. From 0.19
    on, megatron-core also identifies a group by its schedule. It would find no group if this run has another schedule, or if the
    checkpoint was converted from another framework, whose groups have no schedule.
    """
    highest = _highest_rate(groups)
    present = {_structure(group, highest): group for group in groups}
    stored_groups = list(_groups(state))
    stored_highest = _highest_rate(stored_groups)
    for group in stored_groups:
        match = present.get(_structure(group, stored_highest))
        if match is not None:
            for key in SCHEDULE:
                group.pop(key, None)
            group.update({key: match[key] for key in SCHEDULE if key in match})
            # With muP, it depends on megatron-core's version (`lt_train.optim.optimizer`).
            group.update({key: match["lr_mult"] for key in ("lr_mult", "pre_lr_mult") if key in group and "lr_mult" in match})


def _groups(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from state.get("param_groups", ())
    for name, part in state.items():
        if isinstance(part, dict) and name not in ("state", "param_state"):
            yield from _groups(part)


def _highest_rate(groups: Iterable[dict[str, Any]]) -> float:
    return max((group.get("max_lr") or 0.0 for group in groups), default=0.0)


def _structure(group: dict[str, Any], highest_rate: float) -> tuple[Any, ...]:
    # NeMo's names of the multipliers begin with `pre_`.
    multiplier = group.get("lr_mult", group.get("pre_lr_mult"))
    rate = (group.get("max_lr") or highest_rate) / highest_rate if highest_rate else 1.0
    # With muP, one of the two differs from 1, or both alike.
    relative_rate = round(min(1.0 if multiplier is None else multiplier, rate), 6)
    return (*(group.get(key, group.get(f"pre_{key}")) for key in STRUCTURE), relative_rate)


def _steps(tree: Any) -> float:
    """Return Adam's step count: `common_step` beside the state, or `step` in a group of the distributed optimizer."""
    for name in ("common_step", "step"):
        value = _find(tree, name)
        if value is not None:
            return float(value)
    return 0.0


def _find(tree: Any, name: str) -> Any:
    """Return the first value with this name in nested dictionaries and lists, or None."""
    if isinstance(tree, dict) and tree.get(name) is not None:
        return tree[name]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return next((value for part in parts if (value := _find(part, name)) is not None), None)


def _set_steps(tree: dict[str, Any], steps: float) -> None:
    for group in tree.get("param_groups", ()):
        if "step" in group:
            group["step"] = steps
    if counts_steps(tree):
        tree["state"]["common_step"] = torch.tensor(steps)
    for name, part in tree.items():
        if isinstance(part, dict) and name not in ("state", "param_state"):
            _set_steps(part, steps)


def _set_scaler(tree: dict[str, Any], scaler: dict[str, Any]) -> None:
    if "grad_scaler" in tree:
        tree["grad_scaler"] = scaler
    for part in tree.values():
        if isinstance(part, dict):
            _set_scaler(part, scaler)
