"""Records that are valid and mean harm: whoever writes into a log may write JSON lines too."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_monitor.alerts.alert import AlertPass
from lt_monitor.alerts.chat_messages import body
from lt_monitor.alerts.thresholds import Thresholds
from lt_monitor.events import records
from lt_monitor.prometheus import exposition
from lt_monitor.runs import time_accounting
from lt_monitor.runs.run_state import RunState

NOW = 1_768_500_000.0
NUMBERS = st.none() | st.integers(0, 5) | st.integers(0, 1 << 70) | st.floats(-1e300, 1e300) | st.sampled_from([0, -1, 1e-300])
TIMES = ["2026-01-15T18:00:00", "9999-12-31T23:59:59"]
TEXTS = st.text(max_size=8) | st.sampled_from([*TIMES, "hyperpod", "missing", "RUNNING", "/", "/\0"])
VALUES = NUMBERS | TEXTS | st.booleans() | st.lists(NUMBERS, max_size=2) | st.dictionaries(TEXTS, NUMBERS, max_size=2)
FIELDS = (
    "step", "loss", "grad_norm", "step_seconds", "total_steps", "nan_steps", "skipped_steps", "time", "rank", "task", "node",
    "seconds", "path", "begun", "arguments", "first_step", "reason", "xid", "gpu", "job", "state", "exit_code", "restarts",
    "fields", "errors", "clock_limits", "sm_clock_hertz", "utilization", "ecc_uncorrected_errors", "uuid", "last_completed",
    "sequence", "split", "device", "tokens_per_second", "tokens_per_second_per_gpu", "global_batch_size", "learning_rate",
    "mfu", "consumed_samples", "loss_scale",
)  # fmt: skip
ARGUMENTS = st.dictionaries(
    st.sampled_from(["seq_length", "global_batch_size", "world_size", "train_iters", "save", "save_interval", "log_interval"]),
    VALUES,
)
REQUIRED: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "step": st.fixed_dictionaries({"step": st.integers(0, 20)}),
    "eval": st.fixed_dictionaries({"step": st.integers(0, 20), "loss": NUMBERS}),
    "checkpoint": st.just({}),
    "load": st.just({}),
    "start": st.fixed_dictionaries({"arguments": ARGUMENTS}),
    "end": st.just({"reason": "completed"}),
    "fault": st.fixed_dictionaries(
        {
            "fault": st.sampled_from(records.FAULTS) | TEXTS,
            "cause": st.sampled_from(records.CAUSES) | TEXTS,
            "severity": st.sampled_from(records.SEVERITIES) | TEXTS,
            "message": TEXTS,
        }
    ),
    "note": st.fixed_dictionaries({"note": st.sampled_from(records.NOTES) | TEXTS, "message": TEXTS}),
    "gpu": st.fixed_dictionaries({"node": TEXTS}),
    "neuron": st.fixed_dictionaries({"node": TEXTS}),
    "job": st.fixed_dictionaries({"job": VALUES, "state": TEXTS}),
}


@st.composite
def a_record(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(sorted(REQUIRED)))
    fields = draw(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4))
    source = {"file": draw(st.sampled_from(["a.log", "b.log"])), "offset": draw(st.integers(0, 100) | VALUES)}
    return {
        "v": 1,
        "kind": kind,
        "run": draw(st.sampled_from(["r", "", "\x1b"])),
        **fields,
        **draw(REQUIRED[kind]),
        "src": source,
    }


@settings(max_examples=60)
@given(st.lists(a_record().filter(lambda record: records.problem(record) is None), max_size=12))
def test_no_valid_record_breaks_a_command(taken: list[dict[str, Any]]) -> None:
    runs: dict[str, RunState] = {}
    examination = AlertPass(runs, Thresholds({}), NOW)
    for record in taken:
        examination.take(record)
    findings = examination.findings()
    for finding in findings:
        assert finding.line().isprintable()
        assert finding.severity in records.SEVERITIES
    json.loads(body("https://127.0.0.1/hook", findings))
    for state in runs.values():
        result = time_accounting.account(state.attempts)
        assert result.goodput is None or 0 <= result.goodput <= 1
        RunState.from_record(json.loads(json.dumps(state.to_record())))
    for line in exposition.render(runs.values(), NOW).splitlines():
        assert line.startswith("#") or line.isprintable()


@pytest.mark.parametrize("number", [[], {}, "31", -1, 1.5, True])
def test_an_xid_is_a_number(number: Any) -> None:
    record = {"v": 1, "kind": "fault", "run": "r", "fault": "xid", "cause": "root", "severity": "critical", "message": ""}
    assert records.problem(record | {"xid": 31}) is None
    assert records.problem(record | {"xid": number}) == f"xid is {number!r}"
