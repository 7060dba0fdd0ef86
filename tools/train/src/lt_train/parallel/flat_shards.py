"""Parts of parameters as tensors of a checkpoint, wherever their borders are.

Ranks that split a parameter among them have ranges of its elements: whole rows with FSDP, anything with the distributed
optimizer, which splits a buffer of many parameters. A range is stored as up to three boxes (the end of a row, whole rows, the
beginning of a row) in the coordinates of the whole model, as views of the rank's memory. Nothing is gathered to save or to load
it, and any other split reads it.

megatron-core's `fully_reshardable` form has the same names and reads the same, but every rank gathers the state of all
data-parallel ranks in host memory for it, 12 bytes per parameter. And with more than one bucket it removes the padding between
buckets and then looks parameters up at their padded offsets: 0.16 and 0.19 save the state of other weights under a parameter's
name, without an error, whenever the size of a bucket is no multiple of 128 and of the number of ranks.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

Entry: TypeAlias = ShardedTensor | ShardedTensorFactory


@dataclasses.dataclass(frozen=True)
class FlatSlice:
    """The elements of the flattened parameter from `start` on are those of `tensor`, which has no data.

    `tensor` says which part of which tensor of the whole model they are.
    """

    start: int
    tensor: ShardedTensor


def flat_slices(entry: Entry) -> list[FlatSlice]:
    """The slices of a parameter: one for a tensor of the model, or several of rows, as with SwiGLU's two matrices."""
    parts = [entry] if isinstance(entry, ShardedTensor) else nested_values(entry.build())
    found = []
    for part in parts:
        assert part.data.is_contiguous(), f"{entry.key} is not split by rows"
        found.append(FlatSlice(part.data.storage_offset() - entry.data.storage_offset(), part.without_data()))
    return found


def cut(slices: Iterable[FlatSlice], share: torch.Tensor, first: int) -> Iterator[ShardedTensor]:
    """`share`, the parameter's elements from `first` on in one dimension, as views of the shapes that checkpoints are made of."""
    for part in slices:
        start, end = max(part.start, first), min(part.start + math.prod(part.tensor.local_shape), first + len(share))
        width = math.prod(part.tensor.local_shape[1:])
        while start < end:
            row, column = divmod(start - part.start, width)
            if column or end - start < width:
                rows, columns = 1, min(width - column, end - start)
            else:
                rows, columns = (end - start) // width, width
            data = share[start - first : start - first + rows * columns]
            yield _box(part.tensor, data, row, rows, column, columns)
            start += rows * columns


def _box(whole: ShardedTensor, data: torch.Tensor, row: int, rows: int, column: int, columns: int) -> ShardedTensor:
    axis, shape = whole.prepend_axis_num, list(whole.local_shape)
    offset = list(whole.global_offset)
    offset[axis] += row
    shape[0] = rows
    if len(shape) == 2:
        offset[axis + 1] += column
        shape[1] = columns
    return dataclasses.replace(
        whole,
        data=data.view(shape),
        dtype=data.dtype,
        local_shape=tuple(shape),
        global_offset=tuple(offset),
        axis_fragmentations=None,
        replica_id=(*whole.replica_id[:-1], _replica()),
    )


def _replica() -> int:
    """The index of the replica of the sharded optimizer state that this rank has a part of."""
    if not parallel_state.get_inter_distributed_optimizer_instance_group(check_initialized=False):
        return 0
    return int(parallel_state.get_inter_distributed_optimizer_instance_group().rank())


def for_checkpoint(tensor: ShardedTensor, prefix: str = "") -> ShardedTensor:
    """megatron-core saves boxes of different sizes only when the axis of the layers is one of their own."""
    data = tensor.data.view((1,) * tensor.prepend_axis_num + tensor.local_shape)
    return dataclasses.replace(tensor, key=prefix + tensor.key, data=data, local_shape=tuple(data.shape), prepend_axis_num=0)


def entries(sharded: Any) -> Iterator[Entry]:
    """Every parameter in a model's sharded state, however nested."""
    for value in nested_values(sharded):
        if isinstance(value, ShardedTensor | ShardedTensorFactory) and value.data is not None:
            yield value


def local_sharded_state(optimizer: DistributedOptimizer, model: Any) -> dict[str, dict[str, ShardedTensor]]:
    """This rank's slices of the state of `optimizer`, instead of the state that megatron-core gathers.

    `model` is the model's sharded state. The slices are views: what is loaded into them is loaded.
    """
    slices = {id(entry.data): flat_slices(entry) for entry in entries(model)}
    saved: dict[str, dict[str, ShardedTensor]] = {}
    for index, (parameter, first) in enumerate(_own_ranges(optimizer)):
        for name, share in optimizer._get_main_param_and_optimizer_states(parameter).items():
            if name != "step":
                boxes = cut(slices[id(parameter)], share.detach(), first)
                saved[f"{index}.{name}"] = {
                    str(number): for_checkpoint(box, f"optimizer.state.{name}.") for number, box in enumerate(boxes)
                }
    return saved


def _own_ranges(optimizer: DistributedOptimizer) -> Iterator[tuple[torch.nn.Parameter, int]]:
    """The parameters that this rank has a range of, and where in the parameter it begins."""
    for of_types in optimizer.gbuf_ranges:
        for buckets in of_types.values():
            for bucket in buckets:
                for parameter, ranges in bucket["param_map"].items():
                    yield parameter, ranges["param"].start
