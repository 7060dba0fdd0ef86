"""FSDP's gathering of weights by copy engines: each rank reads the shards from the memory of its peers.

Every rank keeps its shards once more in the 16 bits of the forward pass, where its peers can read them. AdamW writes that copy
together with the float32 shards. So gathering a unit needs no cast and no collective, and the copies write directly to the unit's
weights, without an intermediate buffer. NCCL's kernels would take multiprocessors from concurrent GEMMs. The 16-bit copies take 2
bytes per parameter, divided by the ranks.

The memory of a unit belongs to the compute stream. A copy starts when the compute stream reaches the request for it: each unit
requests the next unit before it computes.

The first units of a step are gathered while AdamW updates the other units.

`lt_train.megatron.fsdp_param_group` makes FSDP call this gathering.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_collectives import AllGatherResult
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

from lt_train.megatron import fsdp_param_group
from lt_train.parallel.peer_buffers import PeerBuffer

# Shards begin at multiples of 128 bytes: 64 numbers of 16 bits.
ALIGNMENT = 64


class ShardGathering:
    """Gather the weights of `groups`, FSDP's parameter groups, one per unit. `buffer_of` allocates `dtype` buffers."""

    def __init__(self, groups: Iterable[Any], dtype: torch.dtype, buffer_of: Callable[[int], PeerBuffer]):
        self._groups = list(groups)
        self._dtype = dtype
        self._starts: dict[Any, int] = {}
        count = 0
        for parameter in self._parameters():
            self._starts[parameter] = count
            count += -(-parameter._sharded_param_data.numel() // ALIGNMENT) * ALIGNMENT
        self._buffer = buffer_of(count)
        self._stream = self._groups[0].device_handle.Stream(priority=-1)
        self._is_current = False
        for group in self._groups:
            fsdp_param_group.replace_gathering(group, self._gather, self._wait)

    def _parameters(self) -> Iterable[Any]:
        return (parameter for group in self._groups for parameter in group.fsdp_params)

    def rounded(self, parameter: Any) -> Tensor:
        """Return the local 16-bit copy of an FSDP parameter's shard, one-dimensional and with padding."""
        start = self._starts[parameter]
        return self._buffer.rank_buffer(self._buffer.rank)[start : start + parameter._sharded_param_data.numel()]

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast all shards to the 16-bit copies, unless AdamW has written the copies since the shards were set."""
        if self._is_current:
            return
        self._buffer.barrier()
        for parameter in self._parameters():
            self.rounded(parameter).copy_(parameter._sharded_param_data)
        self._buffer.barrier()
        self._is_current = True

    def publish(self, groups: Iterable[Any]) -> None:
        """Wait until every rank has written its copies, because later gathering reads them; start to gather `groups`."""
        self._buffer.barrier()
        for group in groups:
            self._gather(group)

    def forget(self) -> None:
        """Discard the copies and the gathered weights after the shards have been set."""
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
        for parameter in group.fsdp_params:
            parameter.init_all_gather_outputs([parameter._sharded_param_data.numel()], [self._dtype], ranks, group.device)
            parameter.alloc_all_gather_outputs()
        self._stream.wait_stream(group.device_handle.current_stream())
        with torch.no_grad(), group.device_handle.stream(self._stream):
            for parameter in group.fsdp_params:
                self._copy(parameter)
        empty = torch.empty(0, dtype=self._dtype, device=group.device)
        group._all_gather_result = AllGatherResult(empty, self._stream.record_event(), None, [], [], [])

    def _copy(self, parameter: Any) -> None:
        (whole,) = parameter.all_gather_outputs
        start, ranks = self._starts[parameter], self._buffer.size
        parts = whole.view(ranks, -1)
        with torch.autograd._unsafe_preserve_version_counter(whole):  # type: ignore[attr-defined]
            for step in range(ranks):
                peer = (self._buffer.rank + step) % ranks
                parts[peer].copy_(self._buffer.rank_buffer(peer)[start : start + parts.shape[1]])

    @staticmethod
    def _wait(group: Any) -> None:
        if group._all_gather_result is None:
            return
        group.device_handle.current_stream().wait_event(group._all_gather_result.all_gather_event)
        for parameter in group.fsdp_params:
            parameter.init_unsharded_param()
        group._to_unsharded()
        group._all_gather_result = None
