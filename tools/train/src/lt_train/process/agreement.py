"""Exchange small values between all ranks, because ranks that decide differently would wait for each other forever.

Integers are reduced as tensors. Other values go through the key-value store as JSON: torch's object collectives unpickle bytes
from other ranks, or from whoever pretends to be a rank.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.distributed import distributed_c10d

from lt_train.process.device import CUDA
from lt_train.process.reading import Reading

# Numbers restart in each process group, because its processes may have exchanged different numbers of values before.
_questions: WeakKeyDictionary[Any, Iterator[int]] = WeakKeyDictionary()


def _next_question() -> int:
    return next(_questions.setdefault(torch.distributed.group.WORLD, itertools.count()))


def from_first_rank(value: Any) -> Any:
    """Return rank 0's `value`, converted through JSON, on every rank. All ranks call it, in the same order of calls."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return value
    store, key = distributed_c10d._get_default_store(), f"lt-train/answer/{_next_question()}"
    if torch.distributed.get_rank() == 0:
        store.set(key, json.dumps(value))
    return json.loads(store.get(key))


def gather_objects(value: Any) -> list[Any]:
    """Return the ranks' values, in rank order, on every rank. Rank 0 collects them, which spares the store."""
    ranks = torch.distributed.get_world_size()
    store, key = distributed_c10d._get_default_store(), f"lt-train/answers/{_next_question()}"
    store.set(f"{key}/{torch.distributed.get_rank()}", json.dumps(value))
    answers = None
    if torch.distributed.get_rank() == 0:
        answers = [json.loads(answer) for answer in store.multi_get([f"{key}/{rank}" for rank in range(ranks)])]
    all_values: list[Any] = from_first_rank(answers)
    return all_values


def gather_after_collective(value: Any, device: torch.device) -> list[Any]:
    """Run `gather_objects` after a collective, which fails if a rank has died; the store alone would wait for that rank."""
    reduce_maximum(0, device)
    return gather_objects(value)


def first_problem(problem: str | None, device: torch.device) -> str | None:
    """Return the problem of the first rank that has one. All ranks call it."""
    if not reduce_maximum(problem is not None, device):
        return None
    problem_of_ranks: str | None = next(filter(None, gather_objects(problem)), None)
    return problem_of_ranks


def reduce_maximum(value: int, device: torch.device) -> int:
    """Return the maximum of the ranks' values on all ranks. Every rank must call it, in the same order of collectives."""
    return start_maximum([value], device)()[0]


def start_maximum(values: Sequence[int], device: torch.device) -> Callable[[], list[int]]:
    """Start `reduce_maximum` of several values without waiting. The returned function waits for the results."""
    if torch.distributed.get_world_size() == 1:
        return lambda: list(values)
    local_values = torch.tensor(values, dtype=torch.int64, pin_memory=device.type == CUDA)
    shared = local_values.to(device, non_blocking=True)
    torch.distributed.all_reduce(shared, op=torch.distributed.ReduceOp.MAX)
    return Reading(shared).values
