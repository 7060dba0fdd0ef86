"""The numbers of a summary, against values worked out by hand from the logs."""

import datetime
import json
import math
import os
import statistics
from pathlib import Path
from typing import Any

import pytest
from made_runs import run_of

from lt_monitor.runs import run_loader
from lt_monitor.runs.speed import RunFacts
from lt_monitor.runs.summary import Summary, summarize
from lt_monitor.views import summary_table
from lt_shared.contracts import run_log
from lt_shared.models import presets

LOGS = Path(__file__).parents[1] / "samples"


def of_log(name: str, run_facts: RunFacts | None = None) -> Summary:
    """At the time of its last line."""
    (run,) = run_loader.read([str(LOGS / name)])
    return summarize(run, run_facts, run.updated)


def of_steps(*steps: dict, events: list[dict] | None = None, files: list[str] | None = None, **fields: Any) -> Summary:
    return summarize(run_of(*steps, files=files, resumed_at=0, events=events or [], **fields))


def test_old_megatron_log() -> None:
    summary = of_log("megatron_old.log")
    assert (summary.step, summary.total_steps, summary.eta_seconds) == (200, 200, 0)
    assert (summary.restarts, summary.lost_steps) == (1, 30)
    assert (summary.checkpoint_step, summary.checkpoint_path) == (200, "/fsx/checkpoints")
    assert (summary.skipped_steps, summary.nan_steps) == (3, 0)
    assert summary.consumed_tokens == 200 * 32 * 1024
    assert summary.step_seconds is not None
    assert summary.tokens_per_second == pytest.approx(32 * 1024 / summary.step_seconds, rel=1e-3)


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


def test_a_device_gives_the_mfu_of_the_tflops_that_are_printed() -> None:
    assert of_log("megatron_new.log").mfu is None
    assert of_log("megatron_new.log", RunFacts(gpu="NVIDIA H100 80GB HBM3")).mfu == pytest.approx(490.5 / 989, abs=0.001)


def test_the_arguments_give_the_tflops_that_are_not_printed() -> None:
    summary = of_log("story.jsonl")
    flops_per_token = presets.preset("llama3-8b").flops_per_token(8192)
    assert summary.tokens_per_second == pytest.approx(512 * 8192 / 7.15, rel=0.01)
    assert summary.tflops_per_gpu == pytest.approx(summary.tokens_per_second * flops_per_token / 64 / 1e12, rel=1e-3)


def test_the_fault_of_a_run_is_the_root_cause_of_its_last_failure() -> None:
    summary = of_log("story.jsonl")
    assert (summary.restarts, summary.lost_steps, summary.nan_steps, summary.faults) == (2, 34, 1, 3)
    assert summary.fault is not None
    assert (summary.fault["fault"], summary.fault["cause"], summary.fault["attempt"]) == ("node-failure", "root", 2)
    assert summary_table.ROWS["fault"](summary) == "node-failure on ip-10-1-4-12 in attempt 2, 2 more"
    critical = {"kind": "fault", "severity": "critical", "message": "m"}
    first = {**critical, "fault": "nccl-timeout", "cause": "cascade", "rank": 0}
    root = {**critical, "fault": "out-of-memory", "cause": "root", "rank": 3}
    warning = {**critical, "fault": "xid", "cause": "root", "severity": "warning", "xid": 63}
    assert summary_table.ROWS["fault"](of_steps({}, events=[first, root])) == "out-of-memory on rank 3 in attempt 1"
    assert summary_table.ROWS["fault"](of_steps({}, events=[first])) == "nccl-timeout on rank 0 in attempt 1"
    assert summary_table.ROWS["fault"](of_steps({}, events=[warning])) == "xid 63 in attempt 1"
    assert of_steps({}).fault is None


def test_an_orderly_end_is_told() -> None:
    assert of_steps({}, events=[{"kind": "end", "reason": "iterations"}]).ended == "iterations"
    assert of_steps({}).ended is None


def test_lt_train_and_its_metrics_agree() -> None:
    log, metrics = of_log("lt_train.log"), of_log("lt_train_metrics.jsonl")
    assert metrics.loss == pytest.approx(log.loss, rel=1e-6)
    assert metrics.tokens_per_second == pytest.approx(log.tokens_per_second, rel=1e-3)
    for name in ("step", "restarts", "lost_steps", "best_validation_step"):
        assert getattr(metrics, name) == getattr(log, name)
    assert (metrics.total_steps, metrics.eta_seconds, metrics.checkpoint_step) == (None, None, None)


def test_mfu_and_memory_of_lines_that_print_them() -> None:
    values = ((0.2, 30), (0.41, 60), (0.42, 62), (None, 61))
    summary = of_steps(*({"mfu": mfu, "memory_bytes": gibibytes << 30} for mfu, gibibytes in values))
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


def test_a_loss_that_is_printed_as_nan_counts_as_one() -> None:
    assert of_steps({"loss": 2.0}, {"loss": None}, {"loss": None}).nan_steps == 2


def test_updated_is_the_newest_time_or_the_logs_change(tmp_path: Path) -> None:
    (run,) = run_loader.assemble(
        {"v": 1, "kind": "step", "run": "a", "step": step, "time": time, "src": {"file": "a", "offset": step}}
        for step, time in enumerate(["2026-11-21T10:00:00+09:00", "2026-11-21T02:00:00Z"], 1)
    )
    updated = summarize(run).updated
    assert updated is not None
    assert datetime.datetime.fromisoformat(updated) == datetime.datetime(2026, 11, 21, 2, tzinfo=datetime.UTC)
    log = tmp_path / "a.log"
    log.touch()
    assert of_steps({}, files=[str(log)]).updated is not None


def test_every_number_is_json() -> None:
    values = of_log("story.jsonl").to_record().values()
    assert all(type(value) in (int, float, str, bool, dict, type(None)) for value in values)
    assert all(math.isfinite(value) for value in values if isinstance(value, float))


def test_a_run_that_is_dead_has_no_time_left() -> None:
    (run,) = run_loader.read([str(LOGS / "story.jsonl")])
    assert run.updated is not None
    alive, dead = (summarize(run, None, run.updated + seconds) for seconds in (299, 5 * 86400))
    assert (alive.silent, round(alive.eta_seconds or 0)) == (False, 715)
    assert (dead.silent, dead.eta_seconds) == (True, None)
    assert alive.without_time_left() == dead


def test_a_run_that_is_over_is_not_silent(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.touch()
    os.utime(log, (5000, 5000))
    files, step = [str(log)], {"step_seconds": 2.0, "total_steps": 2}
    cases = [
        (of_steps(step, files=files), True, None),
        (of_steps(step, files=files, events=[{"kind": "end", "reason": "signal"}]), False, None),
        (of_steps(step, step, files=files), False, 0),
        (of_steps(step), False, 2.0),
    ]
    for summary, is_silent, eta_seconds in cases:
        assert (summary.silent, summary.eta_seconds) == (is_silent, eta_seconds)
    ended, done = cases[1][0], cases[2][0]
    assert (ended.without_time_left(), done.without_time_left()) == (ended, done)


def test_the_fault_of_a_run_that_the_scheduler_ended() -> None:
    """Its processes end with exceptions, which follow from that."""
    limit = {"kind": "fault", "fault": "time-limit", "cause": "root", "severity": "warning", "message": "m"}
    follows = {"kind": "fault", "fault": "traceback", "cause": "root", "severity": "critical", "message": "m"}
    fault = of_steps({}, events=[limit, follows], closing=[limit, follows]).fault
    assert fault is not None and fault["fault"] == "time-limit"
    assert fault["advice"] == "start it again from the last checkpoint, or raise --time"
    fault = of_steps({}, events=[follows, limit], closing=[follows, limit]).fault
    assert fault is not None and fault["fault"] == "traceback"


STEP_LINE = run_log.Step(25, 100, step_seconds=1.0, loss=2.5, nan_steps=0).format() + "\n"
SLURM = "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-01-16T08:00:00{} ***\n"


@pytest.mark.parametrize(
    ("text", "fault", "ended"),
    [
        (STEP_LINE + SLURM.format(""), "cancelled", "cancelled"),
        (STEP_LINE + SLURM.format(" DUE TO TIME LIMIT"), "time-limit", "time-limit"),
        (STEP_LINE + SLURM.format(" DUE TO PREEMPTION"), "preemption", "preemption"),
        (STEP_LINE + "torch.OutOfMemoryError: CUDA out of memory.\n" + SLURM.format(""), "out-of-memory", "failed"),
        (STEP_LINE + "srun: error: n1: task 3: Exited with exit code 1\n", "exit", "failed"),
        (STEP_LINE, None, None),
        ("".join(f"{{'loss': nan, 'epoch': {epoch}, 'step': {23 + epoch}}}\n" for epoch in range(3)), "nan", None),
        # Caught, as the steps go on.
        ("ValueError: a bad sample\n" + STEP_LINE, None, None),
        (
            STEP_LINE + "[after training is done] datetime: 2026-01-16 08:00:00\nsrun: error: n1: task 3: Killed\n",
            None,
            "completed",
        ),
    ],
)
def test_how_a_job_ended_and_by_what(tool: Any, tmp_path: Path, text: str, fault: str | None, ended: str | None) -> None:
    (tmp_path / "a.log").write_text(text)
    (run,) = json.loads(tool("summarize", "--json", str(tmp_path / "a.log")).stdout)["runs"]
    assert (run["step"], (run["fault"] or {}).get("fault"), run["ended"]) == (25, fault, ended)


def test_a_job_that_died_before_its_first_step(tool: Any, tmp_path: Path) -> None:
    """The fault is what one wants to know."""
    (tmp_path / "a.log").write_text("loading\ntorch.OutOfMemoryError: CUDA out of memory.\n" + SLURM.format(""))
    (run,) = json.loads(tool("summarize", "--json", str(tmp_path / "a.log")).stdout)["runs"]
    assert (run["step"], run["loss"], run["fault"]["fault"], run["ended"]) == (None, None, "out-of-memory", "failed")
    table = tool("summarize", str(tmp_path / "a.log")).stdout
    assert "step             -\n" in table
    assert "fault            out-of-memory in attempt 1" in table
    (row,) = map(json.loads, tool("runs", "--json", str(tmp_path / "a.log")).stdout.splitlines())
    assert (row["step"], row["ended"]) == (None, "failed")
    assert "out-of-memory" not in tool("plot", str(tmp_path / "a.log")).stdout


def test_a_log_without_steps_and_faults_is_none(tool: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("nothing\n")
    os.utime(tmp_path / "a.log", (0, 0))
    done = tool("summarize", str(tmp_path / "a.log"))
    assert (done.returncode, done.stdout) == (65, "")


def test_losses_too_large_for_a_mean_are_no_infinity(tool: Any, tmp_path: Path) -> None:
    """JSON has none."""
    lines = [run_log.Step(step, 100, loss=1.7e308, nan_steps=0).format() for step in range(1, 41)]
    (tmp_path / "a.log").write_text("\n".join(lines) + "\n")
    done = tool("summarize", "--json", str(tmp_path / "a.log"))
    assert "Infinity" not in done.stdout and "Warning" not in done.stderr
    assert json.loads(done.stdout)["runs"][0]["loss_mean"] is None
