"""What a run reports: Megatron's lines, the same numbers for programs, curves, traces, times of the parts, progress."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pseudo_terminal
import pytest
from running import SMALL, environment, quick_command

from lt_shared.contracts import run_log
from lt_shared.contracts.manifest import Dataset
from lt_shared.contracts.run_log import CheckpointSaved, Evaluation, Step
from lt_train.metrics.log import TABLE_HEADER, StepTable

STEPS = 4


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> tuple[Path, str, str]:
    """The directory, stdout and stderr of a run on two ranks that reports all it can; stderr is a terminal."""
    run = tmp_path_factory.mktemp("log") / "run"
    options = (
        *("--train-iters", str(STEPS), "--eval-interval", "2", "--save", str(run), "--ranks", "2"),
        *("--timing-log-level", "1", "--tensorboard-dir", str(run / "curves"), "--log-throughput"),
        *("--profile", "--profile-step-start", "1", "--profile-step-end", "2", "--profile-ranks", "1"),
    )
    done = pseudo_terminal.run(quick_command(*SMALL, *options, dataset.prefix), environment=environment())
    assert done.code == 0, done.shown
    return run, done.other, done.shown


def events_of(run: Path) -> list[run_log.Event]:
    return [event for line in (run / "train.log").read_text().splitlines() if (event := run_log.parse(line))]


def metrics_of(run: Path, kind: str) -> list[dict[str, object]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == kind]


def test_a_terminal_shows_the_commands_that_follow(reported: tuple[Path, str, str]) -> None:
    run, _, shown = reported
    words = " ".join(shown.split())
    assert f"next: lt-monitor plot {run} -o report.html; lt-convert {run} --to hf -o {run}-hf; the same" in words
    assert f"more --train-iters than {STEPS} continues" in words
    assert "next:" not in (run / "train.log").read_text()


def test_the_log_is_that_of_megatron(reported: tuple[Path, str, str]) -> None:
    run, _, _ = reported
    arguments = run_log.parse_arguments((run / "train.log").read_text().splitlines())
    assert arguments is not None
    assert (arguments["seq_length"], arguments["global_batch_size"], arguments["world_size"]) == ("64", "8", "2")
    events = events_of(run)
    steps = [event for event in events if isinstance(event, Step)]
    assert [(step.step, step.total_steps, step.consumed_samples) for step in steps] == [(n, STEPS, 8 * n) for n in range(1, 5)]
    assert [event.step for event in events if isinstance(event, Evaluation)] == [2, 4]
    assert [event.step for event in events if isinstance(event, CheckpointSaved)] == [4]


def test_metrics_are_the_numbers_of_the_lines(reported: tuple[Path, str, str]) -> None:
    run, _, _ = reported
    steps = [event for event in events_of(run) if isinstance(event, Step)]
    records = metrics_of(run, "step")
    assert len(records) == len(steps)
    for step, record in zip(steps, records, strict=True):
        assert record["step"] == step.step
        assert step.loss is not None
        assert record["loss"] == pytest.approx(step.loss, abs=1e-5)
        assert record["grad_norm"] == pytest.approx(step.grad_norm, abs=1e-3)
    evaluations = [event for event in events_of(run) if isinstance(event, Evaluation)]
    for evaluation, record in zip(evaluations, metrics_of(run, "eval"), strict=True):
        assert record["loss"] == pytest.approx(evaluation.loss, abs=1e-5)
        assert record["perplexity"] == pytest.approx(evaluation.perplexity, rel=1e-5)


def test_speed_and_memory(reported: tuple[Path, str, str]) -> None:
    run, _, _ = reported
    for record in metrics_of(run, "step"):
        seconds, rate = record["step_seconds"], record["tokens_per_second"]
        assert isinstance(seconds, float) and isinstance(rate, float)
        assert rate == pytest.approx(8 * 64 / seconds)
        assert record["tokens_per_second_per_gpu"] == pytest.approx(rate / 2)
        assert record["mfu"] is None
        assert 10**8 < int(str(record["memory_bytes"])) < 10**10
        assert 0 < float(str(record["data_seconds"])) + float(str(record["loop_seconds"])) < seconds
    assert " MFU (%): N/A |" in (run / "train.log").read_text()


def test_a_terminal_shows_a_table_above_the_progress_bar(reported: tuple[Path, str, str]) -> None:
    run, out, error = reported
    steps = [event for event in events_of(run) if isinstance(event, Step)]
    rows = re.findall(r"(\d)/4 +(\d\.\d{4}) +([\d,]+) +(\d+:\d\d)\s", error)
    assert [row[:2] for row in rows] == [(str(step.step), f"{step.loss:.4f}") for step in steps]
    assert rows[-1][3] == "0:00"
    assert error.count("step       loss     tokens/s    time left") == 1
    assert "iteration" not in error and "arguments" not in error
    assert re.search(r"validation loss \d\.\d{4}, perplexity [\d.]+ after 2 steps", error)
    assert f"checkpoint of step 4: {run}" in error.replace("\r\n", "")
    assert f"{STEPS}/{STEPS} steps (100%)" in error
    assert [json.loads(line)["kind"] for line in out.splitlines()] == ["checkpoint", "end"]


def test_the_parts_of_a_start_add_up(reported: tuple[Path, str, str]) -> None:
    run, _, error = reported
    (note,) = [record for record in metrics_of(run, "note") if record["note"] == "started"]
    fields: Any = note["fields"]
    assert fields["step"] == 1 and sum(fields["phases"].values()) == pytest.approx(fields["seconds"])
    names = list(fields["phases"])
    assert names[:3] == ["launcher", "interpreter", "torch"] and names[-3:] == ["loading", "data", "first step"]
    assert all(seconds >= 0 for seconds in fields["phases"].values())
    assert str(note["message"]) in (run / "train.log").read_text()
    assert f"first step after {fields['seconds']:.1f} s" in error


def test_times_of_the_parts_of_a_step(reported: tuple[Path, str, str]) -> None:
    lines = (reported[0] / "train.log").read_text().splitlines()
    assert lines.count("(min, max) time across ranks (ms):") == STEPS
    assert "FutureWarning" not in reported[2]
    assert sum(line.startswith("    forward-backward ....") for line in lines) == STEPS
    assert sum(line.startswith("    optimizer-inner-step ....") for line in lines) == STEPS


def test_trace_of_the_chosen_step_and_rank(reported: tuple[Path, str, str]) -> None:
    run, _, error = reported
    (trace,) = (run / "profile").iterdir()
    assert trace.name == "trace-step2-rank1.json.gz"
    assert str(trace) in error.replace("\r\n", "")
    names = {event.get("name") for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}
    assert "ProfilerStep#1" in names and "ProfilerStep#2" not in names


def test_curves_of_the_run(reported: tuple[Path, str, str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = reported[0]
    curves = EventAccumulator(str(run / "curves")).Reload()
    losses = [event.value for event in curves.Scalars("lm loss")]
    assert losses == pytest.approx([record["loss"] for record in metrics_of(run, "step")])
    assert [event.step for event in curves.Scalars("lm loss validation ppl")] == [2, 4]


def row(step: int, total: int, seconds: float | None, loss: float | None = 2.5, tokens_per_second: float = 12345.6) -> list[str]:
    return StepTable().lines(Step(step, total, step_seconds=seconds, loss=loss), tokens_per_second)[1].split(maxsplit=3)


@pytest.mark.parametrize(
    ("left", "seconds", "shown"),
    [
        (0, 9.0, "0:00"),
        (1, 59.4, "0:59"),
        (1, 59.6, "1:00"),
        (10, 6.0, "1:00"),
        (3599, 1.0, "59:59"),
        (3600, 1.0, "1:00:00"),
        (86399, 1.0, "23:59:59"),
        (86400 * 12 + 3660, 1.0, "12 d 01:01"),
        (7, None, "-"),
        (7, float("inf"), "-"),
        (7, float("nan"), "-"),
    ],
)
def test_time_left(left: int, seconds: float | None, shown: str) -> None:
    assert row(100, 100 + left, seconds)[3] == shown


def test_a_row() -> None:
    assert row(1000, 250000, 1.0) == ["1,000/250,000", "2.5000", "12,346", "2 d 21:10"]
    assert row(1, 2, 1.0, loss=None)[1] == "-"
    assert row(1, 2, 1.0, loss=float("nan"))[1] == "nan"


def test_every_line_fits_into_80_columns_under_its_header() -> None:
    table = StepTable()
    lines = table.lines(Step(1_000_000, 2_000_000, step_seconds=60.0, loss=12.5), 123_456_789.0)
    assert lines[0] == TABLE_HEADER
    assert all(len(line) <= 80 for line in lines) and lines[1].endswith(" 694 d 10:40")


def test_the_header_is_printed_again_before_it_is_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "16")
    table = StepTable()
    shown = [line for step in range(50) for line in table.lines(Step(step, 50, step_seconds=1.0), 1.0)]
    for end in range(1, len(shown) + 1):
        assert TABLE_HEADER in shown[max(0, end - 16) : end]
    assert shown.count(TABLE_HEADER) == 5
    monkeypatch.setenv("LINES", "2")
    assert table.lines(Step(1, 2, step_seconds=1.0), 1.0)[0] == TABLE_HEADER
