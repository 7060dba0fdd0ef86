"""Find out which local checkpoints the nodes hold, and which sets are complete.

A set is the files of a checkpoint on all nodes, identified by the iteration and by the digest of `checksums.json`.
`checksums.json` has the checksum of every object, so files of different attempts belong to different sets. It also names all
files of the set. Each rank compares a part of its node's files with these checksums. A damaged file counts as missing, and its
second copy is used.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from lt_shared.console import BadData, ToolError, warn
from lt_shared.contracts import checkpoint_layout
from lt_shared.files.checksums import FileChecksums
from lt_train.checkpoint.local.nodes import Nodes
from lt_train.process import agreement


@dataclasses.dataclass(frozen=True)
class LocalSet:
    """`files` maps all file names of the set to sizes in bytes, `holders` maps each file name to the nodes that hold the file."""

    iteration: int
    digest: str
    files: dict[str, int]
    holders: dict[str, list[int]]

    @property
    def missing(self) -> list[str]:
        return [name for name in self.files if not self.holders.get(name)]


def newest_complete(
    directory: Path, nodes: Nodes, device: torch.device, later_than: int, earlier_than: int, verify: bool
) -> LocalSet | None:
    """Find the newest complete set between two iterations. All ranks call it and get the same set."""
    local_sets = _local_sets(directory, later_than, earlier_than) if nodes.is_leader else []
    sets_by_rank = agreement.gather_after_collective(local_sets, device)
    all_sets = {(iteration, digest) for local_set in sets_by_rank for iteration, digest in local_set}
    # All ranks inspect the sets in the same order, because the inspection is collective.
    for iteration, digest in sorted(all_sets, reverse=True):
        local_set = _inspect_set(
            checkpoint_layout.iteration_directory(directory, iteration), iteration, digest, nodes, device, verify
        )
        if not local_set.missing:
            return local_set
    return None


def digest_of(checkpoint: Path) -> str | None:
    """Compute the digest that identifies the set in `checkpoint`. Return None if `checksums.json` is missing or unreadable."""
    try:
        return hashlib.sha256((checkpoint / FileChecksums.NAME).read_bytes()).hexdigest()[:16]
    except OSError:
        return None


def _local_sets(directory: Path, later_than: int, earlier_than: int) -> list[tuple[int, str]]:
    sets, checkpoints = [], []
    with contextlib.suppress(OSError):
        checkpoints = checkpoint_layout.checkpoints(directory)
    for checkpoint in checkpoints:
        iteration, digest = checkpoint_layout.iteration_of(checkpoint) or 0, digest_of(checkpoint)
        if digest is not None and later_than < iteration < earlier_than:
            sets.append((iteration, digest))
    return sets


def _inspect_set(checkpoint: Path, iteration: int, digest: str, nodes: Nodes, device: torch.device, verify: bool) -> LocalSet:
    """Find out which nodes hold which files of a set. Every rank checks a part of its node's files."""
    recorded = None
    if digest_of(checkpoint) == digest:
        try:
            recorded = FileChecksums.read(checkpoint)
        except (ToolError, OSError) as error:
            warn(f"passing over a local copy: {error}")
    names = sorted(recorded.ranges) if recorded else []
    sizes = {name: whole[0] for name in names if recorded and (whole := recorded.whole(name))}
    ranks = nodes.local_ranks
    # The n ranks of a node share the reading: each checks every n-th file.
    part = ranks.index(torch.distributed.get_rank())
    undamaged = [name for name in names[part :: len(ranks)] if recorded and _is_undamaged(checkpoint, name, recorded, verify)]
    path = checkpoint / FileChecksums.NAME
    if recorded and nodes.is_leader:
        with contextlib.suppress(OSError):
            sizes[path.name] = path.stat().st_size
            undamaged.append(path.name)
    files_by_rank: list[tuple[dict[str, int], list[str]]] = agreement.gather_after_collective(
        (sizes if nodes.is_leader else {}, undamaged), device
    )
    files: dict[str, int] = next(
        (dict(sizes_of_rank) for sizes_of_rank, _ in files_by_rank if sizes_of_rank), {FileChecksums.NAME: 0}
    )
    return LocalSet(iteration, digest, files, _holders(files, files_by_rank, nodes))


def _holders(
    files: Iterable[str], files_by_rank: Sequence[tuple[dict[str, int], list[str]]], nodes: Nodes
) -> dict[str, list[int]]:
    holders: dict[str, list[int]] = {name: [] for name in files}
    for node, ranks in enumerate(nodes.ranks):
        for name in {name for rank in ranks for name in files_by_rank[rank][1]}:
            holders[name].append(node)
    return holders


def _is_undamaged(checkpoint: Path, name: str, recorded: FileChecksums, verify: bool) -> bool:
    path = checkpoint / name
    whole = recorded.whole(name)
    try:
        if not path.is_file():
            return False
        if not verify:
            return whole is not None and path.stat().st_size == whole[0]
        recorded.check_file(checkpoint, name)
    except (BadData, OSError) as error:
        warn(f"a local copy is damaged: {error}")
        return False
    return True
