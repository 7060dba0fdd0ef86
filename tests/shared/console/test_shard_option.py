"""A task takes its own part, and none when what Slurm says leaves room for doubt."""

import pytest

from lt_shared.console import BadConfig, UsageError, shard_option
from lt_shared.console.shard_option import Slice


def array(task: int, first: int, last: int, count: int, step: int | None = None) -> dict[str, str]:
    numbers = {"ID": task, "MIN": first, "MAX": last, "COUNT": count} | ({} if step is None else {"STEP": step})
    return {f"SLURM_ARRAY_TASK_{name}": str(number) for name, number in numbers.items()}


def tasks(task: int, count: int) -> dict[str, str]:
    return {"SLURM_PROCID": str(task), "SLURM_NTASKS": str(count), "SLURM_STEP_NUM_TASKS": str(count)}


@pytest.mark.parametrize(("text", "part"), [("0/1", Slice(0, 1)), ("3/16", Slice(3, 16)), ("15/16", Slice(15, 16))])
def test_given(text: str, part: Slice) -> None:
    assert shard_option.parse_shard(text, {}) == part


def test_a_task_that_is_submitted_again_alone() -> None:
    assert shard_option.parse_shard("auto/16", array(3, 3, 3, 1)) == Slice(3, 16)
    assert shard_option.parse_shard("auto/16", array(9, 8, 15, 8)) == Slice(9, 16)
    with pytest.raises(UsageError, match="16 is too large"):
        shard_option.parse_shard("auto/16", array(16, 1, 16, 16))
    with pytest.raises(BadConfig, match="neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set"):
        shard_option.parse_shard("auto/16", tasks(1, 2))


@pytest.mark.parametrize("text", ["\u0663/\u0664", "auto/", "auto/x", "16/16", "0/0", "1", "a/b", "-1/2", "1/2/3", "", "Auto"])
def test_given_wrongly(text: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        shard_option.parse_shard(text, {})


def test_no_shards() -> None:
    for text in ("0/0", "3/0", "auto/0"):
        with pytest.raises(UsageError, match="the number of shards is 0, expected at least 1"):
            shard_option.parse_shard(text, {})


@pytest.mark.parametrize(
    ("environment", "part"),
    [
        (array(0, 0, 15, 16), Slice(0, 16)),
        (array(16, 1, 16, 16), Slice(15, 16)),
        (array(9, 1, 13, 4, 4), Slice(2, 4)),
        (tasks(3, 8), Slice(3, 8)),
        (array(2, 0, 3, 4) | tasks(0, 1), Slice(2, 4)),
        (array(2, 0, 3, 4) | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, Slice(2, 4)),
        (array(2, 0, 3, 4) | tasks(2, 4), Slice(2, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, Slice(0, 1)),
        (array(2, 0, 3, 4) | {"SLURM_PROCID": "0", "SLURM_NNODES": "1"}, Slice(2, 4)),
        (tasks(1, 2) | {"SLURM_NTASKS": "4"}, Slice(1, 2)),
    ],
)
def test_from_slurm(environment: dict[str, str], part: Slice) -> None:
    assert shard_option.parse_shard("auto", environment) == part


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "neither SLURM_ARRAY_TASK_ID nor SLURM_PROCID"),
        (array(1, 0, 15, 15), "gaps"),
        (array(2, 0, 15, 4), "gaps"),
        (array(3, 1, 13, 4, 4), "gaps"),
        (array(20, 0, 15, 16), "gaps"),
        ({"SLURM_ARRAY_TASK_ID": "1"}, "not all of"),
        (array(1, 0, 3, 4) | {"SLURM_ARRAY_TASK_ID": "x"}, "no number"),
        (array(1, 0, 3, 4) | tasks(2, 4), "by the array this is shard 1 of 4, by srun 2 of 4"),
        (array(1, 0, 3, 4) | tasks(1, 2), "by the array this is shard 1 of 4"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, "not started by srun"),
        (array(3, 3, 3, 1), "part of a larger one"),
        (array(0, 0, 0, 1), "part of a larger one"),
        (array(9, 8, 15, 8), "part of a larger one"),
        (tasks(8, 8), "SLURM_PROCID is 8 of 8"),
    ],
)
def test_in_doubt(environment: dict[str, str], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        shard_option.parse_shard("auto", environment)


def test_the_environment_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in tasks(1, 2).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)
    assert shard_option.parse_shard("auto") == Slice(1, 2)


@pytest.mark.parametrize(
    ("environment", "part"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, Slice(3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Slice(1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"} | tasks(1, 4), Slice(1, 4)),
        # torchrun in two tasks of srun, four workers in each.
        ({"TORCHELASTIC_RUN_ID": "7", "RANK": "5", "WORLD_SIZE": "8"} | tasks(1, 2), Slice(5, 8)),
        # mpirun in the script of a job with several tasks.
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, Slice(1, 2)),
        # Every task of srun is alone for PMI.
        ({"PMI_RANK": "0", "PMI_SIZE": "1"} | tasks(3, 4), Slice(3, 4)),
    ],
)
def test_from_other_launchers(environment: dict[str, str], part: Slice) -> None:
    assert shard_option.parse_shard("auto", environment) == part


def test_an_indexed_job_counts_no_pods() -> None:
    with pytest.raises(BadConfig, match="no variable counts them"):
        shard_option.parse_shard("auto", {"JOB_COMPLETION_INDEX": "2"})
    assert shard_option.parse_shard("auto/8", {"JOB_COMPLETION_INDEX": "2"}) == Slice(2, 8)


def test_launchers_that_disagree() -> None:
    with pytest.raises(BadConfig, match="by srun this is shard 1 of 4, by mpirun 1 of 2"):
        shard_option.parse_shard("auto", {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"} | tasks(1, 4))
    with pytest.raises(BadConfig, match="RANK is 2 of 2"):
        shard_option.parse_shard("auto", {"RANK": "2", "WORLD_SIZE": "2"})
