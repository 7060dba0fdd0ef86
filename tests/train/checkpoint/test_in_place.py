"""What was loaded into the parts of a parameter is the parameter; what was loaded elsewhere is put together."""

from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory

from lt_train.checkpoint.in_place import merge_in_place


def merge_fn_of(whole: torch.Tensor) -> Any:
    factory = ShardedTensorFactory("fc1", whole, lambda *arguments: list(whole.chunk(2)), torch.cat)
    merge_in_place({"model": {"layers": [factory]}})
    return factory.merge_fn


def test_the_parts_of_a_parameter_are_the_parameter() -> None:
    buffer = torch.zeros(20, 4)
    whole = buffer[6:14]
    gate, up = whole.chunk(2)
    gate.fill_(1)
    up.fill_(2)
    merged = merge_fn_of(whole)([gate, up])
    assert merged.data_ptr() == whole.data_ptr() and torch.equal(merged, torch.cat([gate, up]))


def test_others_are_put_together() -> None:
    buffer = torch.arange(80.0).view(20, 4)
    whole = buffer[6:14]
    gate, up = whole.chunk(2)
    merge = merge_fn_of(whole)
    for parts in ([gate.clone(), up], [gate, buffer[14:18]], [gate]):
        merged = merge(parts)
        assert merged.data_ptr() != whole.data_ptr() and torch.equal(merged, torch.cat(parts))
