"""FSDP's gathering of weights by copy engines: each rank reads the shards of the others out of their memory.

Every rank keeps its shards once more in the 16 bits of the forward pass, where its peers can read them. AdamW writes that copy
together with the float32 shards. So nothing is cast to gather a unit, there is no collective, and what arrives is written where
the unit's weights are, not put together first and copied apart. NCCL's kernels take multiprocessors from the GEMMs beside them.
The price are 2 bytes per parameter, divided by the ranks.

A unit's memory is that of the stream that computes, as it was before. It is written when that stream has come to where the copy
was asked for: units ask for the next one before they compute.

The first units of a step are gathered while AdamW updates the others.

`lt_train.megatron.fsdp_param_group` calls it in place of FSDP's own gathering.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_collectives import AllGatherResult
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

from lt_train.megatron import fsdp_param_group
from lt_train.parallel.peer_buffers import PeerBuffer

# Numbers of 16 bits in the 128 bytes at which a shard begins.
ALIGNMENT = 64


class ShardGathering:
    """Of the `groups` of FSDP's parameters, each a unit's; `buffer_of` makes a buffer of so many numbers of `dtype`."""

    def __init__(self, groups: Iterable[Any], dtype: torch.dtype, buffer_of: Callable[[int], PeerBuffer]):
        self._groups = list(groups)
        self._dtype = dtype
        self._starts: dict[Any, int] = {}
        count = 0
        for each in self._parameters():
            self._starts[each] = count
            count += -(-each._sharded_param_data.numel() // ALIGNMENT) * ALIGNMENT
        self._buffer = buffer_of(count)
        self._stream = self._groups[0].device_handle.Stream(priority=-1)
        self._is_current = False
        for group in self._groups:
            fsdp_param_group.replace_gathering(group, self._gather, self._wait)

    def _parameters(self) -> Iterable[Any]:
        return (each for group in self._groups for each in group.fsdp_params)

    def rounded(self, parameter: Any) -> Tensor:
        """This rank's copy of the shard of a `parameter` of FSDP's, one-dimensional and with its padding."""
        start = self._starts[parameter]
        return self._buffer.of(self._buffer.rank)[start : start + parameter._sharded_param_data.numel()]

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast all shards, unless AdamW has done so since they were set."""
        if self._is_current:
            return
        self._buffer.barrier()
        for each in self._parameters():
            self.rounded(each).copy_(each._sharded_param_data)
        self._buffer.barrier()
        self._is_current = True

    def written(self, groups: Iterable[Any]) -> None:
        """Say that this rank's copies of shards have been written: what is gathered from here on has all ranks'. `groups` are
        gathered at once."""
        self._buffer.barrier()
        for group in groups:
            self._gather(group)

    def forget(self) -> None:
        """The shards have been set: neither the copies nor what is gathered are of use."""
        for group in self._groups:
            group.wait_for_unshard()
            group._to_sharded()
        self._is_current = False

    def _gather(self, group: Any) -> None:
        if group._all_gather_result is not None or group.is_unsharded:
            return
        if group._training_state == TrainingState.PRE_BACKWARD and not group.unshard_in_backward:
            return
        ranks = self._buffer.size
        for each in group.fsdp_params:
            each.init_all_gather_outputs([each._sharded_param_data.numel()], [self._dtype], ranks, group.device)
            each.alloc_all_gather_outputs()
        self._stream.wait_stream(group.device_handle.current_stream())
        with torch.no_grad(), group.device_handle.stream(self._stream):
            for each in group.fsdp_params:
                self._copy(each)
        empty = torch.empty(0, dtype=self._dtype, device=group.device)
        group._all_gather_result = AllGatherResult(empty, self._stream.record_event(), None, [], [], [])

    def _copy(self, parameter: Any) -> None:
        (whole,) = parameter.all_gather_outputs
        start, ranks = self._starts[parameter], self._buffer.size
        parts = whole.view(ranks, -1)
        with torch.autograd._unsafe_preserve_version_counter(whole):  # type: ignore[attr-defined]
            for step in range(ranks):
                peer = (self._buffer.rank + step) % ranks
                parts[peer].copy_(self._buffer.of(peer)[start : start + parts.shape[1]])

    @staticmethod
    def _wait(group: Any) -> None:
        if group._all_gather_result is None:
            return
        group.device_handle.current_stream().wait_event(group._all_gather_result.all_gather_event)
        for each in group.fsdp_params:
            each.init_unsharded_param()
        group._to_unsharded()
        group._all_gather_result = None
