"""Store slices of flattened parameters as checkpoint tensors. A slice may begin and end inside a row.

Ranks that split a parameter hold ranges of its elements: whole rows with FSDP, arbitrary ranges with the distributed
optimizer, which splits a buffer of many parameters. A range is stored as up to three boxes (the end of a row, whole rows, the
beginning of a row) in the coordinates of the whole model, as views of the rank's memory. Nothing is gathered to save or to load
it, and any other split reads it.

megatron-core's `fully_reshardable` form has equal names and loads equally, but to save it every rank gathers the data-parallel
ranks' state in host memory, 12 bytes per parameter. And with more than one bucket it removes the padding between buckets and then
looks parameters up at their padded offsets: so 0.16 and 0.19 save the state of other weights under a parameter's name,
without an error, if the size of a bucket is no multiple of 128 and of the number of ranks.
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
    """A slice of a flattened parameter that begins at element `start` and belongs to a single tensor of the model.

    `tensor` names the tensor of the whole model and the position of the slice in it. It has no data.
    """

    start: int
    tensor: ShardedTensor


def flat_slices(entry: Entry) -> list[FlatSlice]:
    """Return the slices of a parameter: one for a plain tensor, one per matrix for SwiGLU's two stacked matrices."""
    parts = [entry] if isinstance(entry, ShardedTensor) else nested_values(entry.build())
    slices = []
    for part in parts:
        assert part.data.is_contiguous(), f"{entry.key} is not split by rows"
        slices.append(FlatSlice(part.data.storage_offset() - entry.data.storage_offset(), part.without_data()))
    return slices


def cut(slices: Iterable[FlatSlice], share: torch.Tensor, first: int) -> Iterator[ShardedTensor]:
    """Cut `share`, the elements of a flattened parameter from `first` on, into boxes (views) for a checkpoint."""
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
    """Return the index of the local replica of the sharded optimizer state."""
    if not parallel_state.get_inter_distributed_optimizer_instance_group(check_initialized=False):
        return 0
    return int(parallel_state.get_inter_distributed_optimizer_instance_group().rank())


def for_checkpoint(tensor: ShardedTensor, prefix: str = "") -> ShardedTensor:
    """Make the layer axis a dimension of the data, because only then does megatron-core save boxes of different sizes."""
    data = tensor.data.view((1,) * tensor.prepend_axis_num + tensor.local_shape)
    return dataclasses.replace(tensor, key=prefix + tensor.key, data=data, local_shape=tuple(data.shape), prepend_axis_num=0)


def entries(sharded: Any) -> Iterator[Entry]:
    """Yield every parameter in a model's nested sharded state."""
    for value in nested_values(sharded):
        if isinstance(value, ShardedTensor | ShardedTensorFactory) and value.data is not None:
            yield value


def local_sharded_state(optimizer: DistributedOptimizer, model: Any) -> dict[str, dict[str, ShardedTensor]]:
    """Return the local slices of the state of `optimizer`, instead of the state that megatron-core gathers.

    `model` is the model's sharded state. The slices are views, so loading into them sets the optimizer's state.
    """
    slices = {id(entry.data): flat_slices(entry) for entry in entries(model)}
    saved: dict[str, dict[str, ShardedTensor]] = {}
    for index, (parameter, first) in enumerate(_local_ranges(optimizer)):
        for name, share in optimizer._get_main_param_and_optimizer_states(parameter).items():
            if name != "step":
                boxes = cut(slices[id(parameter)], share.detach(), first)
                saved[f"{index}.{name}"] = {
                    str(number): for_checkpoint(box, f"optimizer.state.{name}.") for number, box in enumerate(boxes)
                }
    return saved


def _local_ranges(optimizer: DistributedOptimizer) -> Iterator[tuple[torch.nn.Parameter, int]]:
    """Yield each parameter with a local range and the index of the first element of the range."""
    for buckets_by_dtype in optimizer.gbuf_ranges:
        for buckets in buckets_by_dtype.values():
            for bucket in buckets:
                for parameter, ranges in bucket["param_map"].items():
                    yield parameter, ranges["param"].start
