"""Runs in samples that are continued with other batch sizes: the samples and the learning rate of each step, counted by hand."""

import json
import math
from pathlib import Path

import pytest
from running import SMALL, train

from lt_shared.contracts.manifest import Dataset

LR = 1e-3
RAMP = ("--rampup-batch-size", "2", "2", "24", "--global-batch-size")
EVALUATION = ("--eval-iters", "1", "--eval-interval", "3")


def size(samples: int) -> tuple[str, ...]:
    return ("--global-batch-size", str(samples))


@pytest.mark.parametrize(
    ("length", "attempts", "sizes"),
    [
        # 50 samples are left after 10 steps: four steps of 12.
        (90, [(size(4), 10), (size(12), 0)], [4] * 10 + [12] * 4),
        # With evaluations between the steps, and back to the first size: 90 - 40 - 24 = 26.
        (
            90,
            [((*size(4), *EVALUATION), 10), ((*size(12), *EVALUATION), 12), ((*size(4), *EVALUATION), 0)],
            [4] * 10 + [12] * 2 + [4] * 6,
        ),
        # Three sizes of 8 samples each; after 12 samples six of 4 samples each: 2 + 2 * 12 / 4, 2 + 2 * 20 / 4.
        (80, [((*RAMP, "8"), 5), ((*RAMP, "14"), 0)], [2] * 4 + [4] + [8, 12] + [14] * 3),
        # No ramp any more.
        (80, [((*RAMP, "8"), 5), (size(16), 0)], [2] * 4 + [4] + [16] * 4),
        # What is left is less than a step.
        (44, [(size(4), 10), (size(12), 0)], [4] * 10),
    ],
)
def test_each_sample_once_and_the_schedule_by_samples(
    tmp_path: Path, dataset: Dataset, length: int, attempts: list[tuple[tuple[str, ...], int]], sizes: list[int]
) -> None:
    fixed = (*SMALL, "--eval-iters", "0", "--train-samples", str(length), "--lr", str(LR), "--min-lr", "0", "--log-sample-loss")
    for options, end in attempts:
        stop = ("--exit-interval", str(end)) if end else ()
        result = train(*fixed, *options, *stop, "--save", str(tmp_path / "run"), dataset.prefix)
        assert result.code == (75 if end else 0), result.err
    records = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    steps = [record for record in records if record["kind"] == "step"]
    assert [record["step"] for record in steps] == list(range(1, len(sizes) + 1))
    consumed = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    assert [record["consumed_samples"] for record in steps] == consumed
    # Megatron's cosine over the samples of the run, after each step.
    expected = [LR * 0.5 * (1 + math.cos(math.pi * min(1, samples / length))) for samples in consumed]
    assert [record["learning_rate"] for record in steps] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    lines = map(json.loads, (tmp_path / "run/sample-losses.jsonl").read_text().splitlines())
    trained = [number for line in lines for number in range(line["first_sample"], line["first_sample"] + len(line["losses"]))]
    assert trained == list(range(consumed[-1]))


def test_the_order_is_that_of_the_undisturbed_run(tmp_path: Path, dataset: Dataset) -> None:
    """With a learning rate of nothing the weights stay, so the loss of each sample tells which one it was, bit for bit."""
    fixed = (*SMALL, "--eval-iters", "0", "--train-samples", "90", "--lr", "1e-30", "--weight-decay", "0", "--log-sample-loss")
    losses = []
    for name, attempts in (("whole", [(4, 0)]), ("changed", [(4, 10), (12, 13), (2, 0)])):
        for samples, end in attempts:
            stop = ("--exit-interval", str(end)) if end else ()
            result = train(*fixed, *size(samples), *stop, "--save", str(tmp_path / name), dataset.prefix)
            assert result.code == (75 if end else 0), result.err
        lines = map(json.loads, (tmp_path / name / "sample-losses.jsonl").read_text().splitlines())
        losses.append([loss for line in lines for loss in line["losses"]])
    assert len(set(losses[1])) == 90
    assert losses[0] == losses[1][:88]
