"""Flight recorder dumps of jobs that are played here: each rank follows its program until a call waits for somebody."""

import dataclasses
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BEGAN_NS = 1_795_599_535_000_000_000
STEP_NS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Step:
    """One call in a rank's program."""

    group: str
    operation: str = "all_reduce"
    sizes: tuple[int, ...] = (1024,)
    dtype: str = "Float"
    line: int = 10


@dataclasses.dataclass
class Job:
    """`groups` are the ranks of each group, `programs` the calls of each rank."""

    groups: dict[str, tuple[int, ...]]
    programs: dict[int, list[Step]]
    descriptions: dict[str, str] = dataclasses.field(default_factory=dict)

    def play(self) -> dict[int, dict[str, Any]]:
        """The dump of each rank after no rank can move any more. Calls that differ wait for ever."""
        at = dict.fromkeys(self.programs, 0)
        called: dict[int, list[tuple[Step, int]]] = {rank: [] for rank in self.programs}
        moved = True
        while moved:
            moved = False
            for rank, program in self.programs.items():
                if len(called[rank]) == at[rank] < len(program):
                    step = program[at[rank]]
                    called[rank].append((step, 1 + sum(other.group == step.group for other, _ in called[rank])))
            for rank in self.programs:
                if at[rank] < len(called[rank]) and self._is_met(*called[rank][at[rank]], called):
                    at[rank] += 1
                    moved = True
        return {rank: self._dump(calls, at[rank]) for rank, calls in called.items()}

    def _is_met(self, step: Step, number: int, called: dict[int, list[tuple[Step, int]]]) -> bool:
        def same(rank: int) -> bool:
            return any(
                number == found and dataclasses.replace(other, line=step.line) == step for other, found in called.get(rank, ())
            )

        return all(same(rank) for rank in self.groups[step.group])

    def _dump(self, calls: list[tuple[Step, int]], finished: int) -> dict[str, Any]:
        config = {
            name: {"name": name, "desc": self.descriptions.get(name, f"group_{name}"), "ranks": str(list(ranks))}
            for name, ranks in self.groups.items()
        }
        entries = [self._entry(record, step, number, record < finished) for record, (step, number) in enumerate(calls)]
        return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}

    def _entry(self, record: int, step: Step, number: int, is_finished: bool) -> dict[str, Any]:
        created = BEGAN_NS + record * STEP_NS
        return {
            "record_id": record,
            "pg_id": int(step.group),
            "process_group": (step.group, self.descriptions.get(step.group, f"group_{step.group}")),
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "op_id": number,
            "profiling_name": f"nccl:{step.operation}",
            "time_created_ns": created,
            "input_sizes": [list(step.sizes)],
            "output_sizes": [list(step.sizes)],
            "input_dtypes": [step.dtype],
            "output_dtypes": [step.dtype],
            "state": "completed" if is_finished else "scheduled",
            "time_discovered_started_ns": created if is_finished else None,
            "time_discovered_completed_ns": created + 1 if is_finished else None,
            "retired": is_finished,
            "timeout_ms": 600_000,
            "is_p2p": False,
            "frames": [{"name": "train_step", "filename": "/code/train.py", "line": step.line}],
        }


def tensor_and_data_parallel(tensor: int, data: int, steps: int) -> Job:
    """Ranks of one tensor-parallel group are neighbours; a step is two reductions in it, one in its data-parallel group."""
    world = tensor * data
    groups = {"0": tuple(range(world))}
    tensor_groups = {str(1 + i): tuple(range(i * tensor, (i + 1) * tensor)) for i in range(data)}
    data_groups = {str(1 + data + i): tuple(range(i, world, tensor)) for i in range(tensor)}
    groups |= tensor_groups | data_groups
    programs = {}
    for rank in range(world):
        own, copies = str(1 + rank // tensor), str(1 + data + rank % tensor)
        forward = [Step(own, sizes=(64, 8), line=20), Step(own, "_all_gather_base", line=21)]
        programs[rank] = [*forward, Step(copies, dtype="BFloat16", line=30), Step("0", sizes=(1,), line=40)] * steps
    return Job(groups, programs)


def write(dumps: dict[int, dict[str, Any]], directory: Path, save: Callable[[Any], bytes] = pickle.dumps) -> list[str]:
    directory.mkdir(parents=True, exist_ok=True)
    paths = {rank: directory / f"nccl_trace_rank_{rank}" for rank in dumps}
    for rank, dump in dumps.items():
        paths[rank].write_bytes(save(dump))
    return [str(path) for path in paths.values()]


def changed(program: Sequence[Step], at: int, **values: Any) -> list[Step]:
    return [*program[:at], dataclasses.replace(program[at], **values), *program[at + 1 :]]
