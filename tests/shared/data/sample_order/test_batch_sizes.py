"""Sizes of a run's steps, with a ramp-up and phases of their own sizes, against counting step by step."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lt_shared.data.sample_order.batch_sizes import BatchSizes, PhaseSize, RampUp
from lt_shared.data.sample_order.phases import Phase
from lt_shared.data.sample_order.run_order import AttemptOrder

RAMPS = st.none() | st.builds(RampUp, st.just(2), st.just(2), st.integers(5, 60))
PHASES = st.lists(st.tuples(st.integers(1, 7), st.sampled_from([None, 2, 6, 10])), max_size=4)
STEPS = 40


def counted(size: int, ramp: RampUp | None, phases: list[tuple[int, int | None]]) -> tuple[BatchSizes, list[int]]:
    """The sizes of a run whose phases have so many steps, and the samples after 0, 1, 2 ... of its steps."""
    plain, made, consumed = BatchSizes(size, ramp), [], [0]
    for steps, own in phases:
        made.append(PhaseSize(consumed[-1], own))
        for _ in range(steps):
            consumed.append(consumed[-1] + (own or plain.size_at(consumed[-1])))
    last = made[-1].size if made else None
    while len(consumed) <= STEPS + 1:
        consumed.append(consumed[-1] + (last or plain.size_at(consumed[-1])))
    return BatchSizes(size, ramp, tuple(made)), consumed


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([4, 8, 12]), RAMPS, PHASES, st.integers(0, STEPS), st.integers(0, STEPS))
def test_steps_and_samples(size: int, ramp: RampUp | None, phases: list[tuple[int, int | None]], one: int, other: int) -> None:
    sizes, consumed = counted(size, ramp, phases)
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
