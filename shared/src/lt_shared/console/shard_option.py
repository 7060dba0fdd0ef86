"""The part of the work that this process does: `--shard 3/16`, or `--shard auto` from the launcher's environment variables.

A job array numbers its tasks by SLURM_ARRAY_TASK_*, the tasks of an srun have SLURM_PROCID and SLURM_STEP_NUM_TASKS, and
torchrun, mpirun and PMI have variables of their own. A wrong guess would silently leave out a part of the work, so whatever is
ambiguous is refused: an array with gaps, two launchers that disagree, and an array that begins elsewhere than at 0 or 1 or has
one task, as when some tasks of an earlier array are submitted again. For these there is `--shard auto/16`: the task id is the
number of the shard. An Indexed Job of Kubernetes numbers its pods and does not count them, so it takes `auto/16`, too.
"""

import dataclasses
import os
import re
from collections.abc import Mapping

from lt_shared.console.errors import BadConfig, UsageError
from lt_shared.console.output import tool_name

_HINT = "name the shard: --shard I/N"
# The variables of a process's number and of the number of processes.
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MVAPICH": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "jsrun": ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    "Flux": ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    "PALS": ("PALS_RANKID", "PALS_NRANKS"),
    "PMI": ("PMI_RANK", "PMI_SIZE"),
}
# torchrun sets it: its workers may have the variables of the srun or mpirun around it, too.
_TORCHRUN = "TORCHELASTIC_RUN_ID"
_POD = "JOB_COMPLETION_INDEX"


@dataclasses.dataclass(frozen=True)
class Slice:
    """Slice `index` (from 0) of `count`."""

    index: int = 0
    count: int = 1


WHOLE = Slice()


def parse_shard(shard: str, environment: Mapping[str, str] = os.environ) -> Slice:
    """`shard` is "I/N", I from 0, "auto/N" or "auto".

    Raises: UsageError for another text, BadConfig when the environment is missing, ambiguous or contradictory.
    """
    if shard == "auto":
        return _from_launcher(environment)
    match = re.fullmatch(r"([0-9]+|auto)/([0-9]+)", shard)
    if match is None:
        raise UsageError(f"--shard {shard}: neither auto, auto/N nor I/N, such as 3/16")
    if int(match[2]) == 0:
        raise UsageError(f"--shard {shard}: the number of shards is 0, expected at least 1", "divide the work: --shard 0/2")
    part = Slice(_task_number(environment) if match[1] == "auto" else int(match[1]), int(match[2]))
    if part.index >= part.count:
        raise UsageError(f"--shard {shard}: {part.index} is too large: shards are numbered from 0 to {part.count - 1}")
    return part


def _task_number(environment: Mapping[str, str]) -> int:
    numbers = [_number(environment, name) for name in ("SLURM_ARRAY_TASK_ID", _POD)]
    task = next((number for number in numbers if number is not None), None)
    if task is None:
        raise BadConfig(f"--shard auto/N: neither SLURM_ARRAY_TASK_ID nor {_POD} is set", _HINT)
    return task


def _from_launcher(environment: Mapping[str, str]) -> Slice:
    if environment.get(_TORCHRUN):
        worker = _worker(environment, *_LAUNCHERS["torchrun"])
        if worker is not None:
            return worker
    workers = {launcher: _worker(environment, *variables) for launcher, variables in _LAUNCHERS.items()}
    # The script of a job with several tasks is one process, unless mpirun or the like has started it there.
    is_alone = all(part is None or part.count == 1 for part in workers.values())
    named = {"the array": _array_task(environment), "srun": _step_task(environment, is_alone), **workers}
    tasks = {launcher: part for launcher, part in named.items() if part is not None}
    if not tasks:
        if _number(environment, _POD) is not None:
            raise BadConfig(
                f"--shard auto: {_POD} numbers the pods of a Job, and no variable counts them",
                "name the Job's completions: --shard auto/N",
            )
        raise BadConfig("--shard auto: neither SLURM_ARRAY_TASK_ID nor SLURM_PROCID, nor RANK nor PMI_RANK is set", _HINT)
    shared = {launcher: part for launcher, part in tasks.items() if part.count > 1} or tasks
    (one, part), *others = shared.items()
    for other, its_part in others:
        if its_part != part:
            raise BadConfig(
                f"--shard auto: by {one} this is shard {part.index} of {part.count}, by {other} {its_part.index} of"
                f" {its_part.count}",
                f"start one process in each array task, or {_HINT}",
            )
    return part


def _worker(environment: Mapping[str, str], rank: str, size: str) -> Slice | None:
    index, count = _number(environment, rank), _number(environment, size)
    if index is None or count is None:
        return None
    if index >= count:
        raise BadConfig(f"--shard auto: {rank} is {index} of {count} processes", _HINT)
    return Slice(index, count)


def _array_task(environment: Mapping[str, str]) -> Slice | None:
    task = _number(environment, "SLURM_ARRAY_TASK_ID")
    if task is None:
        return None
    first, last, count = (_number(environment, f"SLURM_ARRAY_TASK_{name}") for name in ("MIN", "MAX", "COUNT"))
    step = _number(environment, "SLURM_ARRAY_TASK_STEP") or 1
    if first is None or last is None or count is None:
        raise BadConfig("--shard auto: SLURM_ARRAY_TASK_ID is set, but not all of SLURM_ARRAY_TASK_MIN, _MAX and _COUNT", _HINT)
    index, beside = divmod(task - first, step)
    if beside or first + (count - 1) * step != last or not first <= task <= last:
        raise BadConfig(
            f"--shard auto: the array has gaps: {count} tasks from {first} to {last}, this is {task}",
            f"submit it whole, such as --array=0-{count - 1}, or {_HINT}",
        )
    if first not in (0, 1) or count == 1:
        raise BadConfig(
            f"--shard auto: the array has {count} task(s) from {first} on: are they part of a larger one?",
            "if the task id is the number of the shard, from 0: --shard auto/N",
        )
    return Slice(index, count)


def _step_task(environment: Mapping[str, str], is_alone: bool) -> Slice | None:
    """Outside a step of srun this is one process, whatever SLURM_NTASKS says that the job may start."""
    task, count = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_STEP_NUM_TASKS")
    if task is None:
        return None
    if count is None:
        if is_alone and (_number(environment, "SLURM_NTASKS") or 1) > 1:
            raise BadConfig(
                "--shard auto: the job has several tasks, but this process was not started by srun", f"srun {tool_name()} ..."
            )
        return Slice()
    if task >= count:
        raise BadConfig(f"--shard auto: SLURM_PROCID is {task} of {count} tasks", _HINT)
    return Slice(task, count)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"\d+", text):
        raise BadConfig(f"--shard auto: {name} is {text!r}, no number", _HINT)
    return int(text)
