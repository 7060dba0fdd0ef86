"""NeMo's bars where Lightning rounds a step, and a loss that is not a number."""

from pathlib import Path

import pytest

from lt_monitor.events.records import Record
from lt_monitor.logs.deduplication import Deduplicator
from lt_monitor.logs.fast.step_templates import MINIMUM_ALIKE_LINES
from lt_monitor.logs.log_parser import LogParser

BAR = "Epoch {epoch}:   3%|▎         | {position}/1100000 [5:28:58<171:22:21,  1.73it/s, reduced_train_loss={loss}, {more}]\n"
LOG = Path(__file__).parents[2] / "samples" / "trainers" / "nemo.log"


def events(text: str | bytes) -> list[Record]:
    raw = text if isinstance(text, bytes) else text.encode()
    return LogParser().parse(raw, 0).records("log", "run")


def frame(position: int, step: str, loss: str = "2.510", epoch: int = 0, more: str = "consumed_samples=2.54e+8") -> str:
    return BAR.format(epoch=epoch, position=position, loss=loss, more=f"global_step={step}, {more}")


@pytest.mark.parametrize("text", ["nan.0", "nan", "inf.0", "inf"])
def test_a_loss_that_is_no_number(text: str) -> None:
    (found,) = events(frame(40, "39.00", loss=text))
    assert found["loss"] is None and found["step"] == 39


@pytest.mark.parametrize(
    ("position", "step", "epoch", "expected"),
    [
        (795, "794.0", 0, 794),
        (2000, "2e+3", 0, 1999),
        (31003, "3.1e+4", 0, 31002),
        (123457, "1.23e+5", 0, 123456),
        (31003, "2.23e+6", 2, 2231002),
    ],
)
def test_the_bar_tells_rounded_steps_apart(position: int, step: str, epoch: int, expected: int) -> None:
    (found,) = events(frame(position, step, epoch=epoch))
    assert found["step"] == expected
    assert (found["loss"], found["consumed_samples"]) == (2.51, 254_000_000)


def test_rounded_and_exact_steps_of_a_run_never_go_back() -> None:
    """Each step is drawn twice, first with the figures of the step before; tqdm shortens only numbers near a thousand."""
    lines = []
    for position in range(30_940, 31_060):
        for step in (position - 2, position - 1):
            shown = f"{step:.3g}".replace("e+0", "e+") if 30_950 <= step < 31_050 else f"{step}.0"
            lines.append(frame(position, shown, loss=f"{3 - step / 1e5:.4f}"))
    steps = [record["step"] for record in Deduplicator().new_records(events("".join(lines)))]
    assert steps == sorted(steps)
    assert set(steps) == set(range(30_938, 31_059))


def test_a_bar_that_counts_other_batches_too_still_tells_steps_apart() -> None:
    """From aws-samples/awsome-distributed-training:3.test_cases/megatron/bionemo/README.md: 34,103 batches, every third line."""
    found = events(LOG.read_bytes())
    assert [event["step"] for event in found] == [30950, 30953, 30956, 30959]
    assert all(event["step_is_counted"] for event in found)


@pytest.mark.parametrize("is_known", [True, False])
def test_rounded_steps_of_a_bar_that_is_ahead_are_between_the_exact_ones(is_known: bool) -> None:
    """The bar is 3,000 ahead; with an exact step before them all are right, without one none is above those that follow."""
    exact = [*range(30_940, 30_950), *range(31_050, 31_060)]
    lines = {
        step: frame(step + 3000, f"{step}.0" if step in exact else "3.1e+4", loss=f"{3 - step / 1e5:.4f}")
        for step in range(30_940 if is_known else 31_000, 31_060)
    }
    found = [record["step"] for record in events("".join(lines.values()))]
    assert found == sorted(set(found))
    if is_known:
        assert found == list(lines)


def test_steps_of_six_digits_are_told_apart() -> None:
    """All of them are shown with three."""
    shown = (f"{step:.3g}".replace("e+0", "e+") for step in range(123_400, 124_900))
    found = [record["step"] for record in events("".join(frame(50 + index, text) for index, text in enumerate(shown)))]
    assert found == sorted(set(found))
    assert all(abs(one - step) <= 1000 for one, step in zip(found, range(123_400, 124_900), strict=True))


def test_samples_seen_make_the_step_where_both_numbers_are_exact() -> None:
    (found,) = events(frame(7, "3.1e+4", more="consumed_samples=248192.0, global_batch_size=8.000"))
    assert found["step"] == 31024


def test_many_rounded_steps_are_read_as_each_alone() -> None:
    lines = [frame(position, "3.1e+4") for position in range(31_000, 31_000 + 2 * MINIMUM_ALIKE_LINES)]
    assert [record["step"] for record in events("".join(lines))] == [events(line)[0]["step"] for line in lines]


@pytest.mark.parametrize("samples", ["1.28e+6", "9.99e+8", "2.54e+12"])
def test_counts_with_an_exponent_are_read_by_columns(samples: str) -> None:
    lines = [frame(step + 1, f"{step}.0", more=f"consumed_samples={samples}") for step in range(1000, 1400)]
    block = LogParser().parse("".join(lines).encode(), 0)
    assert sum(len(part.offsets) for part in block.rows) > 300
    assert {record["consumed_samples"] for record in block.records("log", "run")} == {round(float(samples))}


def test_counts_with_other_exponents_are_other_lines() -> None:
    lines = [frame(step + 1, f"{step}.0", more=f"consumed_samples=1.28e+{6 + step % 3}") for step in range(1000, 1400)]
    found = LogParser().parse("".join(lines).encode(), 0).records("log", "run")
    assert [record["consumed_samples"] for record in found] == [128 * 10 ** (4 + step % 3) for step in range(1000, 1400)]
