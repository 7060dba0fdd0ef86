"""Find the nodes of a run and order them in a ring: a node is the ranks that see the same local directory.

Each rank makes a file in the directory and lists whose files it sees, instead of reading the environment. The ring is right under
every launcher. A directory that several machines share is noticed; there, a copy would be lost together with its original.
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

# These errors come from a wrong path, not from a broken disk.
PATH_ERRORS = (errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)


class DiskFailure(Exception):
    """A node's disk cannot be used. Raised on all ranks."""


@dataclasses.dataclass(frozen=True)
class Nodes:
    """`ranks` has a tuple of ranks per node, ordered by the first ranks. `local_node` is the number of this rank's node."""

    ranks: tuple[tuple[int, ...], ...]
    local_node: int

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def leaders(self) -> list[int]:
        """The first rank on every node."""
        return [ranks[0] for ranks in self.ranks]

    @property
    def is_leader(self) -> bool:
        return torch.distributed.get_rank() in self.leaders

    @property
    def local_ranks(self) -> tuple[int, ...]:
        return self.ranks[self.local_node]

    def after(self, node: int) -> int:
        """Return the node that keeps the second copy of the shards of `node`."""
        return (node + 1) % len(self.ranks)


def find(directory: Path, device: torch.device) -> Nodes:
    """Find out which ranks share `directory`. All ranks call it.

    Raises on all ranks: DiskFailure if a node's disk is broken, BadConfig if several machines share the directory, CannotCreate
    if the path cannot be a directory on any node.
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
    # A barrier: every rank has made its file before any rank lists the directory.
    agreement.reduce_maximum(0, device)
    with contextlib.suppress(OSError):
        visible_ranks = sorted(int(path.name.removeprefix(prefix)) for path in directory.glob(f"{prefix}*"))
    description = failure and [f"{directory}: {failure.strerror}", failure.errno in PATH_ERRORS]
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
    """Return the first rank's problem with its node's disk, with the host name, or None. All ranks call it."""
    return agreement.first_problem(problem and f"{problem} ({socket.gethostname()})", device)


def _raise_failure(directory: Path, answers: list[Any], local_error: OSError | None) -> None:
    if local_error and all(description and description[1] for _, _, description in answers):
        with creating(f"--save-local {directory}"):
            raise local_error
    for host, visible_ranks, description in answers:
        if description or not visible_ranks:
            raise DiskFailure(f"{description[0] if description else f'{directory}: it cannot be read'} ({host})")
