"""The passes of each pipeline rank in their order, and their times: the share that a schedule's bubble and unequal stages leave.

A micro batch passes forward through all stages and backward through them again. The zero-bubble schedule ZB-H1 (Qi et al.,
arXiv 2401.10241) splits the backward pass: the gradients of the weights wait for a time in which a rank would have nothing else
to do. Ranks have as many micro batches between their passes as with 1F1B.

The order is a list, the same for the same sizes. So both schedules sum gradients in the same order, and the bubble can be
calculated before anything runs: `train.pipeline_schedule` executes these lists, `lt-train plan` and `lt-train bench` print the
remaining share. Communication takes no time in this model.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

from lt_train.config.settings.parallelism import ZERO_BUBBLE

FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"
# A long step repeats what its first micro batches do: so many for each pipeline rank show it.
SIMULATED_ROUNDS = 4
# How many stages on the one is whose output a pass takes.
_FROM = {FORWARD: -1, BACKWARD: 1}


class Pass(NamedTuple):
    """A pass of a micro batch through stage number `chunk` of a rank. BACKWARD includes the weights' gradients, without WEIGHTS.

    A tuple, because the search for a layout of a large cluster puts a million passes into dictionaries.
    """

    kind: str
    micro_batch: int
    chunk: int = 0


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of a stage for a micro batch, in any unit."""

    forward: float
    backward: float
    weights: float

    @property
    def whole(self) -> float:
        return self.forward + self.backward + self.weights


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The begin and the end of each pass: for each rank a dictionary by pass."""

    begins: tuple[dict[Pass, float], ...]
    ends: tuple[dict[Pass, float], ...]

    @property
    def length(self) -> float:
        return max(max(of_rank.values()) for of_rank in self.ends)


def order(schedule: str, rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> list[Pass]:
    """The passes of a pipeline rank. Several `chunks` are interleaved by 1F1B, as megatron-core does."""
    if chunks > 1:
        return _interleaved(rank, ranks, micro_batches, chunks)
    ahead = min(ranks - rank - 1, micro_batches)
    found = [Pass(FORWARD, number) for number in range(ahead)]
    done = 0
    for number in range(micro_batches):
        if ahead + number < micro_batches:
            found.append(Pass(FORWARD, ahead + number))
        found.append(Pass(BACKWARD, number))
        if schedule == ZERO_BUBBLE and number >= rank:
            found.append(Pass(WEIGHTS, done))
            done += 1
    if schedule == ZERO_BUBBLE:
        found += [Pass(WEIGHTS, number) for number in range(done, micro_batches)]
    return found


def _interleaved(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Pass]:
    """As many micro batches in turn through each chunk as there are ranks."""
    turns = [
        (chunk, first + number)
        for first in range(0, micro_batches, ranks)
        for chunk in range(chunks)
        for number in range(min(ranks, micro_batches - first))
    ]
    forward = [Pass(FORWARD, number, chunk) for chunk, number in turns]
    backward = [Pass(BACKWARD, number, chunks - 1 - chunk) for chunk, number in turns]
    ahead = min(2 * (ranks - rank - 1) + (chunks - 1) * ranks, len(turns))
    if micro_batches == ranks:
        ahead = len(turns)
    found = forward[:ahead]
    for position, each in enumerate(backward):
        found += [*forward[ahead + position : ahead + position + 1], each]
    return found


def timeline(orders: Sequence[Sequence[Pass]], work: Sequence[Work]) -> Timeline:
    """Compute the times of the passes in `orders` [ranks]; `work` [chunks x ranks] has the stages in the model's order."""
    ranks, stages = len(orders), len(work)
    splits = any(each.kind == WEIGHTS for of_rank in orders for each in of_rank)
    lengths = [
        {FORWARD: each.forward, BACKWARD: each.backward if splits else each.backward + each.weights, WEIGHTS: each.weights}
        for each in work
    ]
    begins: tuple[dict[Pass, float], ...] = tuple({} for _ in orders)
    ends: tuple[dict[Pass, float], ...] = tuple({} for _ in orders)
    positions, free = [0] * ranks, [0.0] * ranks
    while any(position < len(passes) for position, passes in zip(positions, orders, strict=True)):
        moved = False
        for rank, passes in enumerate(orders):
            now = free[rank]
            for position in range(positions[rank], len(passes)):
                current = passes[position]
                source = arrives_from(current, rank, ranks, stages)
                if source is not None:
                    arrival = ends[source[0]].get(source[1])
                    if arrival is None:
                        break
                    if arrival > now:
                        now = arrival
                begins[rank][current] = now
                now += lengths[current.chunk * ranks + rank][current.kind]
                ends[rank][current] = now
                positions[rank] = position + 1
                moved = True
            free[rank] = now
        assert moved, "a pass waits for one that comes behind it"
    return Timeline(begins, ends)


def arrives_from(current: Pass, rank: int, ranks: int, stages: int) -> tuple[int, Pass] | None:
    """Return the rank and the pass whose output `current` takes, or None if it needs no other stage."""
    if current.kind == WEIGHTS:
        return None
    stage = current.chunk * ranks + rank + _FROM[current.kind]
    if not 0 <= stage < stages:
        return None
    return stage % ranks, Pass(current.kind, current.micro_batch, stage // ranks)


@functools.lru_cache(maxsize=256)
def share_left(schedule: str, ranks: int, micro_batches: int, work: tuple[Work, ...]) -> float:
    """Return the mean share of time in which a rank computes, if the stages have `work`.

    The share is 1 without a bubble and with equal ranks. The remainder is the bubble and the wait for the rank with the most
    work.
    """
    if ranks == 1:
        return 1.0
    chunks = len(work) // ranks
    simulated = min(micro_batches, SIMULATED_ROUNDS * ranks)
    orders = _orders(schedule, ranks, simulated, chunks)
    of_ranks = [sum(each.whole for each in work[rank::ranks]) for rank in range(ranks)]
    length = timeline(orders, work).length + (micro_batches - simulated) * max(of_ranks)
    return micro_batches * sum(of_ranks) / (ranks * length)


@functools.lru_cache(maxsize=16)
def _orders(schedule: str, ranks: int, micro_batches: int, chunks: int) -> list[list[Pass]]:
    """Of all ranks, not to be changed: many divisions of layers among the same stages are looked at one after the other."""
    return [order(schedule, rank, ranks, micro_batches, chunks) for rank in range(ranks)]


def bubble_share(schedule: str, ranks: int, micro_batches: int, chunks: int = 1) -> float:
    """Return the share of a step in which a rank waits, if the stages are equal and every pass takes the same time."""
    equal = (Work(1.0, 1.0, 1.0),) * (ranks * chunks)
    return 1 - share_left(schedule, ranks, micro_batches, equal)
