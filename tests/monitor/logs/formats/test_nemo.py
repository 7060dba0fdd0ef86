"""NeMo's bars where Lightning rounds a step, and a loss that is not a number."""

from pathlib import Path

import pytest

from lt_monitor.events.records import Record
from lt_monitor.logs.deduplication import Deduplicator
from lt_monitor.logs.log_parser import MINIMUM_ALIKE_LINES, LogParser

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


def test_a_bar_that_counts_other_batches_too_is_not_believed() -> None:
    """From aws-samples/awsome-distributed-training:3.test_cases/megatron/bionemo/README.md."""
    assert [event["step"] for event in events(LOG.read_bytes())] == [31000] * 4


def test_samples_seen_make_the_step_where_both_numbers_are_exact() -> None:
    (found,) = events(frame(7, "3.1e+4", more="consumed_samples=248192.0, global_batch_size=8.000"))
    assert found["step"] == 31024


def test_many_rounded_steps_are_read_as_each_alone() -> None:
    lines = [frame(position, "3.1e+4") for position in range(31_000, 31_000 + 2 * MINIMUM_ALIKE_LINES)]
    assert [record["step"] for record in events("".join(lines))] == [events(line)[0]["step"] for line in lines]
