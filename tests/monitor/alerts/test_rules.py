"""The alert rules, each on the smallest story that makes it speak, and on one that must not."""

import math
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lt_monitor.alerts.alert import AlertPass
from lt_monitor.alerts.thresholds import DEFAULTS, Thresholds
from lt_monitor.events.alert_findings import Finding
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.runs.run_state import RunState

BEGIN = 1_768_500_000.0


def clock(seconds: float) -> str:
    import datetime

    return datetime.datetime.fromtimestamp(BEGIN + seconds, datetime.UTC).isoformat()


def steps(count: int, first: int = 1, begin: float = 0.0, seconds: float = 10.0, **more: Any) -> list[dict[str, Any]]:
    noise = random.Random(7)
    return [
        {
            "kind": "step", "step": first + index, "step_seconds": seconds, "time": clock(begin + seconds * (index + 1)),
            "loss": 3 - 0.002 * index + noise.uniform(-0.02, 0.02), **more,
        }
        for index in range(count)
    ]  # fmt: skip


def found(records: list[dict[str, Any]], now: float, changes: dict[str, Any] | None = None, run: str = "r") -> list[Finding]:
    placed = [
        {"v": 1, "run": run, **record, "src": {"file": "no/such.log", "offset": index}} for index, record in enumerate(records)
    ]
    examination = AlertPass({}, Thresholds(changes or {}), BEGIN + now)
    for record in placed:
        examination.take(record)
    return examination.findings()


def rules(records: list[dict[str, Any]], now: float, **changes: Any) -> list[str]:
    return [finding.rule for finding in found(records, now, changes)]


def fault(name: str = "xid", cause: str = "root", severity: str = "critical", **more: Any) -> dict[str, Any]:
    return {"kind": "fault", "fault": name, "cause": cause, "severity": severity, "message": name, **more}


def test_a_healthy_run_is_silent() -> None:
    saves = [{"kind": "checkpoint", "step": 100 * n, "time": clock(1000 * n)} for n in range(1, 4)]
    story = sorted([*steps(400), *saves], key=lambda record: record["time"])
    assert rules(story, 4030) == []


def test_hang_after_five_minutes_or_ten_steps() -> None:
    assert rules(steps(50), 500 + 290) == []
    assert rules(steps(50), 500 + 310) == ["hang"]
    assert rules(steps(50, seconds=60), 3000 + 590) == []
    assert rules(steps(50, seconds=60), 3000 + 610) == ["hang"]


def test_a_log_that_prints_every_hundred_steps_may_be_silent_in_between() -> None:
    sparse = [record | {"step": 100 * (index + 1), "time": clock(1000 * (index + 1))} for index, record in enumerate(steps(20))]
    assert rules(sparse, 20_000 + 1900) == []
    assert rules(sparse, 20_000 + 2100) == ["hang"]


def test_starting_and_saving_have_limits_of_their_own() -> None:
    start = {"kind": "start", "arguments": {"seq_length": 8}, "time": clock(0)}
    assert rules([start], 1700) == []
    assert rules([start], 1900) == ["hang"]
    saving = {"kind": "checkpoint", "step": 50, "begun": True, "time": clock(500)}
    assert rules([*steps(50), saving], 500 + 1700) == []
    (hang,) = found([*steps(50), saving], 500 + 1900)
    assert "a checkpoint was begun" in hang.message
    saved = {"kind": "checkpoint", "step": 50, "time": clock(520)}
    assert rules([*steps(50), saving, saved], 500 + 400) == ["hang"]


def test_no_hang_after_an_end_a_failure_or_in_the_queue() -> None:
    assert rules([*steps(50), {"kind": "end", "reason": "completed", "time": clock(510)}], 9000) == []
    assert rules([*steps(50), fault()], 9000) == ["xid"]
    assert rules([*steps(50), {"kind": "job", "job": "7", "state": "PENDING"}], 9000) == []
    assert rules([*steps(50), {"kind": "job", "job": "7", "state": "RUNNING"}], 9000) == ["hang"]
    assert rules([*steps(50), fault("nccl-error", "unknown", "warning")], 9000) == ["nccl-error", "hang"]


@pytest.mark.parametrize(
    ("name", "cause", "severity"),
    [
        ("time-limit", "root", "warning"),
        ("preemption", "root", "warning"),
        ("cancelled", "root", "info"),
        ("cancelled", "cascade", "info"),
        ("requeue", "cascade", "info"),
        ("exit", "cascade", "info"),
        ("killed", "cascade", "warning"),
    ],
)
def test_no_hang_after_what_ends_a_job(name: str, cause: str, severity: str) -> None:
    assert rules([*steps(50), fault(name, cause, severity)], 9000) == [name]
    noise = [fault("nccl-error", "unknown", "warning")] * 150
    assert "hang" not in rules([*steps(50), *noise, fault(name, cause, severity)], 9000)


def test_no_hang_of_a_job_of_another_week() -> None:
    """A log that ends without a word, read years later."""
    assert rules(steps(50), 500 + 6 * 86400) == ["hang"]
    assert rules(steps(50), 500 + 8 * 86400) == []
    assert rules(steps(50), 500 + 8 * 86400, hang={"maximum_seconds": 9 * 86400}) == ["hang"]


def untimed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "time"} for record in records]


def test_lines_without_times_do_not_hang_when_they_are_read_for_the_first_time() -> None:
    assert rules(untimed(steps(50)), 9000) == []
    begun = {"kind": "note", "note": "initialized", "message": "", "fields": {}, "time": clock(-1e8)}
    assert rules([begun, *untimed(steps(50))], 9000) == []


def test_a_log_without_times_that_grows_no_more_hangs(tmp_path: Path) -> None:
    runs: dict[str, RunState] = {}
    log = tmp_path / "x.log"

    def seen(records: list[dict[str, Any]], now: float, changed: bool) -> list[str]:
        if changed or not log.exists():
            log.touch()
            os.utime(log, (BEGIN + now, BEGIN + now))
        examination = AlertPass(runs, Thresholds({}), BEGIN + now)
        for record in records:
            examination.take({"v": 1, "run": "r", **record, "src": {"file": str(log), "offset": record.get("step", 0)}})
        return [finding.rule for finding in examination.findings()]

    assert seen(untimed(steps(50)), 600, changed=True) == []
    assert seen([], 1200, changed=False) == []
    assert seen(untimed(steps(20, 51)), 1500, changed=True) == []
    assert seen([], 1700, changed=False) == []
    assert seen([], 1900, changed=False) == ["hang"]


def test_checkpoint_stale_never_mixes_the_clocks_of_log_and_machine() -> None:
    """Old Slurm logs: the start has a time, the steps have none, and the log is read years later."""
    start = {"kind": "start", "arguments": {"save_interval": 10}, "time": clock(0)}
    saved = {"kind": "checkpoint", "step": 20, "time": clock(200)}
    assert rules([start, *untimed(steps(15))], 2000 * 86400) == []
    assert rules([start, *untimed(steps(20)), saved, *untimed(steps(15, 21))], 2000 * 86400) == []
    assert rules([start, *untimed(steps(20)), saved | {"step": 20, "time": None}, *untimed(steps(5, 21))], 9000) == []


def test_checkpoint_stale_not_of_a_job_that_has_ended() -> None:
    start = {"kind": "start", "arguments": {"save_interval": 100}, "time": clock(0)}
    assert rules([start, *steps(210), fault("time-limit", severity="warning")], 2110) == ["time-limit"]


def test_no_hang_after_the_last_step() -> None:
    assert rules(steps(50, total_steps=50), 9000) == []
    assert rules(steps(50, total_steps=51), 9000) == ["hang"]


def test_logs_that_do_not_train_do_not_hang() -> None:
    assert rules([{"kind": "preprocess", "documents": 5, "time": clock(0)}], 90_000) == []


def test_nan_once_an_episode() -> None:
    assert rules([*steps(50), *steps(3, 51, 500, nan_steps=1)], 540) == ["nan"]
    assert rules([*steps(50), *steps(3, 51, 500, loss=None)], 540) == ["nan"]
    assert rules([*steps(50), *steps(1, 51, 500, grad_norm=None)], 540) == ["nan"]
    lossless = [{key: value for key, value in record.items() if key != "loss"} for record in steps(3, 51, 500)]
    assert rules([*steps(50), *lossless[:2]], 540) == []
    assert rules([*steps(50), *lossless], 540) == ["nan"]
    never = [{key: value for key, value in record.items() if key != "loss"} for record in steps(50)]
    assert rules(never, 510) == []


def test_loss_spike() -> None:
    (spike,) = found([*steps(100), *steps(5, 101, 1000, loss=4.5), *steps(20, 106, 1050, loss=2.8)], 1260)
    assert (spike.rule, spike.fields["step"]) == ("loss-spike", 101)
    assert rules([*steps(100), *steps(1, 101, 1000, loss=2.86)], 1020) == []
    assert rules([*steps(10), *steps(1, 11, 100, loss=9.0)], 120) == []
    flat = steps(100, loss=2.0)
    assert rules([*flat, *steps(1, 101, 1000, loss=2.05)], 1020) == []
    assert rules([*flat, *steps(1, 101, 1000, loss=2.2)], 1020) == ["loss-spike"]


def test_the_fall_of_the_loss_at_the_beginning_is_no_spike() -> None:
    falling = [record | {"loss": 11 * math.exp(-index / 40) + 2} for index, record in enumerate(steps(200))]
    assert rules(falling, 2010) == []


def test_skipped_steps_after_the_warm_up() -> None:
    searching = steps(12, skipped_steps=1)
    assert rules(searching, 130) == []
    assert rules([*steps(30), *steps(4, 31, 300, skipped_steps=1)], 350) == []
    assert rules([*steps(30), *steps(6, 31, 300, skipped_steps=1)], 370) == ["skipped-steps"]


def test_straggling() -> None:
    assert rules([*steps(300), *steps(60, 301, 3000, 12.5, loss=2.4)], 3760) == ["straggling"]
    assert rules([*steps(300), *steps(60, 301, 3000, 11.0, loss=2.4)], 3670) == []
    assert rules([*steps(300), *steps(10, 301, 3000, 30.0, loss=2.4)], 3310) == []


def test_a_run_that_waits_for_data() -> None:
    """From the line of lt-train's log to the finding, once for each wait."""
    line = b"  [2026-11-25 21:19:18.357107] waiting for data since 610 s, after iteration 5: /data/web (3 shards so far)\n"
    (logged,) = LogParser().parse(line, 0).records("log", "run")
    (told,) = found([*steps(5), *[{name: logged[name] for name in ("kind", "note", "message", "fields")}] * 2], 60)
    assert (told.rule, told.severity, told.fields["step"], told.fields["seconds"]) == ("waiting-for-data", "warning", 5, 610)
    assert "/data/web (3 shards so far)" in told.message


def test_a_rank_that_megatron_finds_slow() -> None:
    def said(slowest: object) -> list[dict[str, Any]]:
        extremes = {"MnEtpt": {"value": slowest, "rank": 5}, "MxEtpt": {"value": 400.0, "rank": 2}}
        return [*steps(5), *[{"kind": "note", "note": "straggler", "message": "MnEtpt", "fields": extremes}] * 3]

    (slow,) = found(said(300.0), 60)
    assert (slow.rule, slow.fields["rank"]) == ("straggling", 5)
    assert [rules(said(value), 60) for value in (390.0, 0, None, "x")] == [[]] * 4


def test_a_gpu_with_a_low_clock_is_a_straggler() -> None:
    gpus = [
        {"kind": "gpu", "node": "n1", "gpu": number, "uuid": f"GPU-{number}", "utilization": 1.0, "sm_clock_hertz": 1.7e9}
        for number in range(8)
    ]
    assert rules(gpus, 0) == []
    gpus[3]["sm_clock_hertz"] = 1.2e9
    (slow,) = found(gpus, 0, run="n1")
    assert (slow.rule, slow.fields["gpu"]) == ("straggling", 3)
    gpus[3]["utilization"] = 0.0
    assert rules(gpus, 0) == []


def test_throughput_drop_after_a_restart() -> None:
    again = {"kind": "load", "step": 100, "time": clock(1100)}
    assert rules([*steps(100), again, *steps(50, 101, 1100, 13.0)], 1760) == ["throughput-drop"]
    assert rules([*steps(100), again, *steps(50, 101, 1100, 11.0)], 1660) == []


def test_checkpoint_stale_by_what_the_run_did() -> None:
    saves = [{"kind": "checkpoint", "step": 100 * n, "time": clock(1000 * n)} for n in range(1, 4)]
    story = sorted([*steps(480), *saves], key=lambda record: record["time"])
    assert rules(story, 4810) == []
    story = sorted([*steps(520), *saves], key=lambda record: record["time"])
    (stale,) = found(story, 5210)
    assert (stale.rule, stale.fields["checkpoint_step"]) == ("checkpoint-stale", 300)


def test_checkpoint_stale_by_the_arguments() -> None:
    start = {"kind": "start", "arguments": {"save_interval": 100}, "time": clock(0)}
    assert rules([start, *steps(190)], 1910) == []
    assert rules([start, *steps(210)], 2110) == ["checkpoint-stale"]


def test_faults_become_findings_of_their_name() -> None:
    assert rules([*steps(5), fault("preemption", severity="warning"), fault("exit", "cascade")], 60) == ["preemption"]


def test_faults_before_a_restart_in_the_same_pass_are_told() -> None:
    story = [*steps(5), fault(), {"kind": "load", "step": 3}, *steps(5, 4, 100), fault("out-of-memory")]
    assert rules(story, 160) == ["xid", "out-of-memory"]


def test_hyperpod_resumes_are_told_without_alarm() -> None:
    notes = [{"kind": "note", "note": "hyperpod", "message": f"[Auto Resume] {text}"} for text in ("Info: a", "Info: b")]
    (told,) = found([*steps(5), *notes], 60)
    assert (told.rule, told.severity, told.message) == ("hyperpod", "info", "[Auto Resume] Info: a")


@pytest.mark.parametrize(
    ("state", "rule", "severity"),
    [
        ("NODE_FAIL", "node-failure", "critical"),
        ("OUT_OF_MEMORY", "host-out-of-memory", "critical"),
        ("PREEMPTED", "preemption", "warning"),
        ("TIMEOUT", "time-limit", "warning"),
        ("FAILED", "job-failed", "critical"),
        ("CANCELLED", "cancelled", "info"),
    ],
)
def test_what_slurm_says_of_a_job(state: str, rule: str, severity: str) -> None:
    (told,) = found([*steps(5), {"kind": "job", "job": "77", "state": state, "exit_code": 3}], 60)
    assert (told.rule, told.severity) == (rule, severity)
    assert "job 77" in told.message


def test_a_failed_job_whose_log_says_why_is_not_told_twice() -> None:
    assert rules([*steps(5), fault(), {"kind": "job", "job": "77", "state": "FAILED"}], 60) == ["xid"]


def test_devices() -> None:
    gpu = {"kind": "gpu", "node": "n1", "gpu": 3, "ecc_uncorrected_errors": 2, "clock_limits": ["hw_thermal_slowdown"]}
    assert rules([gpu], 0) == ["gpu-errors", "gpu-slowdown"]
    neuron = {"kind": "neuron", "node": "n1", "device": 2, "ecc_uncorrected_errors": 1}
    errors = {"kind": "neuron", "node": "n1", "pid": 7, "errors": {"hardware": 1, "generic": 5}}
    assert rules([neuron, errors], 0) == ["neuron-errors", "neuron-errors"]
    assert rules([{"kind": "note", "note": "missing", "message": "nvidia-smi: not installed here"}], 0) == ["blind"]


def stories() -> Iterator[list[dict[str, Any]]]:
    for name in DEFAULTS:
        yield [fault(name)]
    yield [*steps(50), *steps(3, 51, 500, nan_steps=1)]


def test_every_rule_can_be_switched_off() -> None:
    off = {name: {"enabled": False} for name in DEFAULTS}
    for story in stories():
        assert found(story, 90_000, off) == []


def test_severities_can_be_changed() -> None:
    (told,) = found([*steps(5), fault()], 60, {"xid": {"severity": "info"}})
    assert told.severity == "info"


def test_rules_have_no_memory_of_their_own() -> None:
    story = [*steps(100), *steps(5, 101, 1000, loss=4.5), fault()]
    assert found(story, 2000) == found(story, 2000)


def test_a_million_steps_are_not_too_many() -> None:
    """Costs about 20 microseconds a step, so a first pass over a long log takes less than a minute."""
    import time

    records = [{"v": 1, "run": "r", **record, "src": {"file": "f", "offset": n}} for n, record in enumerate(steps(20_000))]
    begin = time.process_time()
    examination = AlertPass({}, Thresholds({}), BEGIN + 200_010)
    for record in records:
        examination.take(record)
    assert examination.findings() == []
    assert (time.process_time() - begin) / 20_000 < 100e-6
