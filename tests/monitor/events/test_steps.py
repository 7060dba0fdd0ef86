"""Steps as columns keep what the records said."""

import datetime
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.events.steps import MAXIMUM_COLUMNS, Steps, epoch_seconds


def record(step: int, **fields: object) -> dict:
    return {"v": 1, "kind": "step", "run": "a", "step": step, **fields, "src": {"file": "a", "offset": 0}}


def test_absent_and_infinite_values_can_be_told_apart() -> None:
    steps = Steps.from_records([record(1, loss=2.0), record(2), record(3, loss=None), record(4, metrics={"mtp_1 loss": 7.5})])
    assert steps.numbers.tolist() == [1, 2, 3, 4]
    loss = steps.column("loss")
    assert (loss[0], math.isnan(loss[1]), loss[2], math.isnan(loss[3])) == (2.0, True, math.inf, True)
    assert steps.column("mtp_1 loss")[3] == 7.5
    assert np.isnan(steps.column("grad_norm")).all()
    assert [array.tolist() for array in steps.finite("loss")] == [[1], [2.0]]
    assert steps.last("loss") == 2.0
    assert steps.last("grad_norm") is None


values = st.one_of(st.none(), st.floats(-1e9, 1e9))
records = st.lists(st.tuples(st.integers(0, 9), st.dictionaries(st.sampled_from(["loss", "mfu"]), values)), max_size=30)


@given(records, st.integers(0, 30))
def test_joining_takes_the_last_value_of_each_field(entries: list[tuple[int, dict]], cut: int) -> None:
    expected: dict[int, dict] = {}
    for step, fields in entries:
        expected.setdefault(step, {}).update(fields)
    made = [record(step, **fields) for step, fields in entries]
    steps = Steps.join([Steps.from_records(made[:cut]), Steps.from_records(made[cut:])])
    assert steps.numbers.tolist() == sorted(expected)
    for index, step in enumerate(sorted(expected)):
        for field in ("loss", "mfu"):
            value = steps.column(field)[index]
            if field in expected[step]:
                assert value == (math.inf if expected[step][field] is None else expected[step][field])
            else:
                assert math.isnan(value)


@given(st.datetimes(datetime.datetime(1990, 1, 1), datetime.datetime(2060, 1, 1)), st.sampled_from("T "))
def test_times_without_a_zone_are_local(moment: datetime.datetime, separator: str) -> None:
    for text in (moment.isoformat(separator), moment.isoformat(separator, "seconds")):
        assert epoch_seconds(text) == pytest.approx(datetime.datetime.fromisoformat(text).timestamp(), abs=1e-5)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1970-01-01T00:01:00Z", 60.0), ("1970-01-01T01:00:00.5+01:00", 0.5), ("yesterday", None), (5, None), ("9" * 19, None)],
)
def test_times_with_a_zone_and_what_is_no_time(text: object, seconds: float | None) -> None:
    assert epoch_seconds(text) == seconds if seconds is not None else math.isnan(epoch_seconds(text))


def test_names_without_end_do_not_fill_the_memory() -> None:
    """A log with another field in each line would have a column of each."""
    records = [{"step": step, "loss": 2.5, "metrics": {f"metric {step}": 1.0}} for step in range(1, 5001)]
    whole = Steps.from_records(records)
    joined = Steps.join([Steps.from_records(records[begin : begin + 100]) for begin in range(0, 5000, 100)])
    for steps in (whole, joined):
        assert len(steps) == 5000
        assert len(steps.columns) <= MAXIMUM_COLUMNS
        assert steps.column("loss").tolist() == [2.5] * 5000
