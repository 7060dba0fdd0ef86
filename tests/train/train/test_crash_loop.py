"""A failure that repeats at the same step ends the attempts; everything else may go on."""

import os
from pathlib import Path

import pytest
import synthetic
from running import SMALL, faulty, train

from lt_shared.console import BadConfig
from lt_shared.contracts.manifest import Dataset
from lt_train.config.run_config import RunConfig
from lt_train.train import crash_loop
from lt_train.train.crash_loop import Attempt


@pytest.fixture
def plan(tmp_path: Path) -> RunConfig:
    return synthetic.plan("--mock-data", "--save", str(tmp_path))


def check(plan: RunConfig) -> None:
    crash_loop.check(plan.checkpointing, lambda: crash_loop.fingerprint(plan))


def fail(plan: RunConfig, start: int, reached: int) -> None:
    Attempt(Path(str(plan.checkpointing.save)), crash_loop.fingerprint(plan), start).write_step(reached)


def test_three_failures_at_one_step_are_enough(plan: RunConfig) -> None:
    for _ in range(crash_loop.LIMIT):
        check(plan)
        fail(plan, 4, 7)
    with pytest.raises(BadConfig, match="3 attempts from iteration 4 have failed after iteration 7"):
        check(plan)
    check(synthetic.plan("--mock-data", "--lr", "1e-5", "--save", str(plan.checkpointing.save)))


@pytest.mark.parametrize("ends", [[(4, 7), (4, 7), (4, 8)], [(0, 7), (4, 7), (4, 7)], [(4, 8), (4, 7), (4, 7)]])
def test_failures_elsewhere_may_be_the_machine(plan: RunConfig, ends: list[tuple[int, int]]) -> None:
    for start, reached in ends:
        fail(plan, start, reached)
    check(plan)


def test_an_attempt_that_ended_in_order_counts_for_nothing(plan: RunConfig) -> None:
    fail(plan, 4, 7)
    fail(plan, 4, 7)
    Attempt(Path(str(plan.checkpointing.save)), crash_loop.fingerprint(plan), 4).end(7)
    fail(plan, 4, 7)
    check(plan)


@pytest.mark.parametrize("line", ["[]", "1", "null", '"x"', "{}", '{"start": 4}', "[" * 100_000, "not JSON"])
def test_lines_that_are_no_attempts_count_for_nothing(plan: RunConfig, line: str) -> None:
    for _ in range(crash_loop.LIMIT):
        fail(plan, 4, 7)
    with (Path(str(plan.checkpointing.save)) / crash_loop.FILE).open("a") as file:
        file.write(f"{line}\n")
    check(plan)


def test_an_attempt_after_a_line_that_was_cut_off_counts(plan: RunConfig) -> None:
    file = Path(str(plan.checkpointing.save)) / crash_loop.FILE
    fail(plan, 4, 7)
    os.truncate(file, file.stat().st_size - 5)
    for _ in range(crash_loop.LIMIT):
        check(plan)
        fail(plan, 4, 7)
    with pytest.raises(BadConfig, match="3 attempts from iteration 4"):
        check(plan)


def test_ranks_are_started_again_until_the_failure_has_repeated(dataset: Dataset, tmp_path: Path) -> None:
    """Rank 0 dies in the first save each time."""
    options = ("--train-iters", "6", "--save-interval", "3", "--seq-length", "32", "--global-batch-size", "4", "--ranks", "2")
    place = ("--save", str(tmp_path / "run"), "--max-restarts", "5")
    ended = train(*SMALL, *options, *place, dataset.prefix, **faulty("0:fsync:iter_0000003:SIGKILL:rank"))
    assert ended.code == 78
    assert ended.err.count("starting the ranks again") == crash_loop.LIMIT - 1
    assert "3 attempts from iteration 0 have failed after iteration 3" in ended.err


def test_ranks_that_never_train_are_started_three_times(dataset: Dataset, tmp_path: Path) -> None:
    """A rank is killed when it opens the log, before its first step."""
    options = (*SMALL, "--train-iters", "6", "--ranks", "2", "--save", str(tmp_path / "run"), dataset.prefix)
    ends = [train(*options, **faulty("0:open:train.log:SIGKILL:rank")) for _ in range(crash_loop.LIMIT + 1)]
    assert [end.code for end in ends] == [137, 137, 137, 78]
    assert "3 attempts from iteration 0 have failed after iteration 0" in ends[-1].err
