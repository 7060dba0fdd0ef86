"""An optimizer's state saved by another kind of optimizer: with or without --use-distributed-optimizer, in another precision.

All kinds save the moments of a parameter under one name, whole and independent of the layout. They differ in where the fp32
weights are, and in the small values around the tensors: those are taken from the present optimizer, and of the saved ones only
the number of steps that Adam counts and the state of the loss scale.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import extract_matching_values, merge, nested_values
from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedBase

from lt_train.optim.fused_adamw import FP32_WEIGHTS

# AdamW's, and Muon's of matrices.
MOMENTS = ("optimizer.state.exp_avg.", "optimizer.state.momentum_buffer.")
# What a group of parameters is, and what its schedule is: a saved group is the present one's by the former.
STRUCTURE = ("wd_mult", "lr_mult", "is_expert_parallel", "is_decoupled_lr")
SCHEDULE = ("max_lr", "min_lr", "start_wd", "end_wd")
# Sharded tensors are loaded under this name, so that the saved optimizer's small values do not mix with them.
TENSORS = "tensors_of_optimizer"


@dataclasses.dataclass(frozen=True)
class Kind:
    """What decides how fp32 weights are saved."""

    distributed: bool
    dtype: str

    @property
    def weights_prefix(self) -> str:
        """The name of a parameter's fp32 weight is this and the parameter's name."""
        if self.distributed:
            return "optimizer.state.param."
        return "" if self.dtype == "float32" else "optimizer.state.fp32_param."


def requests(sharded: dict[str, Any], saved: Kind, present: Kind) -> tuple[dict[str, Any], dict[str, Any]]:
    """What to ask of a checkpoint of the kind `saved`, where `sharded` is what the present run would save.

    Two requests, for the model and for the optimizer: an fp32 weight of the optimizer may be the saved weight of the model.
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
    """The state for the present optimizer: the tensors that `requests` asked for, and its own small values."""
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
    """Put the steps that TransformerEngine's or apex's Adam have counted in their groups where torch's are, beside the moments.

    In `state` as it was loaded, in place. Of the distributed optimizer all kinds count in the groups.
    """
    if counts_steps(state) and "common_step" not in state["state"]:
        counts = [group.pop("step") for group in state["param_groups"] if "step" in group]
        # megatron-core does not save that no step was made.
        state["state"]["common_step"] = torch.tensor(float(max(counts, default=0)))
    for name, part in state.items():
        if isinstance(part, dict) and name not in ("state", "param_state"):
            count_as_torch(part)


def counts_steps(tree: dict[str, Any]) -> bool:
    """Whether `tree` is the state of an AdamW; Muon has a momentum instead."""
    return "state" in tree and not any("momentum" in group for group in tree.get("param_groups", ()))


def complete(state: dict[str, Any]) -> None:
    """Give the parts in `state`, of Muon as it was loaded, in place, what an optimizer without parameters on this rank has: that
    of the experts, in a pipeline stage of dense layers. megatron-core does not save what is empty."""
    if "param_groups" in state:
        state.setdefault("state", {})
    elif "param_groups" in state.get("optimizer", {}):
        state.setdefault(FP32_WEIGHTS, [])
    for name, part in state.items():
        if isinstance(part, dict) and name not in ("state", "param_state"):
            complete(part)


def take_schedule(state: dict[str, Any], groups: Sequence[dict[str, Any]]) -> None:
    """Give the groups in `state`, as it was loaded, the schedule of the present `groups`, in place.

    megatron-core's scheduler reads the learning rates from the groups, and would continue with those of the saved run where this
    run was given others. From 0.19 on it also finds a group by its schedule, and finds none where this run was given another, or
    where the checkpoint was converted from another framework's, whose groups have no schedule.
    """
    schedules = {_structure(group): {key: group[key] for key in SCHEDULE if key in group} for group in groups}
    for group in state.get("param_groups", ()):
        schedule = schedules.get(_structure(group))
        if schedule is not None:
            for key in SCHEDULE:
                group.pop(key, None)
            group.update(schedule)
    for name, part in state.items():
        if isinstance(part, dict) and name not in ("state", "param_state"):
            take_schedule(part, groups)


def _structure(group: dict[str, Any]) -> tuple[Any, ...]:
    # NeMo has the multipliers under names of its own.
    return tuple(group.get(key, group.get(f"pre_{key}")) for key in STRUCTURE)


def _steps(tree: Any) -> float:
    """Adam's step count: `common_step` beside the state, or `step` in a group of the distributed optimizer."""
    for name in ("common_step", "step"):
        value = _find(tree, name)
        if value is not None:
            return float(value)
    return 0.0


def _find(tree: Any, name: str) -> Any:
    """The first value of that name in nested dictionaries and lists, None when there is none."""
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
