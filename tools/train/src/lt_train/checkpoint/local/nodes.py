"""The nodes of a run in a ring: a node is the ranks that see the same local directory.

It is tried, not read from the environment: each rank makes a file there and looks whose files it sees. So the ring is right under
every launcher, and a directory that several machines share is found out, where a copy would be lost with its original.
"""

import contextlib
import dataclasses
import errno
import secrets
import socket
from pathlib import Path
from typing import Any

import torch

from lt_shared.console import BadConfig
from lt_shared.files.local_files import creating
from lt_train.process import agreement

# What is wrong with a path and not with a disk.
OF_THE_PATH = (errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)


class DiskFailure(Exception):
    """A node's disk cannot be used; raised on all ranks."""


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


def find(directory: Path, device: torch.device) -> Nodes:
    """Look which ranks share `directory`; all ranks call it.

    Raises, on all of them, DiskFailure where some node's disk is broken, BadConfig for a directory that machines share, and
    CannotCreate for what can be one on no node.
    """
    rank = torch.distributed.get_rank()
    prefix = f".rank-{agreement.from_first_rank(secrets.token_hex(4))}-"
    mark = directory / f"{prefix}{rank}"
    failure: OSError | None = None
    visible_ranks: list[int] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        failure = error
    agreement.reduce_maximum(0, device)
    with contextlib.suppress(OSError):
        visible_ranks = sorted(int(path.name.removeprefix(prefix)) for path in directory.glob(f"{prefix}*"))
    description = failure and [f"{directory}: {failure.strerror}", failure.errno in OF_THE_PATH]
    answers = agreement.gather_after_collective([socket.gethostname(), visible_ranks, description], device)
    with contextlib.suppress(OSError):
        mark.unlink()
    _raise_failure(directory, answers, failure)
    ranks = tuple(sorted({tuple(node_ranks) for _, node_ranks, _ in answers}))
    for node_ranks in ranks:
        if len(hosts := {answers[rank_of_node][0] for rank_of_node in node_ranks}) > 1:
            raise BadConfig(
                f"--save-local {directory}: is the same directory on {' and '.join(sorted(hosts)[:2])}",
                "name one that each node has for itself, such as /local_nvme/copies or /dev/shm/copies",
            )
    return Nodes(ranks, next(number for number, node_ranks in enumerate(ranks) if rank in node_ranks))


def first_failure(problem: str | None, device: torch.device) -> str | None:
    """The problem of the first rank that has one with its node's disk, and where. All ranks call it."""
    return agreement.first_problem(problem and f"{problem} ({socket.gethostname()})", device)


def _raise_failure(directory: Path, answers: list[Any], local_error: OSError | None) -> None:
    if local_error and all(description and description[1] for _, _, description in answers):
        with creating(f"--save-local {directory}"):
            raise local_error
    for host, visible_ranks, description in answers:
        if description or not visible_ranks:
            raise DiskFailure(f"{description[0] if description else f'{directory}: it cannot be read'} ({host})")
