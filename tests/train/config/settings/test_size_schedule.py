"""--step-batch-size-schedule against megatron-core's calculator, where it has one, and against sizes by hand."""

import pytest
import synthetic
from megatron.core import num_microbatches_calculator

from lt_shared.console import BadConfig, UsageError
from lt_train.config import megatron_arguments
from lt_train.config.settings.batches import Batches
from lt_train.planner import run_table

LENGTH = 64
MOCK = ("--mock-data", "--seq-length", str(LENGTH), "--micro-batch-size", "2")
# Samples 0, 10, 31 (2,047 tokens are not yet 32 samples) and 1,000; the last size is smaller again.
SCHEDULE = "0:4 640:8,2047:0.01K 64k:6"
# The step that begins at sample 8 ends behind sample 10; the one at sample 28 ends behind 31.
SIZES = [4, 4, 4, 8, 8, 8, 10, 10]


def batches(*options: str) -> Batches:
    return synthetic.plan(*MOCK, *options).batches


def scheduled(*options: str) -> Batches:
    return batches("--step-batch-size-schedule", SCHEDULE, *options)


def test_sizes_by_hand() -> None:
    sizes = scheduled("--train-iters", "8")
    consumed = 0
    for steps, size in enumerate(SIZES):
        assert sizes.samples_after(steps) == consumed
        assert sizes.steps_within(consumed) == sizes.steps_within(consumed + 1) == steps
        assert sizes.size_at(consumed) == size
        consumed += size
    assert sizes.train_samples == sum(SIZES)
    assert sizes.global_batch_size == 6
    assert sizes.sizes == (4, 8, 10, 6)


def test_sizes_of_megatron() -> None:
    stock = getattr(num_microbatches_calculator, "StepBatchsizeNumMicroBatchesCalculator", None)
    if stock is None:
        pytest.skip("this megatron-core has no step-wise schedule")
    for text in (SCHEDULE, "1.1K:3E0 0:1 0.000001B:2", "0:768 250B:1536 500B:3072 750B:6144"):
        ours = synthetic.plan("--mock-data", "--seq-length", str(LENGTH), "--step-batch-size-schedule", text).batches
        theirs = stock(1, 1, False, 1, text, LENGTH)
        assert [(entry.begin, entry.size) for entry in ours.size_schedule] == theirs.schedule
        borders = {begin + shift for begin, _ in theirs.schedule for shift in (-1, 0, 1)} - {-1}
        for consumed in sorted({*borders, *range(1100)}):
            theirs.update(consumed, consistency_check=True)
            assert ours.size_at(consumed) == theirs.get_current_global_batch_size()


@pytest.mark.parametrize(
    ("length", "steps"),
    [
        (("--train-samples", "35"), 5),
        (("--train-samples", "36"), 6),
        (("--train-samples", "45"), 6),
        (("--train-tokens", str(46 * LENGTH)), 7),
        # After sample 1,000: 8 steps have 56 samples, 95 have 10, then 6.
        (("--train-samples", str(56 + 950 + 11)), 8 + 95 + 1),
    ],
)
def test_length_of_a_run(length: tuple[str, ...], steps: int) -> None:
    assert scheduled(*length).train_iters == steps


def test_schedules_of_the_learning_rate_count_samples() -> None:
    plan = synthetic.plan(
        *MOCK, "--step-batch-size-schedule", SCHEDULE, "--train-iters", "8", "--lr-warmup-iters", "4", "--lr-decay-iters", "7"
    )
    assert (plan.optimization.lr_warmup_samples, plan.optimization.lr_decay_samples) == (20, 46)


def test_samples_that_are_left_after_other_sizes() -> None:
    """After 5 steps of 8 samples: 40 of 80 are left, in steps of 10."""
    continued = scheduled("--train-samples", "80").continued(5, 40)
    assert (continued.train_iters, continued.train_samples) == (9, 80)


def test_it_is_told() -> None:
    sizes = scheduled("--train-iters", "200")
    assert sizes.described == "4, 8 from step 4, 10 from step 7, 6 from step 104 x 64 tokens"
    assert scheduled("--train-iters", "8").described == "4, 8 from step 4, 10 from step 7 x 64 tokens"
    assert run_table.batch_row(sizes) == f"{sizes.described}, micro batch 2"
    assert batches("--step-batch-size-schedule", "0:4").described == "4 x 64 tokens"
    # The step at sample 0 ends behind the second entry, which no step has.
    assert batches("--step-batch-size-schedule", "0:4 64:8 256:2").described == "4, 2 from step 2 x 64 tokens"


def test_arguments_of_megatron() -> None:
    plan = synthetic.plan(*MOCK, "--step-batch-size-schedule", SCHEDULE)
    text = megatron_arguments.run_arguments(plan)["step_batch_size_schedule"]
    assert text == "0:4 640:8 1984:10 64000:6"
    assert synthetic.plan(*MOCK, "--step-batch-size-schedule", text).batches == plan.batches
    assert megatron_arguments.run_arguments(synthetic.plan(*MOCK))["step_batch_size_schedule"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 entries"),
        (" ".join(f"{number}K:2" for number in range(101)), "has 101 entries"),
        ("64:2", "begins after 1 samples of 64 tokens"),
        ("0:2 63:4", "counts tokens: batch sizes 2 and 4 begin at the same sample, 0"),
        ("0:2 640:4 641:6", "begin at the same sample, 10"),
        ("0:0", "no samples in a step"),
        ("0:2 64", "'64' is not TOKENS:SIZE"),
        ("0:2 64:4:6", "is not TOKENS:SIZE"),
        ("0:2 -64:4", "'-64:4' is not TOKENS:SIZE"),
        ("0:2 nan:4", "is not TOKENS:SIZE"),
        ("0:2 inf:4", "is not TOKENS:SIZE"),
        ("0:2 1e300T:4", "is not TOKENS:SIZE"),
        ("0:2 64:1e300T", "is not TOKENS:SIZE"),
        ("0:2 64:B", "is not TOKENS:SIZE"),
        ("0:2 64:3", "global batch size 3 is not a multiple of micro batch size 2 x data parallel size 1"),
    ],
)
def test_refused_schedules(text: str, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        batches("--step-batch-size-schedule", text)


@pytest.mark.parametrize("option", [("--global-batch-size", "8"), ("--rampup-batch-size", "2", "2", "8")])
def test_refused_beside_another_batch_size(option: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=option[0]):
        scheduled(*option)
