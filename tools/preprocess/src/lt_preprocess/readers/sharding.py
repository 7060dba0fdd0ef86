"""The slice of the input that this task tokenizes: `--shard 3/16`, or `--shard auto` from Slurm's environment variables.

A job array numbers its tasks by SLURM_ARRAY_TASK_*, the tasks of an srun have SLURM_PROCID and SLURM_STEP_NUM_TASKS. A wrong
guess would silently leave out a part of the corpus, so whatever is ambiguous is refused: an array with gaps, an array and srun
tasks that disagree, and an array that begins elsewhere than at 0 or 1 or has one task, as when some tasks of an earlier array are
submitted again. For these there is `--shard auto/16`: the task id is the number of the shard."""

import os
import re
from collections.abc import Mapping

from lt_preprocess.readers.slices import Slice
from lt_shared.console import BadConfig, UsageError

_HINT = "name the shard: --shard I/N"


def parse_shard(shard: str, environment: Mapping[str, str] = os.environ) -> Slice:
    """`shard` is "I/N", I from 0, "auto/N" or "auto".

    Raises: UsageError for another text, BadConfig when the environment is missing, ambiguous or contradictory.
    """
    if shard == "auto":
        return _from_slurm(environment)
    match = re.fullmatch(r"([0-9]+|auto)/([0-9]+)", shard)
    if match is None:
        raise UsageError(f"--shard {shard}: neither auto, auto/N nor I/N, such as 3/16")
    part = Slice(_task_number(environment) if match[1] == "auto" else int(match[1]), int(match[2]))
    if part.index >= part.count:
        raise UsageError(f"--shard {shard}: {part.index} is too large: shards are numbered from 0 to {max(part.count - 1, 0)}")
    return part


def _task_number(environment: Mapping[str, str]) -> int:
    task = _number(environment, "SLURM_ARRAY_TASK_ID")
    if task is None:
        raise BadConfig("--shard auto/N: SLURM_ARRAY_TASK_ID is not set", _HINT)
    return task


def _from_slurm(environment: Mapping[str, str]) -> Slice:
    tasks = [part for part in (_array_task(environment), _step_task(environment)) if part is not None]
    if not tasks:
        raise BadConfig("--shard auto: neither SLURM_ARRAY_TASK_ID nor SLURM_PROCID is set", _HINT)
    shared = [part for part in tasks if part.count > 1] or tasks[:1]
    if len(set(shared)) > 1:
        array, step = shared
        raise BadConfig(
            f"--shard auto: by the array this is shard {array.index} of {array.count}, by srun {step.index} of {step.count}",
            f"start one srun task in each array task, or {_HINT}",
        )
    return shared[0]


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


def _step_task(environment: Mapping[str, str]) -> Slice | None:
    """Outside a step of srun this is one process, whatever SLURM_NTASKS says that the job may start."""
    task, count = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_STEP_NUM_TASKS")
    if task is None:
        return None
    if count is None:
        if (_number(environment, "SLURM_NTASKS") or 1) > 1:
            raise BadConfig(
                "--shard auto: the job has several tasks, but this process was not started by srun", "srun lt-preprocess ..."
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
