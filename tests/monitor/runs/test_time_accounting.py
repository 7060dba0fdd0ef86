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


def plain(*lines: tuple[int, float | None, float | None], interval: int = 1, **more: object) -> AttemptTotals:
    """An attempt of step lines (step, seconds a step, time) and nothing else."""
    totals = AttemptTotals(**more)
    for step, seconds, time in lines:
        totals.take_step(step, seconds, time, interval)
    return totals


def test_an_attempt_without_events() -> None:
    """What a state file has of it, and that it counts for nothing."""
    assert dataclasses.asdict(AttemptTotals()) == {
        "begin": None, "end": None, "resumed_at": None, "is_guessed": False, "interval": None, "first_step": None,
        "last_step": None, "first_step_begin": None, "last_step_time": None, "first_seconds": 0.0, "first_steps": 0,
        "step_seconds": 0.0, "histogram": {}, "marks": [], "gaps": {}, "waiting": {}, "waited_until": None, "failed": False,
        "launched": None,
    }  # fmt: skip
    causes = {"queue", "start", "compile", "data", "checkpoint", "evaluation", "lost-work", "hang", "slow-steps", "stop"}
    for attempts in ([], [AttemptTotals()], [AttemptTotals(), AttemptTotals()]):
        result = account(attempts)
        assert result.lost_seconds == dict.fromkeys(causes, 0.0)
        assert (result.productive_seconds, result.lost_steps, result.goodput) == (0.0, 0, None)
        assert result.restarts == max(0, len(attempts) - 1)
        assert not result.has_times


def test_an_attempt_without_a_step_was_starting() -> None:
    one = AttemptTotals()
    one.note_time(50.0)
    one.note_time(10.0)
    one.note_time(None)
    assert account([one]).lost_seconds["start"] == 40
    untimed = plain((1, 1.0, None), resumed_at=0)
    untimed.note_time(10.0)
    untimed.note_time(50.0)
    assert account([untimed]).lost_seconds["start"] == 0


def test_the_first_line_and_those_after_it() -> None:
    one = AttemptTotals()
    one.take_step(10, None, 100.0, 5)
    assert (one.first_step, one.first_seconds, one.first_steps, one.first_step_begin, one.interval) == (10, 0.0, 5, 100.0, None)
    assert one.marks == [[5, 0.0, 0.0], [10, 0.0, 0.0]]
    one.failed = True
    one.take_step(30, 2.0, None, 5)
    assert (one.interval, one.step_seconds, one.failed, one.last_step_time) == (20, 40.0, False, None)
    one.take_step(35, 2.0, 200.0, 5)
    assert (one.interval, one.first_step, one.gaps) == (20, 10, {})


def test_goodput_is_the_productive_share() -> None:
    result = account([attempt([31.0] + [1.0] * 9)])
    assert result.goodput == pytest.approx(10 / 45)
    assert account([plain((1, 0.25, None), (2, 0.25, None), resumed_at=0)]).goodput == 1


def test_slow_is_more_than_half_above_the_median() -> None:
    assert attempt([1.0] * 20 + [2.0]).slow_seconds() == pytest.approx(1)
    assert attempt([1.0] * 20 + [1.5]).slow_seconds() == 0
    assert attempt([1.0] * 20 + [1.4]).slow_seconds() == 0


def test_the_median_of_an_even_number_is_the_lower_one() -> None:
    assert attempt([5.0, 1.0, 1.0, 9.0, 9.0]).median_seconds() == pytest.approx(1)
    assert attempt([5.0, 1e-6, 1e-6, 1e-6, 2e-6, 2e-6]).median_seconds() == pytest.approx(1e-6)


@pytest.mark.parametrize(("first", "resumed_at", "steps"), [(1, None, 10), (1, 4, 6), (10, 9, 1), (10, None, 10)])
def test_a_first_line_is_counted_anew(first: int, resumed_at: int | None, steps: int) -> None:
    """When a later line tells the interval, or a record the step from which it resumed."""
    one = plain((10, 2.0, 120.0), (20, 2.0, 140.0), interval=first)
    one.mark(15)
    one.resumed_at = resumed_at
    one.correct_first_line(10)
    assert one.first_steps == steps
    assert one.marks == [[10 - steps, 0.0, 0.0], [10, 2.0 * steps, 0.0], [15, 2.0 * steps + 10, 0.0]]
    assert one.step_seconds == 2.0 * steps + 20
    assert one.first_step_begin == 120 - 2.0 * steps


def test_a_first_line_without_a_time_is_counted_anew() -> None:
    one = plain((10, 2.0, None))
    one.correct_first_line(10)
    assert (one.first_steps, one.step_seconds, one.first_step_begin) == (10, 20.0, None)
    none = AttemptTotals()
    none.correct_first_line(10)
    assert none == AttemptTotals()


def test_marks_are_of_steps_that_are_known_and_in_order() -> None:
    none = AttemptTotals()
    none.mark(0)
    assert none.marks == []
    one = plain(*((step, 2.0, None) for step in range(1, 11)), resumed_at=0)
    for step in (11, 6, 6, 4, 1, 0, 8, 10):
        one.mark(step)
    assert one.marks == [[0, 0.0, 0.0], [1, 2.0, 0.0], [6, 12.0, 0.0], [8, 16.0, 0.0], [10, 20.0, 0.0]]


def test_the_last_marks_are_kept() -> None:
    one = plain(*((step, 1.0, None) for step in range(1, 101)), resumed_at=0)
    for step in range(2, 101):
        one.mark(step)
    assert [step for step, _, _ in one.marks] == [0, 1, *range(69, 101)]


def test_slow_steps_between_marks() -> None:
    """In proportion to the steps: five of the nine since the first line, then three of the six since the mark."""
    one = plain(*((step, 4.0 if step == 3 else 1.0, None) for step in range(1, 11)), resumed_at=0)
    one.mark(6)
    assert one.marks[2] == pytest.approx([6, 1 + 12 * 5 / 9, 3 * 5 / 9])
    one.take_step(11, 1.0, None, 1)
    one.take_step(12, 11.0, None, 1)
    one.mark(9)
    assert one.marks[3] == pytest.approx([9, (1 + 60 / 9 + 25) / 2, (15 / 9 + 13) / 2])


def test_a_mark_at_the_end_has_what_is_slow_by_then() -> None:
    """Steps that were slow beside the first ones are not beside the later ones."""
    one = plain(*((step, 3.0 if step == 5 else 1.0, None) for step in range(1, 6)), resumed_at=0)
    one.mark(5)
    assert one.marks[-1] == [5, 7.0, 2.0]
    for step in range(6, 26):
        one.take_step(step, 3.0, None, 1)
    one.mark(25)
    assert one.marks[-1] == [25, 67.0, 0.0]
    assert one.lost_seconds(5) == 60


def test_a_fast_machine_loses_less_than_a_second() -> None:
    assert attempt([0.1] * 10).lost_seconds(6) == pytest.approx(0.4)


def test_work_is_lost_only_where_there_was_some() -> None:
    one = attempt([31.0] + [1.0] * 9, first=11)
    assert [one.lost_steps(step) for step in (0, 10, 11, 19, 20, 21)] == [10, 10, 9, 1, 0, 0]
    assert [one.lost_seconds(step) for step in (0, 10, 11, 19, 20, 21)] == pytest.approx([10, 10, 9, 1, 0, 0])
    assert AttemptTotals().lost_steps(0) == 0
    assert AttemptTotals().lost_seconds(0) == 0


def test_the_earliest_of_the_later_attempts_tells_what_was_lost() -> None:
    attempts = [attempt([2.0] * 10), attempt([2.0] * 2, 100, 7), attempt([2.0] * 9, 200, 5), attempt([2.0], 300, 14)]
    result = account(attempts)
    assert result.lost_steps == 6 + 2
    assert result.lost_seconds["lost-work"] == pytest.approx(16)
    assert (result.restarts, result.has_times) == (3, True)
    assert account(attempts[1:]).restarts == 3


def test_a_queue_is_the_time_between_attempts() -> None:
    first, second, third = AttemptTotals(), AttemptTotals(), AttemptTotals()
    for one, begin, end in ((first, 0.0, 10.0), (second, 10.5, 40.0), (third, 30.0, 50.0)):
        one.note_time(begin)
        one.note_time(end)
    assert account([first, second, third]).lost_seconds["queue"] == 0.5
    assert account([AttemptTotals(), second]).lost_seconds["queue"] == 0
    assert account([AttemptTotals(), second]).has_times
    # Its lines have times, but none was noted.
    assert account([first, plain((1, 1.0, 90.0))]).lost_seconds["queue"] == 0


LINES = [(step, None, 2.0 * step) for step in range(10, 110, 10)]


@pytest.mark.parametrize(
    ("pause", "since", "step_seconds", "gaps"),
    [
        (None, 30.0, 30.0, {}),
        (None, 60.0, 60.0, {}),
        (None, 70.0, 20.0, {"data": 50.0}),
        (None, 100.0, 20.0, {"data": 80.0}),
        ("checkpoint", 30.0, 20.0, {"checkpoint": 10.0}),
        ("checkpoint", 10.0, 10.0, {}),
        (None, -5.0, 0.0, {}),
        (None, 0.5, 0.5, {}),
    ],
)
def test_times_of_lines_in_place_of_step_times(
    pause: str | None, since: float, step_seconds: float, gaps: dict[str, float]
) -> None:
    """Ten steps of 2 s a line; more than three times that is no training."""
    one = plain(*LINES, interval=10, resumed_at=0)
    before = one.step_seconds
    if pause is not None:
        one.take_pause(pause, None)
    one.take_step(110, None, 200 + since, 10)
    assert one.step_seconds - before == pytest.approx(step_seconds)
    assert one.gaps == pytest.approx(gaps)


@pytest.mark.parametrize(
    ("pauses", "gap", "gaps"),
    [
        ([], 0.5, {"data": 0.5}),
        ([], 300.0, {"data": 300.0}),
        ([], 300.5, {"hang": 300.5}),
        ([("checkpoint", None), ("evaluation", None)], 10.0, {"checkpoint": 5.0, "evaluation": 5.0}),
        ([("checkpoint", 0.5), ("evaluation", None)], 10.5, {"checkpoint": 0.5, "evaluation": 10.0}),
        ([("checkpoint", 6.0)], 10.0, {"checkpoint": 10.0}),
        ([("checkpoint", 2.0), ("checkpoint", 4.0), ("evaluation", 2.0)], 10.0, {"checkpoint": 7.0, "evaluation": 3.0}),
        ([("checkpoint", 15.0), ("evaluation", 5.0)], 10.0, {"checkpoint": 7.5, "evaluation": 2.5}),
        ([("checkpoint", 10.0), ("evaluation", None)], 10.0, {"checkpoint": 10.0}),
        ([("checkpoint", None)], 0.0, {}),
    ],
)
def test_what_happened_between_two_lines(pauses: list[tuple[str, float | None]], gap: float, gaps: dict[str, float]) -> None:
    one = plain(*((step, 1.0, float(step)) for step in range(1, 6)), resumed_at=0)
    for cause, seconds in pauses:
        one.take_pause(cause, seconds)
    one.take_step(6, 1.0, 6.0 + gap, 1)
    assert one.gaps == pytest.approx(gaps)
    one.take_step(7, 1.0, 11.0 + gap, 1)
    assert one.gaps == pytest.approx(gaps | {"data": gaps.get("data", 0.0) + 4.0})
    assert account([one]).lost_seconds["evaluation"] == pytest.approx(gaps.get("evaluation", 0.0))


def test_a_hang_of_slow_trainers_is_over_ten_steps() -> None:
    one = plain(*((step, 60.0, 60.0 * step) for step in range(1, 6)), resumed_at=0)
    one.take_step(6, 60.0, 360.0 + 600, 1)
    assert one.gaps == {"data": 600.0}
    one.take_step(7, 60.0, 1020.0 + 601, 1)
    assert one.gaps == {"data": 600.0, "hang": 601.0}
    without_a_median = plain((1, 5.0, 100.0), (2, 0.0, 501.0), resumed_at=0)
    assert without_a_median.gaps == {"hang": 401.0}


@pytest.mark.parametrize(
    ("pauses", "failed", "expected"),
    [
        ([("checkpoint", None, 3.0)], False, {"stop": 10.0}),
        ([("checkpoint", None, 9.0)], False, {"checkpoint": 4.0, "stop": 6.0}),
        ([("checkpoint", None, 90.0)], False, {"checkpoint": 10.0}),
        ([("checkpoint", 4.0, None)], False, {"checkpoint": 4.0, "stop": 6.0}),
        ([("checkpoint", 4.0, None)], True, {"checkpoint": 4.0, "hang": 6.0}),
        ([("checkpoint", 40.0, None)], False, {"checkpoint": 10.0}),
        ([("checkpoint", 3.0, None), ("evaluation", 1.0, None)], False, {"checkpoint": 3.0, "evaluation": 1.0, "stop": 6.0}),
        ([("checkpoint", None, None)], False, {"checkpoint": 10.0}),
        ([("checkpoint", None, None), ("evaluation", None, None)], False, {"checkpoint": 5.0, "evaluation": 5.0}),
        ([("evaluation", None, None)], False, {"stop": 10.0}),
        ([("evaluation", None, None)], True, {"hang": 10.0}),
        ([("evaluation", None, 9.0), ("evaluation", None, None)], True, {"evaluation": 4.0, "hang": 6.0}),
    ],
)
def test_what_happened_after_the_last_line(
    pauses: list[tuple[str, float | None, float | None]], failed: bool, expected: dict[str, float]
) -> None:
    """The last step was at 5 s, the last line at 15 s."""
    one = plain(*((step, 1.0, float(step)) for step in range(1, 6)), resumed_at=0)
    one.note_time(0.0)
    for cause, seconds, until in pauses:
        one.take_pause(cause, seconds, until)
    one.note_time(15.0)
    one.failed = failed
    lost = account([one]).lost_seconds
    assert {cause: seconds for cause, seconds in lost.items() if seconds} == pytest.approx(expected)
