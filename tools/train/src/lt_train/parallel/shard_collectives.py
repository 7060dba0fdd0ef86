"""FSDP's collectives for weights and gradients: torch's, or `shard_gathering` and `gradient_sums`, which run beside GEMMs."""

import dataclasses
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

import torch
from megatron.core.transformer.module import MegatronModule
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import FSDPModule

from lt_train.parallel.gradient_sums import SLOTS, GradientSums, SumParts, sum_by_torch
from lt_train.parallel.peer_buffers import PeerBuffer
from lt_train.parallel.shard_gathering import ShardGathering

# Allocates a buffer for the ranks of a group. Arguments: group, number of elements, dtype.
MakeBuffer: TypeAlias = Callable[[ProcessGroup, int, torch.dtype], PeerBuffer]


@dataclasses.dataclass(frozen=True)
class Collectives:
    """`buffer` allocates memory that the ranks read from each other. Without it, torch's all-gather gathers the weights."""

    sum_parts: SumParts = sum_by_torch
    buffer: MakeBuffer | None = None


@dataclasses.dataclass(frozen=True)
class UpdatedPart:
    """`shards` that AdamW updates together. After the update other ranks may read them, and `groups` are gathered."""

    gathering: ShardGathering
    shards: Collection[torch.nn.Parameter]
    groups: list[Any]

    def start_param_sync(self) -> None:
        self.gathering.publish(self.groups)


class ShardCollectives:
    """The collectives of `model`, which is sharded among the ranks of `group` and computes its forward pass in `dtype`."""

    def __init__(self, model: MegatronModule, group: ProcessGroup, dtype: torch.dtype, collectives: Collectives):
        self._model = model
        units = [module for module in model.modules() if isinstance(module, FSDPModule)]
        groups = [param_group for unit in units if (param_group := param_group_of(unit)) is not None]
        self._parameter = {
            id(parameter.sharded_param): parameter for param_group in groups for parameter in param_group.fsdp_params
        }
        self.gathering: ShardGathering | None = None
        buffer = collectives.buffer
        if dtype.itemsize == 2:
            slots: list[PeerBuffer] = []
            if buffer is not None:
                largest = max(
                    sum(parameter._sharded_param_data.numel() for parameter in param_group.fsdp_params) for param_group in groups
                )
                slots = [buffer(group, largest * group.size(), dtype) for _ in range(SLOTS)]
            sums = GradientSums(slots, collectives.sum_parts)
            for unit in units:
                unit.set_custom_reduce_scatter(sums)
        if buffer is not None:
            self.gathering = ShardGathering(groups, dtype, lambda count: buffer(group, count, dtype))
            _gather_ahead(model)

    def rounded(self, sharded: Any) -> Tensor | None:
        """Return the 16-bit copy of the local shard of an FSDP parameter that other ranks read, or None if they do not."""
        if self.gathering is None:
            return None
        return self.gathering.rounded(self._parameter[id(sharded)])[: sharded.to_local().numel()]

    def parts(self, shards: dict[torch.nn.Parameter, Any]) -> list[UpdatedPart]:
        """Divide `shards` (mapped to their FSDP parameters) into the parts that an optimizer updates in turn.

        The first part holds the units that begin a step, if the optimizer has all of their shards: they are gathered while the
        remaining shards are updated.
        """
        if self.gathering is None:
            return []
        groups = [group for unit in _first_units(self._model) if (group := param_group_of(unit)) is not None]
        sharded_ids = {id(sharded) for sharded in shards.values()}
        groups = [group for group in groups if all(id(parameter.sharded_param) in sharded_ids for parameter in group.fsdp_params)]
        early = {id(parameter.sharded_param) for group in groups for parameter in group.fsdp_params}
        first = {shard for shard, sharded in shards.items() if id(sharded) in early}
        parts = [UpdatedPart(self.gathering, first, groups)] if groups else []
        return [*parts, UpdatedPart(self.gathering, shards.keys() - first, [])]


def param_group_of(unit: Any) -> Any:
    """Return FSDP's parameter group of `unit`, None if it has no parameters outside nested units."""
    return unit._get_fsdp_state()._fsdp_param_group


def _first_units(model: MegatronModule) -> Iterator[Any]:
    yield model
    if isinstance(model.embedding, FSDPModule):
        yield model.embedding
    yield model.decoder.layers[0]


def _gather_ahead(model: MegatronModule) -> None:
    """Let each unit start to gather the next unit before it computes."""
    layers = list(model.decoder.layers)
    embedding, output = ([unit] if isinstance(unit, FSDPModule) else [] for unit in (model.embedding, model.output_layer))
    model.set_modules_to_forward_prefetch([*embedding, layers[0]])
    for layer, following in zip(layers, [*([next_layer] for next_layer in layers[1:]), output], strict=True):
        layer.set_modules_to_forward_prefetch(following)
