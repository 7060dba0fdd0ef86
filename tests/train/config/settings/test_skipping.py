"""What --skip-steps and --skip-samples leave out, and what they refuse."""

from pathlib import Path

import pytest
import synthetic

from lt_shared.console import BadData, UsageError
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.skipping import Skipping


def skipping(*arguments: str) -> Skipping:
    config = synthetic.plan("--mock-data", "--seq-length", "16", *arguments)
    assert RunConfig.from_json(config.to_json()) == config
    return config.skipping


def test_a_skipped_step_leaves_out_all_its_samples(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_text("17\n30-34\n")
    made = skipping("--skip-steps", "3, 5-6", "--skip-samples", str(listed))
    found = {step: made.skipped(step, range(8 * (step - 1), 8 * step)) for step in range(1, 8)}
    assert found == {1: [], 2: [], 3: list(range(16, 24)), 4: [30, 31], 5: list(range(32, 40)), 6: list(range(40, 48)), 7: []}
    assert not skipping()


@pytest.mark.parametrize("steps", ["0", "0-4", "", "a", "5-", "7-5", "1;2", "1,,2"])
def test_what_are_no_steps(steps: str) -> None:
    with pytest.raises(UsageError, match="--skip-steps"):
        skipping("--skip-steps", steps)


def test_what_are_no_samples(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_text("x")
    with pytest.raises(BadData, match="line 1"):
        skipping("--skip-samples", str(listed))
