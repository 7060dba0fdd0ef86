"""The nodes of a run in a ring: a node is the ranks that see the same local directory.

It is tried, not read from the environment: each rank makes a file there and looks whose files it sees. So the ring is right under
every launcher, and a directory that several machines share is found out, where a copy would be lost with its original.
"""

import dataclasses
import secrets
import socket
from pathlib import Path

import torch

from lt_shared.console import BadConfig
from lt_shared.local_files import creating
from lt_train.runtime import agreement


@dataclasses.dataclass(frozen=True)
class Nodes:
    """`ranks` are those of each node, nodes in the order of their first ranks; `own` is the number of this rank's node."""

    ranks: tuple[tuple[int, ...], ...]
    own: int

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def leaders(self) -> list[int]:
        """The first rank of each node."""
        return [ranks[0] for ranks in self.ranks]

    @property
    def is_leader(self) -> bool:
        return torch.distributed.get_rank() in self.leaders

    @property
    def own_ranks(self) -> tuple[int, ...]:
        return self.ranks[self.own]

    def after(self, node: int) -> int:
        """The node that keeps the second copy of a node's shards."""
        return (node + 1) % len(self.ranks)


def find(directory: Path, where: torch.device) -> Nodes:
    """Look which ranks share `directory`; all ranks call it. Raises BadConfig for one that machines share."""
    rank = torch.distributed.get_rank()
    prefix = f".rank-{agreement.from_first_rank(secrets.token_hex(4))}-"
    mark = directory / f"{prefix}{rank}"
    with creating(f"--save-local {directory}"):
        directory.mkdir(parents=True, exist_ok=True)
        mark.touch()
    agreement.largest(0, where)
    seen = sorted(int(path.name.removeprefix(prefix)) for path in directory.glob(f"{prefix}*"))
    answers = agreement.gathered([socket.gethostname(), seen], where)
    mark.unlink()
    ranks = tuple(sorted({tuple(found) for _, found in answers}))
    for found in ranks:
        if len(hosts := {answers[each][0] for each in found}) > 1:
            raise BadConfig(
                f"--save-local {directory}: is the same directory on {' and '.join(sorted(hosts)[:2])}",
                "name one that each node has for itself, such as /local_nvme/copies or /dev/shm/copies",
            )
    return Nodes(ranks, next(number for number, found in enumerate(ranks) if rank in found))
