"""The weights of a merge: the numbers of Megatron-LM's weighted_merge.py, the decay that they emulate, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_convert.commands.merge import weights
from lt_shared.console import UsageError

SCHEDULES = ("uniform", "linear", "minus-sqrt", "ema=0.9", "ema=0.5")


def test_numbers_of_megatron_lm() -> None:
    """As its `checkpoint_coefficients` returned them for 2 and 5 checkpoints."""
    assert weights.scheduled("linear", 5) == pytest.approx([0.2] * 5)
    assert weights.scheduled("minus-sqrt", 2) == pytest.approx([0.7071067811865476, 0.29289321881345237])
    expected = [0.44721359549995787, 0.185241936533718, 0.14214113720780752, 0.11983052175843245, 0.10557280900008414]
    assert weights.scheduled("minus-sqrt", 5) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
@given(count=st.integers(1, 200))
def test_weights_sum_to_one_and_none_is_negative(name: str, count: int) -> None:
    found = weights.scheduled(name, count)
    assert len(found) == count
    assert math.fsum(found) == pytest.approx(1)
    assert min(found) > 0


@pytest.mark.parametrize(
    ("name", "decay"), [("uniform", lambda x: 1 - x), ("linear", lambda x: 1 - x), ("minus-sqrt", lambda x: 1 - math.sqrt(x))]
)
@given(count=st.integers(2, 50))
def test_an_update_counts_as_much_as_the_schedule_says(name: str, decay: object, count: int) -> None:
    """The updates up to checkpoint i are in it and in all later ones."""
    found = weights.scheduled(name, count)
    for index in range(count):
        assert math.fsum(found[index:]) == pytest.approx(decay(index / count))  # type: ignore[operator]


def test_a_moving_average_step_by_step() -> None:
    values = [3.0, -1.0, 4.0, 1.5]
    average = values[0]
    for value in values[1:]:
        average = 0.9 * average + 0.1 * value
    found = weights.scheduled("ema=0.9", len(values))
    assert sum(weight * value for weight, value in zip(found, values, strict=True)) == pytest.approx(average)


@pytest.mark.parametrize(
    "name", ["cosine", "ema", "ema=", "ema=0", "ema=1", "ema=-0.5", "ema=nan", "ema=inf", "EMA=0.9", "", "="]
)
def test_unknown_schedules_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="unknown") as caught:
        weights.scheduled(name, 3)
    assert "uniform, linear, minus-sqrt, ema=DECAY" in (caught.value.hint or "")


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=9))
def test_given_weights_are_relative_to_their_sum(given_weights: list[float]) -> None:
    found = weights.normalized(given_weights)
    assert math.fsum(found) == pytest.approx(1)
    assert [one * math.fsum(given_weights) for one in found] == pytest.approx(given_weights)


@pytest.mark.parametrize(
    "given_weights", [[0.0, 0.0], [1.0, -1.0], [-1.0, -2.0], [math.nan, 1.0], [math.inf, 1.0], [1e308, 1e308]]
)
def test_weights_without_a_positive_sum_are_refused(given_weights: list[float]) -> None:
    with pytest.raises(UsageError, match="no positive sum"):
        weights.normalized(given_weights)
