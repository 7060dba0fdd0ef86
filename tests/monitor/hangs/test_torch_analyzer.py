"""What torch's own analyzer says of the same dumps: per process group the ranks that are missing, or the call that differs."""

import argparse
import copy
import random
from pathlib import Path
from typing import Any

import pytest
from made_dumps import Job, changed, tensor_and_data_parallel, write

from lt_monitor.hangs import dump_files, findings

builder = pytest.importorskip("torch.distributed.flight_recorder.components.builder")

Verdicts = dict[tuple[str, int], set[int] | str]
SAMPLES = Path(__file__).parents[1] / "samples" / "flight"


def of_torch(dumps: dict[int, dict[str, Any]]) -> Verdicts:
    """The first problem of each group: its missing ranks, or `mismatch`."""
    details = {f"rank_{rank}": {"rank": rank, "host_name": "h", **copy.deepcopy(dump)} for rank, dump in dumps.items()}
    options = dict.fromkeys(("just_print_entries", "verbose", "mismatch_cap", "allow_incomplete_ranks", "print_stack_trace"))
    arguments = argparse.Namespace(**options | {"mismatch_cap": 10, "selected_ranks": None, "pg_filters": None})
    database = builder.build_db(details, arguments, next(iter(dumps.values()))["version"])
    found: dict[str, tuple[int, set[int] | str]] = {}
    for collective in database.collectives:
        # It lets a collective pass in which a rank is missing.
        if not (collective.missing_ranks or collective.mismatch_collectives):
            continue
        verdict = set(collective.missing_ranks) if collective.missing_ranks else "mismatch"
        group = collective.pg_desc.partition(":")[0]
        found.setdefault(group, (collective.collective_seq_id, verdict))
    return {(group, number): verdict for group, (number, verdict) in found.items()}


def of_lt_monitor(dumps: dict[int, dict[str, Any]], directory: Path) -> Verdicts:
    found: Verdicts = {}
    for finding in findings.find(dump_files.read(write(dumps, directory))):
        if finding.kind in (findings.MISSING, findings.MISMATCH):
            assert finding.sequence is not None
            found[finding.group.name, finding.sequence] = set(finding.missing) or "mismatch"
    return found


def a_fault(job: Job, chance: random.Random) -> tuple[str, int]:
    """Change the program of one rank; says how and of which."""
    rank = chance.randrange(len(job.programs))
    program = job.programs[rank]
    at = chance.randrange(len(program))
    kind = chance.choice(["stops", "type", "size", "dtype"])
    if kind == "stops":
        job.programs[rank] = program[:at]
    elif kind == "type":
        job.programs[rank] = changed(program, at, operation="broadcast")
    elif kind == "size":
        job.programs[rank] = changed(program, at, sizes=(7, 7))
    else:
        job.programs[rank] = changed(program, at, dtype="Half")
    return kind, rank


@pytest.mark.parametrize("seed", range(60))
def test_both_name_the_same_ranks_and_calls(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    job = tensor_and_data_parallel(tensor=chance.choice([2, 4]), data=chance.choice([2, 3, 4]), steps=3)
    kind, rank = a_fault(job, chance)
    dumps = job.play()
    ours = of_lt_monitor(dumps, tmp_path)
    assert ours == of_torch(dumps), (kind, rank)
    assert ours
    suspects = {one for finding in findings.find(dump_files.read([str(tmp_path)])) for one in finding.suspects}
    # In a group of two that do not agree it may be either.
    assert suspects in ({rank}, set() if kind != "stops" else {rank}), (kind, rank, suspects)


@pytest.mark.parametrize("case", ["late", "type", "size"])
def test_both_agree_on_dumps_of_nccl(case: str, tmp_path: Path) -> None:
    import pickle

    dumps = {rank: pickle.loads((SAMPLES / f"nccl_{case}" / f"nccl_trace_rank_{rank}").read_bytes()) for rank in (0, 1)}
    assert of_lt_monitor(dumps, tmp_path) == of_torch(dumps) != {}
