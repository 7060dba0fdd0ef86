"""Sizes of a run's steps, with a ramp-up or a schedule and phases of their own sizes, against counting step by step."""

import dataclasses
import itertools
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from lt_shared.data.sample_order.batch_sizes import BatchSizes, PhaseSize, RampUp, ScheduledSize
from lt_shared.data.sample_order.phases import Phase
from lt_shared.data.sample_order.run_order import AttemptOrder

RAMPS = st.none() | st.builds(RampUp, st.just(2), st.just(2), st.integers(5, 60))
SIZES = st.sampled_from([1, 2, 5, 12])
SCHEDULES = st.dictionaries(st.integers(1, 90), SIZES, max_size=4).flatmap(
    lambda later: st.builds(lambda first: tuple(itertools.starmap(ScheduledSize, sorted({**later, 0: first}.items()))), SIZES)
)
PHASES = st.lists(st.tuples(st.integers(1, 7), st.sampled_from([None, 2, 6, 10])), max_size=4)
STEPS = 40


def counted(plain: BatchSizes, phases: list[tuple[int, int | None]]) -> tuple[BatchSizes, list[int]]:
    """The sizes of a run whose phases have so many steps, and the samples after 0, 1, 2 ... of its steps."""
    made, consumed = [], [0]
    for steps, own in phases:
        made.append(PhaseSize(consumed[-1], own))
        for _ in range(steps):
            consumed.append(consumed[-1] + (own or plain.size_at(consumed[-1])))
    last = made[-1].size if made else None
    while len(consumed) <= STEPS + 1:
        consumed.append(consumed[-1] + (last or plain.size_at(consumed[-1])))
    return dataclasses.replace(plain, phases=tuple(made)), consumed


@settings(max_examples=100, deadline=None)
@given(
    st.builds(BatchSizes, st.sampled_from([4, 8, 12]), RAMPS) | st.builds(BatchSizes, st.just(12), schedule=SCHEDULES),
    PHASES,
    st.integers(0, STEPS),
    st.integers(0, STEPS),
)
def test_steps_and_samples(plain: BatchSizes, phases: list[tuple[int, int | None]], one: int, other: int) -> None:
    sizes, consumed = counted(plain, phases)
    first, last = sorted((one, other))
    assert sizes.size_at(consumed[first]) == consumed[first + 1] - consumed[first]
    assert sizes.size_at(consumed[first]) in sizes.all
    assert sizes.samples_after(first) == consumed[first]
    assert sizes.steps_within(consumed[first]) == sizes.steps_within(consumed[first + 1] - 1) == first
    assert sizes.samples_between(consumed[first], last - first) == consumed[last] - consumed[first]
    assert sizes.steps_between(consumed[first], consumed[last]) == last - first
    assert sizes.steps_between(consumed[first], consumed[last + 1] - 1) == last - first


def test_the_steps_of_an_attempt_in_phases() -> None:
    """12 samples in three steps, 20 in two, 8 in two; the attempt goes on after step 2."""
    phases = (Phase(12, 16, (1.0,)), Phase(20, 16, (1.0,), 10), Phase(8, 32, (1.0,)))
    attempt = AttemptOrder(2, 8, 40, 1, 16, 4, 7, (), phases=phases)
    assert [attempt.samples_of(step, step) for step in range(3, 8)] == [
        range(8, 12),
        range(12, 22),
        range(22, 32),
        range(32, 36),
        range(36, 40),
    ]
    assert [attempt.step_of(sample) for sample in (8, 11, 12, 21, 22, 31, 32, 39)] == [3, 3, 4, 4, 5, 5, 6, 7]
    assert AttemptOrder.from_record(attempt.to_record()) == attempt


def test_the_steps_of_an_attempt_with_a_schedule() -> None:
    """Steps of 4 samples, of 10 from sample 10 on; the attempt goes on after step 2."""
    attempt = AttemptOrder(2, 8, 40, 1, 16, 10, 7, (), batch_size_schedule=((0, 4), (10, 10)))
    assert [attempt.samples_of(step, step) for step in (3, 4, 5)] == [range(8, 12), range(12, 22), range(22, 32)]
    assert [attempt.step_of(sample) for sample in (8, 11, 12, 31)] == [3, 3, 4, 5]
    record = json.loads(json.dumps(attempt.to_record()))
    assert AttemptOrder.from_record(record) == attempt
    # A record of an earlier version.
    del record["batch_size_schedule"]
    assert AttemptOrder.from_record(record) == dataclasses.replace(attempt, batch_size_schedule=())
