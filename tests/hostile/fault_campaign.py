"""What the campaigns of faults have in common."""

import collections
import random
import subprocess
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TypeVar

from lt_shared.files.checksums import FileChecksums

Kind = TypeVar("Kind", bound=Hashable)
Case = TypeVar("Case")

ERRORS = ("EIO", "ENOSPC", "EDQUOT")


class Broken(Exception):
    """Something that must hold does not."""


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """The process when it has ended, with all that it has written."""
    output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def in_turn(cases: Sequence[tuple[Kind, Case]], choose: random.Random) -> list[Case]:
    """The cases in a random order that takes one of each kind in turn, so that a small sample has all kinds."""
    by_kind: dict[Kind, list[Case]] = collections.defaultdict(list)
    for kind, case in choose.sample(cases, len(cases)):
        by_kind[kind].append(case)
    queues = choose.sample(list(by_kind.values()), len(by_kind))
    return [queue[turn] for turn in range(max(map(len, queues))) for queue in queues if turn < len(queue)]


def tensor_checksums(directory: Path) -> dict[str, int]:
    """Of each tensor and object of a checkpoint by name, without the generators of random numbers, which these models do not
    use, and without the arguments, which name what a resumed run was given. The checksums of its files must be right."""
    import torch.distributed.checkpoint as dcp

    checksums = FileChecksums.read(directory)
    assert checksums is not None
    for name in checksums.ranges:
        checksums.check_file(directory, name)
    found = {}
    for index, stored in dcp.FileSystemReader(directory).read_metadata().storage_data.items():
        ranges = checksums.within(stored.relative_path, stored.offset, stored.length)
        # megatron-core 0.19 has the arguments here, 0.16 in a file.
        if not index.fqn.startswith(("rng_state", "common_state")):
            found[f"{index.fqn} {index.offset}"] = ranges[0][2]
    return found
