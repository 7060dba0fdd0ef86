"""The numbers of a summary, against values worked out by hand from the logs."""

import math
import statistics
from pathlib import Path

import pytest

from lt_monitor import runs, summary_table
from lt_monitor.log_parser import LogParser
from lt_monitor.runs import Run
from lt_monitor.summary import Summary, summarize
from lt_shared import run_log

LOGS = Path(__file__).parent / "logs"


def of_log(name: str) -> Summary:
    (run,) = runs.read([str(LOGS / name)])
    return summarize(run)


def of_steps(*steps: dict, **fields: object) -> Summary:
    return summarize(Run("a", steps={number: {"step": number, **step} for number, step in enumerate(steps, 1)}, **fields))


def test_old_megatron_log() -> None:
    summary = of_log("megatron_old.log")
    assert (summary.step, summary.total_steps, summary.eta_seconds) == (200, 200, 0)
    assert (summary.restarts, summary.lost_steps) == (1, 30)
    assert (summary.checkpoint_step, summary.checkpoint_path) == (200, "/fsx/checkpoints")
    assert (summary.skipped_steps, summary.nan_steps) == (3, 0)
    assert summary.consumed_tokens == 200 * 32 * 1024
    assert summary.step_seconds is not None
    assert summary.tokens_per_second == pytest.approx(32 * 1024 / summary.step_seconds, rel=1e-3)
    assert summary.tflops_per_gpu is None


def test_new_megatron_log() -> None:
    summary = of_log("megatron_new.log")
    assert (summary.step, summary.total_steps) == (90, 100)
    assert summary.step_seconds == pytest.approx(15.9, abs=0.1)
    assert summary.eta_seconds == pytest.approx(10 * summary.step_seconds)
    assert summary.tokens_per_second == pytest.approx(2048 * 4096 / 15.9, rel=0.01)
    assert summary.tflops_per_gpu == pytest.approx(490.5, abs=0.5)
    assert (summary.restarts, summary.lost_steps, summary.nan_steps) == (1, 13, 1)
    assert (summary.checkpoint_step, summary.best_validation_step) == (80, 75)
    assert summary.updated is not None
    assert summary.updated.startswith("2026-01-16T")


def test_lt_train_and_its_metrics_agree() -> None:
    log, metrics = of_log("lt_train.log"), of_log("lt_train_metrics.jsonl")
    assert metrics.loss == pytest.approx(log.loss, rel=1e-6)
    assert metrics.tokens_per_second == pytest.approx(log.tokens_per_second, rel=1e-3)
    for name in ("step", "restarts", "lost_steps", "best_validation_step"):
        assert getattr(metrics, name) == getattr(log, name)
    assert (metrics.total_steps, metrics.eta_seconds, metrics.checkpoint_step) == (None, None, None)


def test_mfu_and_memory_of_lines_that_lt_train_prints() -> None:
    lines = [
        run_log.Step(number, 10, mfu=mfu, memory_bytes=gibibytes << 30).format() + "\n"
        for number, mfu, gibibytes in ((1, 0.2, 30), (2, 0.41, 60), (3, 0.42, 62), (4, math.nan, 61))
    ]
    steps = [record for line in lines if (record := LogParser().parse(line.encode(), 0))]
    summary = of_steps(*steps)
    assert summary.mfu == pytest.approx(0.41)
    assert summary.memory_bytes == 62 << 30
    assert (summary_table.ROWS["MFU"](summary), summary_table.ROWS["memory"](summary)) == ("41.0%", "62.00 GiB")


def test_the_trend_compares_the_last_tenth_with_the_tenth_before() -> None:
    losses = [float(value) for value in range(100, 70, -1)]
    summary = of_steps(*({"loss": loss} for loss in losses))
    assert summary.loss == 71
    assert summary.loss_mean == statistics.fmean([73, 72, 71])
    assert summary.loss_change == -3


def test_missing_and_broken_values_are_left_out() -> None:
    summary = of_steps({"loss": 3.0, "step_seconds": None}, {"loss": None, "nan_steps": 1}, {"skipped_steps": None})
    assert (summary.step, summary.loss, summary.nan_steps, summary.skipped_steps) == (3, 3.0, 1, 0)
    assert (summary.step_seconds, summary.tokens_per_second, summary.loss_change, summary.updated) == (None,) * 4


def test_the_batch_size_of_the_step_comes_before_that_of_the_arguments() -> None:
    arguments = {"seq_length": 10, "global_batch_size": 4}
    assert of_steps({"step_seconds": 2.0}, arguments=arguments).tokens_per_second == 20
    assert of_steps({"step_seconds": 2.0, "global_batch_size": 8}, arguments=arguments).tokens_per_second == 40
    assert of_steps({"step_seconds": 0.0}, arguments=arguments).tokens_per_second is None
    assert of_steps({"step_seconds": 2.0}, arguments={"seq_length": "x"}).tokens_per_second is None


def test_updated_is_the_newest_time_or_the_logs_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = ["2026-11-21T10:00:00+09:00", "2026-11-21T02:00:00Z", "nonsense"]
    summary = of_steps({}, last_times=times)
    assert summary.updated is not None
    assert "2026-11-21T02:00:00+00:00" in (summary.updated, _utc(summary.updated))
    log = tmp_path / "a.log"
    log.touch()
    assert of_steps({}, files=[str(log)]).updated is not None


def _utc(text: str) -> str:
    import datetime

    return datetime.datetime.fromisoformat(text).astimezone(datetime.UTC).isoformat()
