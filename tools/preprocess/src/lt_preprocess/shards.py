"""Which part of the input is this task's: `--shard 3/16`, or `--shard auto` from what Slurm says.

A job array numbers its tasks by SLURM_ARRAY_TASK_*, the tasks of one srun have SLURM_PROCID of SLURM_NTASKS. A wrong guess would
leave a part of the corpus out without a sign, so whatever is in doubt is refused: an array with gaps, both kinds at once, more
tasks than were started.
"""

import os
import re
from collections.abc import Mapping

from lt_preprocess.slices import Slice
from lt_shared.console import BadConfig, UsageError

_HINT = "give the part as --shard I/N"


def resolve(shard: str, environment: Mapping[str, str] = os.environ) -> Slice:
    """`shard` is "I/N", I from 0, or "auto". Raises UsageError for another text, BadConfig when the environment is in doubt."""
    if shard == "auto":
        return _from_slurm(environment)
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if match is None:
        raise UsageError(f"--shard {shard}: neither auto nor I/N, such as 3/16")
    part = Slice(int(match[1]), int(match[2]))
    if part.index >= part.count:
        raise UsageError(f"--shard {shard}: parts are numbered from 0 to {max(part.count - 1, 0)}")
    return part


def _from_slurm(environment: Mapping[str, str]) -> Slice:
    found = [part for part in (_array_task(environment), _step_task(environment)) if part is not None]
    if not found:
        raise BadConfig("--shard auto: neither SLURM_ARRAY_TASK_ID nor SLURM_PROCID is set", _HINT)
    shared = [part for part in found if part.count > 1] or found[:1]
    if len(set(shared)) > 1:
        array, step = shared
        raise BadConfig(
            f"--shard auto: the array says {array.index} of {array.count}, the tasks of the step {step.index} of {step.count}",
            f"start one task for each member of the array, or {_HINT}",
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
    return Slice(index, count)


def _step_task(environment: Mapping[str, str]) -> Slice | None:
    """In an sbatch script outside srun, SLURM_NTASKS is what the job may start, and this is one process."""
    task = _number(environment, "SLURM_PROCID")
    if task is None:
        return None
    counts = {_number(environment, name) for name in ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")} - {None}
    if len(counts) != 1:
        named = " and ".join(map(str, sorted(count for count in counts if count is not None))) or "nothing"
        raise BadConfig(f"--shard auto: SLURM_NTASKS and SLURM_STEP_NUM_TASKS say {named}", _HINT)
    (count,) = counts
    assert count is not None
    if count > 1 and "SLURM_STEP_NUM_TASKS" not in environment:
        raise BadConfig(
            f"--shard auto: the job has {count} tasks, but this process was not started by srun", "srun lt-preprocess ..."
        )
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
