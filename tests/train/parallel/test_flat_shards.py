"""Parts of parameters in a checkpoint: any split of a parameter's elements covers it once, at the right places."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

from lt_train.parallel import flat_shards

LAYERS = 3


def parameter(rows: int, columns: int) -> torch.nn.Parameter:
    shape = (rows, columns) if columns else (rows,)
    return torch.nn.Parameter(torch.arange(math.prod(shape), dtype=torch.float32).view(shape))


def swiglu_entry(weight: torch.nn.Parameter, rank: int, ranks: int) -> ShardedTensorFactory:
    """As megatron-core places layer 1 of SwiGLU's two matrices on a tensor-parallel rank: one after the other in the model."""

    def build(key: str, data: torch.Tensor, replica_id: tuple[int, ...], flattened_range: None) -> list[ShardedTensor]:
        return [
            ShardedTensor.from_rank_offsets(
                key, part, (0, 1, LAYERS), (1, half * ranks + rank, 2 * ranks), replica_id=replica_id, prepend_axis_num=1
            )
            for half, part in enumerate(torch.chunk(data, 2))
        ]

    return ShardedTensorFactory("fc1", weight, build, lambda parts: torch.cat(parts), (0, 0, rank))


def assembled(boxes: list[ShardedTensor], shape: tuple[int, ...]) -> torch.Tensor:
    """The whole parameter from its boxes; NaN where there is none. Boxes that overlap are refused."""
    whole = torch.full(shape, float("nan"))
    for box in boxes:
        box.validate_metadata_integrity()
        target = whole[tuple(slice(begin, begin + size) for begin, size in zip(box.global_offset, box.local_shape, strict=True))]
        assert target.isnan().all()
        target.copy_(box.data)
    return whole


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), st.integers(0, 7), st.lists(st.integers(0, 63), max_size=6))
def test_ranges_of_elements_cover_a_parameter_once(rows: int, columns: int, borders: list[int]) -> None:
    weight = parameter(rows, columns)
    entry = ShardedTensor.from_rank_offsets("weight", weight, (0, 2, LAYERS), prepend_axis_num=1, replica_id=(0, 0, 5))
    ends = sorted({0, *(min(border, weight.numel()) for border in borders), weight.numel()})
    boxes = []
    for first, last in itertools.pairwise(ends):
        of_range = list(flat_shards.cut(flat_shards.flat_slices(entry), weight.detach().view(-1)[first:last], first))
        assert len(of_range) <= 3
        boxes += of_range
    whole = assembled([flat_shards.for_checkpoint(box) for box in boxes], (LAYERS, *weight.shape))
    assert torch.equal(whole[2], weight.detach())
    assert whole[:2].isnan().all()
    # Each range is on one rank: every box has to be written.
    assert {box.replica_id for box in boxes} == {(0, 0, 0)}


@pytest.mark.parametrize("border", [1, 7, 12, 13, 23])
def test_a_range_over_both_matrices_of_swiglu_is_cut_between_them(border: int) -> None:
    ranks, boxes = 2, []
    for rank in range(ranks):
        weight = parameter(8, 3)
        found = flat_shards.flat_slices(swiglu_entry(weight, rank, ranks))
        for first, last in ((0, border), (border, 24)):
            boxes += list(flat_shards.cut(found, weight.detach().view(-1)[first:last], first))
    whole = assembled([flat_shards.for_checkpoint(box) for box in boxes], (LAYERS, 16, 3))[1]
    rows = weight.detach()
    assert torch.equal(whole, torch.cat([rows[:4], rows[:4], rows[4:], rows[4:]]))


def test_boxes_are_views_so_that_loading_fills_the_rank_s_memory() -> None:
    weight = parameter(4, 3)
    entry = ShardedTensor.from_rank_offsets("weight", weight, replica_id=(0, 0, 0))
    for box in flat_shards.cut(flat_shards.flat_slices(entry), weight.detach().view(-1)[2:11], 2):
        flat_shards.for_checkpoint(box, "optimizer.state.param.").data.fill_(-1)
    assert weight.detach().view(-1).tolist() == [0, 1, *[-1] * 9, 11]
