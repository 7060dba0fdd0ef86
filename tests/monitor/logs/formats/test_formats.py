"""Lines and whole logs of every trainer give the events that a careful reader would note down.

The golden files hold the output of `lt-monitor scrape LOG`, read through by eye; `lines.log` has a line of each kind.
"""

import datetime
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.events import records
from lt_monitor.logs.deduplication import Deduplicator
from lt_monitor.logs.fields import read_values
from lt_monitor.logs.lines import Line
from lt_monitor.logs.log_files import event_blocks
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.logs.trainers.megatron import step as megatron_step
from lt_monitor.runs import run_loader
from lt_shared.contracts import run_log

LOGS = Path(__file__).parents[2] / "samples"
GOLDEN = {path.stem: path for path in sorted((LOGS / "golden").iterdir())}


def log_of(name: str) -> Path:
    (path,) = (path for path in LOGS.iterdir() if path.stem == name and path.suffix in (".log", ".txt"))
    return path


def scraped(path: Path) -> list[dict]:
    deduplicator = Deduplicator()
    return [record for block in event_blocks(path.name) for record in deduplicator.new_records(block)]


@pytest.mark.parametrize("name", list(GOLDEN))
def test_golden_logs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(LOGS)
    assert scraped(log_of(name)) == [json.loads(line) for line in GOLDEN[name].open()]


def test_every_kind_of_line_is_exactly_one_event() -> None:
    offset = 0
    golden = {record["src"]["offset"]: record for record in map(json.loads, GOLDEN["lines"].open())}
    for raw in (LOGS / "lines.log").read_bytes().splitlines(keepends=True):
        ((_, record),) = LogParser().parse(raw, offset).items
        assert records.problem(dict(record)) is None
        told = {field: value for field, value in golden[offset].items() if field not in ("run", "src")}
        assert {field: value for field, value in record.items() if field != "src"} == {
            # Only in a whole log is there a step before it.
            field: value
            for field, value in told.items()
            if field != "step" or "step" in record
        }
        offset += len(raw)


def test_faults_and_notes_have_names_of_the_schema() -> None:
    for name in GOLDEN:
        for record in map(json.loads, GOLDEN[name].open()):
            assert records.problem(record) is None
            if record["kind"] == "fault":
                assert record["fault"] in records.FAULTS
                assert record["cause"] in records.CAUSES
                assert record["severity"] in records.SEVERITIES
            if record["kind"] == "note":
                assert record["note"] in records.NOTES
            if record["kind"] == "end":
                assert record["reason"] in records.END_REASONS


@pytest.mark.parametrize("line", (LOGS / "noise.log").read_bytes().splitlines(keepends=True))
def test_lines_that_only_look_like_events_are_none(line: bytes) -> None:
    assert LogParser().parse(line, 0).items == []


@pytest.mark.parametrize(
    ("name", "attempts"),
    [
        ("torchtitan", [(0, 110, 10), (100, 150, 0)]),
        ("nemo_bar", [(0, 39, 0)]),
        ("nemo_2", [(0, 29, 0)]),
        ("nxd", [(0, 8, 4), (4, 12, 0)]),
        ("bridge_kubernetes", [(0, 24, 0)]),
        ("megatron_old", [(0, 130, 30), (100, 200, 0)]),
        ("lt_train", [(0, 75, 15), (60, 120, 0)]),
    ],
)
def test_attempts_of_whole_logs(name: str, attempts: list[tuple[int, int, int]]) -> None:
    (run,) = run_loader.read([str(log_of(name))])
    assert [(attempt.resumed_at, attempt.last_step, attempt.lost_steps) for attempt in run.attempts] == attempts


numbers = st.one_of(st.none(), st.floats(0, 1e6))
counts = st.one_of(st.none(), st.integers(0, 10**9))
lines = st.builds(
    run_log.Step,
    step=st.integers(0, 10**9),
    total_steps=st.integers(1, 10**9),
    consumed_samples=counts,
    step_seconds=numbers,
    tflops_per_gpu=numbers,
    learning_rate=numbers,
    global_batch_size=counts,
    loss=st.floats(-1e3, 1e6),
    loss_scale=numbers,
    grad_norm=numbers,
    skipped_steps=counts,
    nan_steps=counts,
    time=st.one_of(st.none(), st.datetimes(datetime.datetime(1970, 1, 1))),
    tokens_per_second_per_gpu=numbers,
    mfu=st.one_of(st.none(), st.just(float("nan")), st.floats(0, 1)),
    memory_bytes=counts,
    reserved_memory_bytes=counts,
)


@given(lines)
def test_a_step_line_is_read_as_lt_shared_reads_it(step: run_log.Step) -> None:
    line = step.format()
    parsed = megatron_step(Line(line.encode(), 0))
    event = run_log.parse(line)
    assert parsed is not None and event is not None
    expected = {field: value for field, value in vars(event).items() if value is not None}
    found = read_values(line.encode(), parsed.values)
    if "time" in expected:
        assert datetime.datetime.fromisoformat(found.pop("time")) == expected.pop("time")
    # lt_shared leaves out what is not a number.
    assert {field: value for field, value in found.items() if value is not None} == expected


@pytest.mark.parametrize(
    ("name", "number", "cause"), [("SIGKILL", 9, "root"), ("SIGSEGV", 11, "root"), ("SIGTERM", 15, "cascade")]
)
def test_a_rank_of_lt_train_that_a_signal_has_ended(name: str, number: int, cause: str) -> None:
    line = f"1: lt-train: error: rank 8 on n2 was ended by {name}; the other ranks were stopped\n"
    ((_, record),) = LogParser().parse(line.encode(), 0).items
    assert {field: record[field] for field in ("fault", "cause", "rank", "signal")} == {
        "fault": "killed",
        "cause": cause,
        "rank": 8,
        "signal": number,
    }


def test_a_rank_of_lt_train_that_lost_the_others_is_not_the_root() -> None:
    line = b"lt-train: error: rank 0 on n1: communication with the other ranks failed: Connection closed by peer [127.0.0.1]\n"
    ((_, record),) = LogParser().parse(line, 0).items
    assert (record["fault"], record["cause"]) == ("traceback", "cascade")
