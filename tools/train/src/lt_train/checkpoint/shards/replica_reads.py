"""Read objects on a store once per group of ranks: one rank reads each object and broadcasts it to the group.

Data-parallel replicas have the same weights. Ranks with another layout than the checkpoint need rows of the same objects. If
every rank read its objects alone, the store would send one copy per replica. The groups are tried in this order: all ranks, the
data-parallel ranks, the ranks that share experts. An all-reduce with a byte per object finds the objects that a whole group needs
and no earlier group reads, under any layout. A rank reads the remaining objects alone.

All ranks in a group take the objects in file order. A rank reads a stripe of consecutive bytes, ahead of its turn. The device
holds one broadcast piece at a time. A rank that fails takes part until its next turn and reports the failure then, because
otherwise the other ranks would wait for it.
"""

import json
import zlib
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Self

import numpy as np
import torch
from megatron.core import parallel_state

from lt_shared.console import BadData
from lt_train.checkpoint.shards.stored_shards import Place, StoredShards, Take
from lt_train.process import agreement
from lt_train.process.interruption import Echo

STRIPE_BYTES, PIECE_BYTES = 32 << 20, 32 << 20


class Exchange:
    """The objects at `places`, in order, that all ranks in `group` need. This rank reads the objects at `local_places`."""

    def __init__(self, places: Sequence[Place], group: torch.distributed.ProcessGroup, device: torch.device):
        self.places = places
        self._group = group
        self._rank = torch.distributed.get_rank(group)
        self._remaining = deque(zip(places, _readers(places, torch.distributed.get_world_size(group)), strict=True))
        self.local_places = [place for place, reader in self._remaining if reader == self._rank]
        largest = max((place.size_bytes for place in places), default=0)
        self._buffer = torch.empty(min(PIECE_BYTES, largest) + 1, dtype=torch.uint8, device=device)

    def take(self, place: Place, read: Take) -> memoryview:
        """Return the bytes of the object at `place`; call `read` if this rank reads it. Raise Echo if another rank has failed."""
        while True:
            received_place, content = self._next(read)
            if received_place == place:
                return content

    def finish(self, read: Take) -> None:
        """Take part in the remaining broadcasts, whose objects this rank had already."""
        while self._remaining:
            self._next(read)

    def give_up(self) -> None:
        """Report this rank's failure to the group, unless all objects have been broadcast."""
        while self._remaining:
            self._next(None)

    def _next(self, read: Take | None) -> tuple[Place, memoryview]:
        """Broadcast the next object. Without `read`, this rank has failed and raises no error for it."""
        place, reader = self._remaining[0]
        content = None
        if reader != self._rank:
            content = np.empty(place.size_bytes, np.uint8).data
        elif read:
            content = read(place)
        self._remaining.popleft()
        for start in range(0, max(1, place.size_bytes), PIECE_BYTES):
            size_bytes = min(PIECE_BYTES, place.size_bytes - start)
            piece = content[start : start + size_bytes] if content is not None else None
            if not self._broadcast(piece, size_bytes, reader):
                self._remaining.clear()
                if read:
                    raise Echo("another rank failed while it read its part of the checkpoint")
                break
        return place, content if content is not None else memoryview(b"")

    def _broadcast(self, piece: memoryview | None, size_bytes: int, reader: int) -> bool:
        """Broadcast `piece` from the rank `reader`. Return False if the reader has failed: it sends None.

        Other ranks receive into `piece`.
        """
        # The last byte of the message says whether the reader has the piece.
        buffer = self._buffer[: size_bytes + 1]
        host = torch.frombuffer(piece, dtype=torch.uint8) if piece else torch.empty(0, dtype=torch.uint8)
        if reader == self._rank:
            buffer[size_bytes] = piece is not None
            if piece:
                buffer[:size_bytes].copy_(host)
        torch.distributed.broadcast(buffer, group=self._group, group_src=reader)
        if reader != self._rank:
            host.copy_(buffer[:size_bytes])
        return bool(buffer[size_bytes])


def _readers(places: Sequence[Place], ranks: int) -> Iterator[int]:
    """Yield the rank that reads each object. Ranks take turns stripe by stripe, so that they read equally many bytes.

    Consecutive small objects stay on the same rank, which reads them with one request.
    """
    total, begin = sum(place.size_bytes for place in places), 0
    stripe = max(1, min(STRIPE_BYTES, -(-total // ranks)))
    for place in places:
        yield begin // stripe % ranks
        begin += place.size_bytes


class Replicas:
    """The groups of ranks that read a checkpoint together with this rank."""

    def __init__(self, groups: Sequence[torch.distributed.ProcessGroup], device: torch.device):
        self._groups, self._device = groups, device

    @classmethod
    def from_process_groups(cls, device: torch.device) -> Self:
        groups = [
            torch.distributed.group.WORLD,
            parallel_state.get_data_parallel_group(with_context_parallel=True),
            parallel_state.get_expert_data_parallel_group(),
        ]
        by_ranks: dict[tuple[int, ...], torch.distributed.ProcessGroup] = {}
        for group in groups:
            # If several groups have the same ranks, take the first group: it has a communicator already.
            by_ranks.setdefault(tuple(torch.distributed.get_process_group_ranks(group)), group)
        return cls([group for ranks, group in by_ranks.items() if len(ranks) > 1], device)

    def exchanges(
        self, stored: StoredShards, known_places: Collection[Place], requested_places: Collection[Place]
    ) -> list[Exchange]:
        """Plan one exchange per group. All ranks go through the exchanges in this order.

        `known_places` are all objects of the checkpoint, `requested_places` the objects that this rank needs. Raises BadData if
        the ranks see different checkpoints.
        """
        if not self._groups:
            return []
        ordered = sorted(known_places)
        self._check_same(stored, ordered)
        chosen = set(requested_places)
        pending = torch.tensor([place in chosen for place in ordered], dtype=torch.uint8)
        exchanges = []
        for group in self._groups:
            # The minimum is 1 for the objects that every rank in the group needs. Later groups read the remaining objects.
            common = pending.to(self._device, copy=True)
            torch.distributed.all_reduce(common, torch.distributed.ReduceOp.MIN, group)
            places = [ordered[number] for number in common.nonzero().view(-1).tolist()]
            exchanges.append(Exchange(places, group, self._device))
            pending -= common.to(pending.device)
        return exchanges

    def _check_same(self, stored: StoredShards, known_places: Sequence[Place]) -> None:
        versions = sorted((name, shard.size_bytes, shard.version) for name, shard in stored.shards.items())
        digest = zlib.crc32(json.dumps([versions, known_places]).encode())
        # One reduction finds the maximum and, by the negated numbers, the minimum. They are equal if all ranks have the same
        # digest.
        largest, smallest = agreement.start_maximum([digest, -digest], self._device)()
        if largest != -smallest:
            raise BadData(f"{stored.url}: was replaced while the nodes copied its small files", "run the same command again")
