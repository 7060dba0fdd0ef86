"""When the log notes a jump of the loss, and when a run ends that learns nothing."""

import json
import math
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from running import train

from lt_shared.console import BadConfig
from lt_train.train.hooks.anomalies import Anomalies


def good(loss: float) -> SimpleNamespace:
    return SimpleNamespace(updated=True, loss=loss, scale_falls=False)


def skipped(loss: float = math.nan, scale_falls: bool = False) -> SimpleNamespace:
    return SimpleNamespace(updated=False, loss=loss, scale_falls=scale_falls)


def test_a_run_ends_after_so_many_bad_steps_in_a_row() -> None:
    anomalies = Anomalies(3)
    for iteration in range(1, 9):
        anomalies.observe(iteration, skipped() if iteration % 3 else good(2.0))
    anomalies.observe(9, good(2.0))
    anomalies.observe(10, skipped())
    anomalies.observe(11, skipped(loss=2.0))
    with pytest.raises(BadConfig, match=r"3 steps in a row, the last of them 12.*not finite either.*iteration 9"):
        anomalies.observe(12, skipped())


def test_a_falling_loss_scale_is_no_bad_step() -> None:
    anomalies = Anomalies(2)
    for iteration in range(30):
        anomalies.observe(iteration, skipped(loss=7.0, scale_falls=True))
    anomalies.observe(30, skipped(loss=7.0))
    with pytest.raises(BadConfig, match="the loss is finite"):
        anomalies.observe(31, skipped(loss=7.0))


def test_a_loss_that_is_not_finite_counts_while_the_scale_falls() -> None:
    anomalies = Anomalies(1)
    with pytest.raises(BadConfig):
        anomalies.observe(1, skipped(scale_falls=True))


def test_a_jump_of_the_loss_is_noted_once_it_happens() -> None:
    anomalies = Anomalies(10)
    noise = random.Random(0)
    for iteration in range(1, 200):
        loss = 2.0 + 5.0 * math.exp(-iteration / 20) + noise.gauss(0, 0.02)
        assert anomalies.observe(iteration, good(loss)) is None
    note = anomalies.observe(200, good(4.5))
    assert note is not None
    assert "loss spike at iteration 200: 4.5000, mean of the 50 steps before it 1.9986" in note
    assert anomalies.observe(201, good(2.0)) is None


def test_ripples_of_a_flat_loss_are_no_spike() -> None:
    anomalies = Anomalies(10)
    for iteration in range(100):
        assert anomalies.observe(iteration, good(2.0 + 0.0001 * (iteration % 2))) is None
    assert anomalies.observe(100, good(2.1)) is None
    assert anomalies.observe(101, good(2.3)) is not None


def test_jumps_that_come_again_are_each_noted() -> None:
    """Neither the first of them nor the fall before hides the others."""
    anomalies, noise = Anomalies(10), random.Random(1)
    bad = {40: 5.0, 52: 4.5, 53: 4.0, 60: 3.5, 75: 2.8}
    notes = {
        step: anomalies.observe(step, good(bad.get(step, 2.0 + 5.0 * math.exp(-step / 12) + noise.gauss(0, 0.02))))
        for step in range(1, 100)
    }
    assert [step for step, note in notes.items() if note] == list(bad)


def test_the_last_of_the_bad_steps_is_logged(tmp_path: Path) -> None:
    sized = ("--model", "tiny", "--seq-length", "16", "--micro-batch-size", "1", "--global-batch-size", "1", "--lr", "1e30")
    ended = train(
        "--mock-data", *sized, "--device", "cpu", "--ranks", "1", "--train-iters", "8", "--max-nan-steps", "3",
        "--log-interval", "1", "--eval-iters", "0", "--save", str(tmp_path / "run"),
    )  # fmt: skip
    assert ended.code == 78
    steps = [record for line in (tmp_path / "run/metrics.jsonl").open() if (record := json.loads(line))["kind"] == "step"]
    assert f"the last of them {steps[-1]['step']};" in ended.err
