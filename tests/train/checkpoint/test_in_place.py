"""What was loaded into the parts of a parameter is the parameter; what was loaded elsewhere is put together.

And nothing is written that is read over in any case.
"""

from typing import Any

import pytest
import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.dist_checkpointing.strategies.torch import mcore_to_pyt_state_dict

from lt_train.checkpoint.in_place import fill_whole, merge_in_place


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


@pytest.mark.parametrize("is_same_vocabulary", [False, True])
def test_megatron_core_clears_what_may_be_padded_otherwise(is_same_vocabulary: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    embedding = torch.ones(8, 4)
    sharded = ShardedTensor.from_rank_offsets("embedding", embedding, allow_shape_mismatch=True)
    if is_same_vocabulary:
        fill_whole({"optimizer": {"fp32": [sharded]}})
    mcore_to_pyt_state_dict({"embedding": [sharded]}, is_loading=True)
    assert embedding.any().item() is is_same_vocabulary
