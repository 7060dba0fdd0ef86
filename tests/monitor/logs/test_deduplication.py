"""What several processes say is one event, and what one says again after a restart is another one."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.logs.deduplication import Deduplicator


def step(number: int, task: int | None = None, loss: float | None = 2.5, **fields: Any) -> dict:
    record = {"v": 1, "kind": "step", "run": "a", "step": number, "loss": loss, **fields, "src": {"file": "a", "offset": 0}}
    return record if task is None else {**record, "task": task}


START = {"v": 1, "kind": "start", "run": "a", "arguments": {}, "src": {"file": "a", "offset": 0}}


def kept(records: list[dict]) -> list[tuple[int, int | None]]:
    return [(record["step"], record.get("task")) for record in Deduplicator().new_records(records) if record["kind"] == "step"]


def test_ranks_that_tell_the_same_step_are_one_event() -> None:
    told = [(1, 0), (1, 1), (2, 1), (3, 1), (2, 0), (3, 0), (3, 2), (2, 2)]
    assert kept([step(*one) for one in told]) == [(1, 0), (2, 1), (3, 1)]


def test_steps_that_are_done_again_are_events_again() -> None:
    told = [(number, task) for number in (1, 2, 3) for task in (0, 1)] + [
        (number, task) for number in (2, 3, 4) for task in (1, 0)
    ]
    assert [number for number, _ in kept([step(*one) for one in told])] == [1, 2, 3, 2, 3, 4]


def test_a_bar_that_is_drawn_again_is_one_event() -> None:
    assert kept([step(1), step(1), step(2), step(2, loss=2.0), step(1)]) == [(1, None), (2, None), (2, None), (1, None)]
    assert kept([step(5, loss=None), START, step(5, loss=None), step(5, loss=None)]) == [(5, None), (5, None)]


def test_a_line_without_a_loss_does_not_hide_the_one_of_another_rank() -> None:
    told = [step(5, 0, loss=None), step(5, 1, loss=None), step(5, 7), step(5, 6)]
    assert kept(told) == [(5, 0), (5, 7)]


def test_checkpoints_of_several_ranks_are_one_event() -> None:
    saved = {"v": 1, "kind": "checkpoint", "run": "a", "step": 5, "path": "/x", "src": {"file": "a", "offset": 0}}
    begun = {**saved, "begun": True}
    told = [{**one, "rank": rank} for one in (begun, saved) for rank in range(8)]
    assert [(record["rank"], record.get("begun")) for record in Deduplicator().new_records(told)] == [(0, True), (0, None)]


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([None, 0, 1])), max_size=30), st.integers(0, 30))
def test_the_state_carries_on(told: list[tuple[int, int | None]], cut: int) -> None:
    records = [step(*one) for one in told]
    first = Deduplicator()
    news = first.new_records(records[:cut])
    news += Deduplicator(json.loads(json.dumps(first.to_record()))).new_records(records[cut:])
    assert news == Deduplicator().new_records(records)


def test_the_state_stays_small() -> None:
    deduplicator = Deduplicator()
    deduplicator.new_records([step(number, task) for number in range(10_000) for task in range(4)])
    assert len(json.dumps(deduplicator.to_record())) < 10_000
