"""How long a run is, and how its batch size grows."""

import pytest
import synthetic

from lt_shared.console import BadConfig, UsageError
from lt_train.config.settings.batches import Batches, RampUp

MOCK = ("--mock-data", "--seq-length", "64", "--global-batch-size", "8", "--micro-batch-size", "2")
# Global batch sizes of the first steps under --rampup-batch-size 2 2 30, of megatron-core 0.16.1's calculator.
GROWING = [2, 2, 2, 2, 2, 4, 4, 4, 6, 6, 8, 8]


def batches(*options: str) -> Batches:
    return synthetic.plan(*MOCK, *options).batches


def test_length_of_a_run() -> None:
    assert batches().train_iters == 1000
    assert batches("--train-iters", "7").train_samples == 56
    assert batches("--train-samples", "63").train_iters == 7
    assert batches("--train-tokens", str(64 * 64 - 1)).train_iters == 7
    for two in (("--train-iters", "7", "--train-samples", "56"), ("--train-samples", "56", "--train-tokens", "5000")):
        with pytest.raises(UsageError, match="--train-samples"):
            batches(*two)
    with pytest.raises(BadConfig, match="less than one step of 8 samples"):
        batches("--train-samples", "7")


def test_batch_size_grows_as_in_megatron() -> None:
    growing = Batches(64, 2, 8, len(GROWING), RampUp(2, 2, 30))
    consumed, sizes = 0, []
    for steps in range(len(GROWING)):
        assert growing.samples_after(steps) == consumed
        assert growing.steps_within(consumed) == steps
        assert growing.steps_within(consumed + 1) == steps
        sizes.append(growing.size_at(consumed))
        consumed += sizes[-1]
    assert sizes == GROWING
    assert growing.train_samples == sum(GROWING)
    assert growing.sizes == (2, 4, 6, 8)


def test_length_of_a_run_that_grows() -> None:
    ramp = ("--rampup-batch-size", "2", "2", "30")
    assert batches(*ramp, "--train-iters", "12").train_samples == sum(GROWING)
    for samples, steps in ((sum(GROWING), 12), (sum(GROWING) - 1, 11), (5, 2), (2, 1)):
        assert batches(*ramp, "--train-samples", str(samples)).train_iters == steps


@pytest.mark.parametrize(
    ("before", "after", "steps", "left"),
    [
        # After 5 steps of 8 samples: the sizes of the steps that are left, by hand.
        ((), ("--global-batch-size", "4"), 5, [4] * 10),
        ((), ("--global-batch-size", "16"), 5, [16, 16]),
        ((), ("--global-batch-size", "24"), 5, [24]),
        ((), ("--global-batch-size", "48"), 5, []),
        ((), (), 10, []),
        ((), ("--global-batch-size", "16"), 10, []),
        ((), ("--rampup-batch-size", "2", "2", "60"), 5, [6] * 4 + [8, 8]),
        (("--rampup-batch-size", "2", "2", "30"), (), 7, [8] * 7),
    ],
)
def test_samples_that_are_left_with_another_batch_size(
    before: tuple[str, ...], after: tuple[str, ...], steps: int, left: list[int]
) -> None:
    length = ("--train-samples", "80")
    consumed = batches(*length, *before).samples_after(steps)
    continued = batches(*length, *after).continued(steps, consumed)
    assert continued.train_iters == steps + len(left)
    assert continued.train_samples == consumed + sum(left)
    sizes = []
    while consumed < continued.train_samples:
        sizes.append(continued.size_at(consumed))
        consumed += sizes[-1]
    assert sizes == left


def test_a_length_in_steps_stays_one_in_steps() -> None:
    assert batches("--train-iters", "10").continued(5, 20).train_iters == 10


@pytest.mark.parametrize(
    ("ramp", "message"),
    [
        (("8", "2", "30"), "grows from 8 by 2 does not arrive at 8"),
        (("2", "4", "30"), "grows from 2 by 4 does not arrive at 8"),
        (("1", "1", "30"), "global batch size 1 is not a multiple of micro batch size 2"),
    ],
)
def test_refused_growth(ramp: tuple[str, ...], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        batches("--rampup-batch-size", *ramp)
