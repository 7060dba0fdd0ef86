"""Where the seconds of an attempt went."""

import dataclasses
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.runs.time_accounting import AttemptTotals, account


def attempt(durations: list[float], begin: float = 0.0, first: int = 1, **more: object) -> AttemptTotals:
    """An attempt with a step line a step, which begins 5 s after the attempt."""
    totals = AttemptTotals(resumed_at=first - 1, **more)
    totals.note_time(begin)
    time = begin + 5
    for index, seconds in enumerate(durations):
        time += seconds
        totals.note_time(time)
        totals.take_step(first + index, seconds, time, 1)
    return totals


@given(st.lists(st.floats(0.001, 1000), min_size=3, max_size=60))
def test_the_median_is_within_one_bin(durations: list[float]) -> None:
    totals = attempt(durations)
    low, high = statistics.median_low(durations[1:]), statistics.median_high(durations[1:])
    assert low / 1.021 <= totals.median_seconds() <= high * 1.021


DURATIONS = st.lists(st.floats(0.1, 50), min_size=1, max_size=20)


@given(st.lists(st.tuples(DURATIONS, st.floats(0, 500), st.booleans()), min_size=1, max_size=4))
def test_every_second_is_in_one_place(attempts: list[tuple[list[float], float, bool]]) -> None:
    made, clock, first = [], 0.0, 1
    for durations, tail, failed in attempts:
        one = attempt(durations, clock, first)
        clock += 5 + sum(durations) + tail
        one.note_time(clock)
        one.failed = failed
        made.append(one)
        first = max(1, first + len(durations) - 3)
        clock += 7
    result = account(made)
    assert result.allocated_seconds + result.lost_seconds["queue"] == pytest.approx(clock - 7)
    assert all(seconds >= 0 for seconds in result.lost_seconds.values())
    assert result.restarts == len(attempts) - 1


def test_compilation_is_what_the_first_line_took_above_the_median() -> None:
    result = account([attempt([31.0] + [1.0] * 9)])
    assert result.lost_seconds["compile"] == pytest.approx(30)
    assert result.productive_seconds == pytest.approx(10)
    assert result.lost_seconds["start"] == pytest.approx(5)


def test_slow_steps_count_above_the_median() -> None:
    result = account([attempt([1.0] * 20 + [11.0] + [1.2] * 2)])
    assert result.lost_seconds["slow-steps"] == pytest.approx(10)


def test_work_that_is_done_again_is_lost() -> None:
    first = attempt([2.0] * 10)
    first.mark(6)
    second = attempt([2.0] * 10, begin=100, first=7)
    result = account([first, second])
    assert result.lost_steps == 4
    assert result.lost_seconds["lost-work"] == pytest.approx(8)
    assert result.lost_seconds["queue"] == pytest.approx(75)


def test_marks_between_uneven_steps_are_exact() -> None:
    first = AttemptTotals(resumed_at=0)
    for step, seconds in ((1, 1.0), (2, 1.0), (3, 5.0), (4, 5.0)):
        first.take_step(step, seconds, None, 1)
        if step == 2:
            first.mark(2)
    assert first.lost_seconds(2) == pytest.approx(10)


def test_compilation_before_the_checkpoint_does_not_make_lost_work_cheaper() -> None:
    first = attempt([605.0] + [5.0] * 109)
    first.mark(100)
    result = account([first, attempt([5.0] * 10, begin=2000, first=101)])
    assert result.lost_seconds["lost-work"] == pytest.approx(50)
    assert result.lost_seconds["compile"] == pytest.approx(600)
    assert result.productive_seconds == pytest.approx(550)


def test_without_a_mark_compilation_still_stays_in_the_first_line() -> None:
    first = attempt([605.0] + [5.0] * 19)
    assert first.lost_seconds(15) == pytest.approx(25)
    assert first.lost_seconds(0) == pytest.approx(100)
    every_ten = AttemptTotals(resumed_at=0)
    for step, seconds in ((10, 65.0), (20, 5.0), (30, 5.0)):
        every_ten.take_step(step, seconds, None, 10)
    assert every_ten.lost_seconds(5) == pytest.approx(125)


def test_slow_steps_are_taken_from_lost_work_only_where_they_lie() -> None:
    before = attempt([1.0] * 10 + [101.0] + [1.0] * 9)
    before.mark(15)
    assert before.lost_seconds(15) == pytest.approx(5)
    after = attempt([1.0] * 17 + [101.0] + [1.0] * 2)
    after.mark(15)
    assert after.lost_seconds(15) == pytest.approx(5)


def test_a_checkpoint_that_was_complete_before_the_crash_is_no_hang() -> None:
    one = attempt([1.0] * 5)
    one.take_pause("checkpoint", None, until=40.0)
    one.note_time(70.0)
    one.failed = True
    lost = account([one]).lost_seconds
    assert (lost["checkpoint"], lost["hang"]) == pytest.approx((30, 30))
    other = dataclasses.replace(one, failed=False)
    assert account([other]).lost_seconds["stop"] == pytest.approx(30)


def test_a_checkpoint_that_never_became_complete_is_where_it_hung() -> None:
    one = attempt([1.0] * 5)
    one.take_pause("checkpoint", None)
    one.note_time(70.0)
    one.failed = True
    assert account([one]).lost_seconds["hang"] == pytest.approx(60)


def test_a_first_step_without_anything_timed_before_it_is_counted_once() -> None:
    first = attempt([2.0] * 10)
    second = AttemptTotals(resumed_at=10)
    for step, time in ((20, 220.0), (30, 240.0)):
        second.note_time(time)
        second.take_step(step, 2.0, time, 10)
    result = account([first, second])
    assert result.lost_seconds["queue"] == pytest.approx(175)
    assert result.allocated_seconds + result.lost_seconds["queue"] == pytest.approx(240)


def test_a_pause_goes_to_what_happened_in_it() -> None:
    totals = attempt([1.0] * 5)
    totals.take_pause("checkpoint", None)
    totals.take_step(6, 1.0, totals.last_step_time + 21, 1)
    totals.take_step(7, 1.0, totals.last_step_time + 4, 1)
    totals.take_step(8, 1.0, totals.last_step_time + 901, 1)
    totals.take_pause("checkpoint", 6.0)
    totals.take_pause("evaluation", None)
    totals.take_step(9, 1.0, totals.last_step_time + 11, 1)
    assert totals.gaps == pytest.approx({"checkpoint": 26, "data": 3, "hang": 900, "evaluation": 4})


def test_slow_trainers_may_pause_longer_before_it_is_a_hang() -> None:
    totals = attempt([60.0] * 5)
    totals.take_step(6, 60.0, totals.last_step_time + 60 + 400, 1)
    totals.take_step(7, 60.0, totals.last_step_time + 60 + 700, 1)
    assert totals.gaps == pytest.approx({"data": 400, "hang": 700}, rel=0.03)


def test_an_attempt_that_failed_hung_to_its_end() -> None:
    one = attempt([1.0] * 5)
    one.note_time(610.0)
    one.failed = True
    other = dataclasses.replace(one, failed=False)
    assert account([one]).lost_seconds["hang"] == pytest.approx(600)
    assert account([other]).lost_seconds["stop"] == pytest.approx(600)


def test_without_step_times_the_times_of_the_lines_tell() -> None:
    totals = AttemptTotals(resumed_at=0)
    for step in range(10, 110, 10):
        totals.take_step(step, None, step * 2.0, 10)
    totals.take_pause("checkpoint", None)
    totals.take_step(110, None, 240.0, 10)
    assert totals.median_seconds() == pytest.approx(2)
    assert totals.gaps == pytest.approx({"checkpoint": 20})


def test_without_any_times_there_is_nothing_to_divide() -> None:
    totals = AttemptTotals()
    totals.take_step(1, None, None, 1)
    assert account([totals]).goodput is None
    assert not account([totals]).has_times


def test_totals_stay_small() -> None:
    totals = attempt([1 + (index * 7919 % 100) / 1000 for index in range(20_000)])
    for step in range(0, 20_000, 10):
        totals.mark(step)
    assert len(totals.histogram) < 10
    assert len(totals.marks) <= 34
