"""What an optimizer of other packages has counted."""

import pytest
import torch

from lt_train.checkpoint import optimizer_state


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("steps", [[7, 7], [7], []])
def test_steps_in_groups_are_put_beside_the_moments(nested: bool, steps: list[int]) -> None:
    """As TransformerEngine's Adam saves them: an empty group may have none."""
    groups = [{"lr": 1.0, "step": step} for step in steps] + [{"lr": 2.0}]
    part = {"state": {"exp_avg": "tensors"}, "param_groups": groups}
    optimizer_state.count_as_torch({"0": {"optimizer": part}, "1": {"grad_scaler": {}}} if nested else part)
    assert part["state"]["common_step"] == max(steps, default=0)
    assert not any("step" in group for group in groups)


def test_steps_that_torch_counted_stay() -> None:
    part = {"state": {"common_step": torch.tensor(3.0)}, "param_groups": [{"step": 1}]}
    optimizer_state.count_as_torch(part)
    assert part["state"]["common_step"] == 3


def test_the_distributed_optimizers_groups_keep_theirs() -> None:
    loaded = {"optimizer": {"param_groups": [{"step": 5}]}, "param_state": {"state": {}}}
    optimizer_state.count_as_torch(loaded)
    assert loaded == {"optimizer": {"param_groups": [{"step": 5}]}, "param_state": {"state": {}}}


def test_saved_groups_take_the_schedule_of_the_present_ones_that_they_are() -> None:
    """Those that do not decay are told apart, under NeMo's names too; a group that this run does not have stays as it is."""
    decays = {"wd_mult": 1.0, "lr_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False, "max_lr": 5.0, "min_lr": 4.0}
    decays |= {"params": [0], "step": 9}
    present = [decays, decays | {"wd_mult": 0.0, "min_lr": 3.0}]
    structure = {"is_expert_parallel": False, "is_decoupled_lr": False}
    groups = [
        {"pre_wd_mult": 0.0, "pre_lr_mult": 1.0, **structure, "max_lr": 9.0, "min_lr": 8.0, "start_wd": 7.0},
        {"wd_mult": 1.0, "lr_mult": 1.0, **structure, "params": [7], "step": 3},
        {"wd_mult": 1.0, "lr_mult": 0.5, **structure, "max_lr": 9.0},
        {"wd_mult": 1.0, "lr_mult": 1.0, **structure, "is_expert_parallel": True},
        {"wd_mult": 1.0, "lr_mult": 1.0, **structure, "is_decoupled_lr": True},
    ]
    optimizer_state.take_schedule({"0": {"optimizer": {"param_groups": groups}}}, present)
    assert [{key: group.get(key) for key in optimizer_state.SCHEDULE} for group in groups] == [
        {"max_lr": 5.0, "min_lr": 3.0, "start_wd": None, "end_wd": None},
        {"max_lr": 5.0, "min_lr": 4.0, "start_wd": None, "end_wd": None},
        {"max_lr": 9.0, "min_lr": None, "start_wd": None, "end_wd": None},
        {"max_lr": None, "min_lr": None, "start_wd": None, "end_wd": None},
        {"max_lr": None, "min_lr": None, "start_wd": None, "end_wd": None},
    ]
    assert (groups[1]["params"], groups[1]["step"]) == ([7], 3)


def test_groups_of_other_rates_are_told_apart_in_both_forms_of_megatron_core() -> None:
    """With muP, 0.19 has the rate alone; before, a multiplier distinguishes the groups. The checkpoint's rates are double."""
    structure = {"wd_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False}
    forms = {"0.16": 0.25, "0.19": 1.0}
    for multiplier in forms.values():
        present = [structure | {"lr_mult": 1.0, "max_lr": 8.0}, structure | {"lr_mult": multiplier, "max_lr": 2.0}]
        for stored in forms.values():
            groups = [structure | {"lr_mult": 1.0, "max_lr": 16.0}, structure | {"lr_mult": stored, "max_lr": 4.0}]
            # Another optimizer of the same checkpoint, whose only group has the lower rate.
            experts = structure | {"lr_mult": stored, "max_lr": 4.0, "is_expert_parallel": True}
            here = [*present, present[1] | {"is_expert_parallel": True}]
            optimizer_state.take_schedule({"0": {"param_groups": groups}, "1": {"param_groups": [experts]}}, here)
            assert [*groups, experts] == here
