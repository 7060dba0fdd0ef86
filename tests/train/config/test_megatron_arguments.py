"""Differences between a checkpoint's arguments and a run's that change how a step updates the weights."""

from typing import Any

import pytest

from lt_train.config.megatron_arguments import changes_of_updates

CURRENT = {"lr_decay_style": "cosine", "lr": 1e-3, "moe_z_loss_coeff": 0.01, "moe_expert_capacity_factor": None}


@pytest.mark.parametrize(
    ("stored", "changes"),
    [
        ({}, []),
        ({"lr": None, "moe_z_loss_coeff": 0.01}, []),
        ({"lr": 2e-3}, ["lr was 0.002 and is 0.001"]),
        ({"moe_z_loss_coeff": None}, ["moe-z-loss-coeff was None and is 0.01"]),
        ({"moe_expert_capacity_factor": 1.25}, ["moe-expert-capacity-factor was 1.25 and is None"]),
    ],
)
def test_none_is_a_value_of_some_arguments(stored: dict[str, Any], changes: list[str]) -> None:
    assert changes_of_updates(stored, CURRENT) == changes
