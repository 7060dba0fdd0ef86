"""The order of the passes on each pipeline rank, a simulation of their times, and the share of time lost to the bubble.

A micro batch passes forward through all stages and backward through them again. The zero-bubble schedule ZB-H1 (Qi et al.,
arXiv 2401.10241) splits the backward pass: a rank computes weight gradients when it would otherwise wait. Ranks have as many
micro batches in flight as with 1F1B.

The order is a fixed list for given sizes. So both schedules sum gradients in the same order, and the bubble can be calculated
before anything runs: `train.pipeline_schedule` executes these lists, `lt-train plan` and `lt-train bench` print the share of time
without the bubble. The simulation counts no time for communication.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

from lt_train.config.settings.parallelism import ZERO_BUBBLE

FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"
# Later micro batches repeat the pattern of the first ones, so only this many per pipeline rank are simulated.
SIMULATED_ROUNDS = 4
# A pass takes the output of the stage at this distance.
_SOURCE_DISTANCE = {FORWARD: -1, BACKWARD: 1}


class Pass(NamedTuple):
    """A pass of a micro batch through stage number `chunk` of a rank.

    In a schedule without WEIGHTS, BACKWARD includes the weight gradients. The class is a tuple, because the search for a layout
    of a large cluster puts a million passes into dictionaries.
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
    """The begin and the end of every pass: a dictionary by pass for each rank."""

    begins: tuple[dict[Pass, float], ...]
    ends: tuple[dict[Pass, float], ...]

    @property
    def length(self) -> float:
        return max(max(rank_ends.values()) for rank_ends in self.ends)


def order(schedule: str, rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> list[Pass]:
    """Return the passes of a pipeline rank in their order. Several `chunks` are interleaved by 1F1B, as megatron-core does."""
    if chunks > 1:
        return _interleaved_order(rank, ranks, micro_batches, chunks)
    ahead = min(ranks - rank - 1, micro_batches)
    passes = [Pass(FORWARD, number) for number in range(ahead)]
    weight_passes = 0
    for number in range(micro_batches):
        if ahead + number < micro_batches:
            passes.append(Pass(FORWARD, ahead + number))
        passes.append(Pass(BACKWARD, number))
        if schedule == ZERO_BUBBLE and number >= rank:
            passes.append(Pass(WEIGHTS, weight_passes))
            weight_passes += 1
    if schedule == ZERO_BUBBLE:
        passes += [Pass(WEIGHTS, number) for number in range(weight_passes, micro_batches)]
    return passes


def _interleaved_order(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Pass]:
    """Return the order of interleaved 1F1B: groups of `ranks` micro batches pass through one chunk after another."""
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
    passes = forward[:ahead]
    for position, backward_pass in enumerate(backward):
        passes += [*forward[ahead + position : ahead + position + 1], backward_pass]
    return passes


def timeline(orders: Sequence[Sequence[Pass]], work: Sequence[Work]) -> Timeline:
    """Compute the times of the passes in `orders` [ranks]; `work` [chunks x ranks] has the stages in the model's order."""
    ranks, stages = len(orders), len(work)
    splits = any(step.kind == WEIGHTS for rank_order in orders for step in rank_order)
    lengths = [
        {FORWARD: stage.forward, BACKWARD: stage.backward + (0 if splits else stage.weights), WEIGHTS: stage.weights}
        for stage in work
    ]
    begins: tuple[dict[Pass, float], ...] = tuple({} for _ in orders)
    ends: tuple[dict[Pass, float], ...] = tuple({} for _ in orders)
    positions, free = [0] * ranks, [0.0] * ranks
    while any(position < len(passes) for position, passes in zip(positions, orders, strict=True)):
        moved = False
        for rank, passes in enumerate(orders):
            time = free[rank]
            for position in range(positions[rank], len(passes)):
                current_pass = passes[position]
                source = arrives_from(current_pass, rank, ranks, stages)
                if source is not None:
                    arrival = ends[source[0]].get(source[1])
                    if arrival is None:
                        break
                    if arrival > time:
                        time = arrival
                begins[rank][current_pass] = time
                time += lengths[current_pass.chunk * ranks + rank][current_pass.kind]
                ends[rank][current_pass] = time
                positions[rank] = position + 1
                moved = True
            free[rank] = time
        assert moved, "a pass waits for one that comes behind it"
    return Timeline(begins, ends)


def arrives_from(current: Pass, rank: int, ranks: int, stages: int) -> tuple[int, Pass] | None:
    """Return the rank and the pass whose output `current` takes, or None if it takes no other stage's output."""
    if current.kind == WEIGHTS:
        return None
    stage = current.chunk * ranks + rank + _SOURCE_DISTANCE[current.kind]
    if not 0 <= stage < stages:
        return None
    return stage % ranks, Pass(current.kind, current.micro_batch, stage // ranks)


@functools.lru_cache(maxsize=256)
def share_left(schedule: str, ranks: int, micro_batches: int, work: tuple[Work, ...]) -> float:
    """Return the mean share of a step that a rank spends computing; `work` has the stages in the model's order.

    The share is 1 without a bubble and with equal ranks. Time is lost to the bubble and to waiting for the rank with most work.
    """
    if ranks == 1:
        return 1.0
    chunks = len(work) // ranks
    simulated = min(micro_batches, SIMULATED_ROUNDS * ranks)
    orders = _orders(schedule, ranks, simulated, chunks)
    rank_work = [sum(stage.whole for stage in work[rank::ranks]) for rank in range(ranks)]
    length = timeline(orders, work).length + (micro_batches - simulated) * max(rank_work)
    return micro_batches * sum(rank_work) / (ranks * length)


@functools.lru_cache(maxsize=16)
def _orders(schedule: str, ranks: int, micro_batches: int, chunks: int) -> list[list[Pass]]:
    """Return the order of every rank. Callers must not change the cached lists.

    The cache pays because a search tries many divisions of the layers among the same stages, one after the other.
    """
    return [order(schedule, rank, ranks, micro_batches, chunks) for rank in range(ranks)]


def bubble_share(schedule: str, ranks: int, micro_batches: int, chunks: int = 1) -> float:
    """Return the share of a step that a rank spends waiting, if the stages are equal and every pass takes the same time."""
    equal = (Work(1.0, 1.0, 1.0),) * (ranks * chunks)
    return 1 - share_left(schedule, ranks, micro_batches, equal)
