"""The bubbles of pipeline schedules, beside the formulas of their papers and a calculation by hand."""

import pytest

from lt_train.planner.pipeline_passes import BACKWARD, FORWARD, WEIGHTS, Pass, Work, bubble_share, order, share_left, timeline

ONE_F_ONE_B, ZERO_BUBBLE = "1f1b", "zero-bubble"
SIZES = [(2, 16), (4, 16), (4, 4), (8, 32), (3, 50)]


@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
def test_bubbles_are_those_of_the_papers(ranks: int, micro_batches: int) -> None:
    """1F1B: (p - 1) / (m + p - 1). ZB-H1 waits for the forward and input gradient less the weights' gradient: a third of it."""
    assert bubble_share(ONE_F_ONE_B, ranks, micro_batches) == pytest.approx((ranks - 1) / (micro_batches + ranks - 1))
    third = (ranks - 1) / 3
    assert bubble_share(ZERO_BUBBLE, ranks, micro_batches) == pytest.approx(third / (micro_batches + third))


@pytest.mark.parametrize(("ranks", "micro_batches", "chunks"), [(2, 16, 2), (4, 16, 2), (4, 8, 3), (2, 2, 2)])
def test_interleaved_stages_divide_the_bubble(ranks: int, micro_batches: int, chunks: int) -> None:
    bubble = (ranks - 1) / chunks
    assert bubble_share(ONE_F_ONE_B, ranks, micro_batches, chunks) == pytest.approx(bubble / (micro_batches + bubble))


@pytest.mark.parametrize("schedule", [ONE_F_ONE_B, ZERO_BUBBLE])
@pytest.mark.parametrize(("ranks", "micro_batches"), [*SIZES, (4, 2), (4, 1)])
def test_all_passes_run_once_and_no_rank_keeps_more_than_with_1f1b(schedule: str, ranks: int, micro_batches: int) -> None:
    kinds = {FORWARD, BACKWARD} | ({WEIGHTS} if schedule == ZERO_BUBBLE else set())
    for rank in range(ranks):
        passes = order(schedule, rank, ranks, micro_batches)
        assert sorted(passes, key=str) == sorted((Pass(kind, n) for kind in kinds for n in range(micro_batches)), key=str)
        kept = waiting = 0
        for each in passes:
            kept += {FORWARD: 1, BACKWARD: -1, WEIGHTS: 0}[each.kind]
            waiting += {FORWARD: 0, BACKWARD: 1, WEIGHTS: -1}[each.kind] if WEIGHTS in kinds else 0
            assert kept <= ranks - rank
            assert kept + waiting <= ranks


def test_a_timeline_by_hand() -> None:
    """Two ranks, two micro batches; the second stage computes twice as long."""
    orders = [order(ONE_F_ONE_B, rank, 2, 2) for rank in range(2)]
    found = timeline(orders, (Work(1, 1, 1), Work(2, 2, 2)))
    assert found.begins[0] == {Pass(FORWARD, 0): 0, Pass(FORWARD, 1): 1, Pass(BACKWARD, 0): 7, Pass(BACKWARD, 1): 13}
    assert found.begins[1] == {Pass(FORWARD, 0): 1, Pass(BACKWARD, 0): 3, Pass(FORWARD, 1): 7, Pass(BACKWARD, 1): 9}
    assert found.length == 15
    assert share_left(ONE_F_ONE_B, 2, 2, (Work(1, 1, 1), Work(2, 2, 2))) == pytest.approx(18 / 2 / 15)


def test_a_long_step_goes_on_as_it_began() -> None:
    """So many micro batches are not simulated one by one."""
    work = (Work(1, 1, 1), Work(1, 2, 1), Work(1, 1, 1), Work(2, 2, 2))
    whole = timeline([order(ONE_F_ONE_B, rank, 4, 300) for rank in range(4)], work).length
    assert share_left(ONE_F_ONE_B, 4, 300, work) == pytest.approx(300 * 16 / 4 / whole)
