"""Lines as Megatron-LM, its forks and lt-train print them, and the events that they are."""

from typing import Any

import pytest

from lt_monitor.logs.fields import read_values
from lt_monitor.logs.lines import Line
from lt_monitor.logs.trainers import megatron
from lt_shared.contracts import run_log

STEP = (
    "iteration        4/   25000 | consumed samples:         4096 | lm loss: 2.120380E+00 |{more} number of nan iterations:   0 |"
)


def step(text: str | bytes) -> dict[str, Any]:
    line = Line(text if isinstance(text, bytes) else text.encode(), 0)
    found = megatron.step(line)
    assert found is not None
    return read_values(line.text, found.values)


def event(parser: Any, text: str | bytes) -> Any:
    return parser(Line(text if isinstance(text, bytes) else text.encode(), 0))


@pytest.mark.parametrize(
    ("pair", "field", "value"),
    [
        ("energy per GPU (J/iter/GPU): 1234.5", "energy_joules", 1234.5),
        ("power per GPU (W/GPU): 650.25", "power_watts", 650.25),
        ("params norm: 1.5", "params_norm", 1.5),
        ("num zeros: 7", "zeros", 7.0),
        ("skipped samples:   12", "skipped_samples", 12),
        ("samples/sec: 3.8", "samples_per_second", 3.8),
        ("iteration time: 270.125 s samples/sec: 3.8", "samples_per_second", 3.8),
    ],
)
def test_pairs_that_only_forks_print(pair: str, field: str, value: float) -> None:
    bare = step(STEP.format(more=""))
    found = step(STEP.format(more=f" {pair} |"))
    assert {name: number for name, number in found.items() if name not in bare} == {field: value}
    assert type(found[field]) is type(value)


def test_other_pairs_are_metrics() -> None:
    found = step(STEP.format(more=" mtp_1 loss: 7.5 | my\xff loss: 2 |").encode("latin-1"))
    assert found["metrics"] == {"mtp_1 loss": 7.5, "my\N{REPLACEMENT CHARACTER} loss": 2.0}


def test_numbers_behind_a_value_may_differ_between_lines() -> None:
    """As in Primus, which prints a mean behind a slash: they are no field, and no constant of the line either."""
    text = STEP.format(more=" throughput per GPU (TFLOP/s/GPU): 512.3/510.1 |").encode()
    found = megatron.step(Line(text, 0))
    assert found is not None
    texts = [(field.name if field else None, text[begin:end].strip()) for field, begin, end in found.values]
    assert ("tflops_per_gpu", b"512.3") in texts
    assert [one for one in texts if one[0] is None] == [(None, b"/510.1")]


def test_a_line_has_its_own_time_and_the_rank_before_it() -> None:
    line = f"2025-01-02T03:04:59Z [rank7]: [2025-01-02 03:04:05] {STEP.format(more='')}"
    found = step(line)
    assert (found["time"], found["rank"]) == ("2025-01-02T03:04:05", 7)
    assert step(f"2025-01-02T03:04:59Z {STEP.format(more='')}")["time"] == "2025-01-02T03:04:59Z"
    cut_off = f"2025-01-02T03:04:59Z validation lo [2025-01-02 03:04:05] {STEP.format(more='')}"
    assert step(cut_off)["time"] == "2025-01-02T03:04:05"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "saving checkpoint at iteration     845 to /fsx/done in old format/run in torch_dist format",
            {"kind": "checkpoint", "step": 845, "path": "/fsx/done in old format/run", "begun": True},
        ),
        (
            "[2025-01-02 03:04:05] successfully saved checkpoint from iteration     845 to /fsx/run [ t 1/4, p 1/2 ]",
            {"kind": "checkpoint", "step": 845, "path": "/fsx/run", "time": "2025-01-02T03:04:05"},
        ),
        (
            b"successfully loaded checkpoint from /fsx/\xff [ t 1/1, p 1/1 ] at iteration 845",
            {"kind": "load", "step": 845, "path": "/fsx/\N{REPLACEMENT CHARACTER}"},
        ),
        (
            "lt-train: checkpoint of iteration 20: training waited 1.5 s of 12.25 s",
            {"kind": "checkpoint", "step": 20, "waited_seconds": 1.5, "seconds": 12.25},
        ),
        ("successfully saved checkpoint from iteration many to /fsx/run", None),
    ],
)
def test_checkpoints(line: str | bytes, expected: dict[str, Any] | None) -> None:
    assert event(megatron.checkpoint, line) == expected


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("--exit-interval", "iterations"), ("--exit-duration-in-mins", "duration"), ("SIGTERM", "signal"), ("SIGUSR2", "signal")],
)
def test_why_a_run_of_lt_train_ended(reason: str, expected: str) -> None:
    line = f"lt-train: ended by {reason} at iteration 20; the same command resumes"
    assert event(megatron.lifecycle, line) == {"kind": "end", "reason": expected, "step": 20}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("exiting program after receiving SIGTERM", {"kind": "end", "reason": "signal"}),
        ("exiting program at iteration 20", {"kind": "end", "reason": "iterations", "step": 20}),
        ("exiting program after 30.5 min", {"kind": "end", "reason": "duration"}),
    ],
)
def test_why_a_run_of_megatron_ended(line: str, expected: dict[str, Any]) -> None:
    found = event(megatron.lifecycle, f"noise {line}")
    assert found == expected | {"message": line}
    stamped = event(megatron.lifecycle, f"[{line}] datetime: 2025-01-02 03:04:05")
    assert stamped["time"] == "2025-01-02T03:04:05"


@pytest.mark.parametrize(
    ("parser", "line"),
    [
        (megatron.lifecycle, "[after training is done] datetime"),
        (megatron.notes, "Step Time : 3.05s GPU utilization: 512.3MODEL_TFLOP/s/GPU"),
        (megatron.anomaly, "lt-train: error: gradients were not finite in 100 steps in a row"),
        (megatron.anomaly, "found NaN in"),
        (megatron.progress, "2026-01-10 10:00:00\tJob ID: 101\t# GPUs: 256\tS"),
    ],
)
def test_a_line_that_was_cut_off_tells_nothing(parser: Any, line: str) -> None:
    assert event(parser, line) is not None
    assert event(parser, line[:-1]) is None


@pytest.mark.parametrize(("prefix", "rank"), [("Rank 3: ", {"rank": 3}), ("", {}), ("Ranks: ", {})])
def test_the_rank_of_a_loss_that_is_no_number(prefix: str, rank: dict[str, int]) -> None:
    line = f"{prefix}found NaN in local grad norm"
    fault = {"kind": "fault", "fault": "nan", "cause": "root", "severity": "critical", "message": line}
    assert event(megatron.anomaly, line) == fault | rank


JOB = "2026-01-10 10:00:00\tJob ID: {job}\t# GPUs: 256\t{what}"


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("Saved checkpoint\tIteration: 2000", {"kind": "checkpoint", "step": 2000}),
        ("Saved async checkpoint\tIteration: 2000", {"kind": "checkpoint", "step": 2000, "asynchronous": True}),
        ("Saving async checkpoint\tIteration: 2000", {"kind": "checkpoint", "step": 2000, "asynchronous": True, "begun": True}),
        ("Starting job", {"kind": "start", "arguments": {"world_size": 256}, "job": "101"}),
        ("Saved checkpoint\tIteration: 2e3", {"note": "progress", "what": "Saved checkpoint", "Iteration": 2000.0}),
        ("Saved checkpoint", {"note": "progress", "what": "Saved checkpoint"}),
        (
            "Savinx asynx checkpoint\tIteration: 2000",
            {"note": "progress", "what": "Savinx asynx checkpoint", "Iteration": 2000.0},
        ),
        ("Loaded\tTokens (in billions): 8.39", {"note": "progress", "what": "Loaded", "Tokens (in billions)": 8.39}),
    ],
)
def test_progress(what: str, expected: dict[str, Any]) -> None:
    line = JOB.format(job="101", what=what)
    if "note" in expected:
        fields = {"gpus": 256} | {name: value for name, value in expected.items() if name != "note"}
        expected = {"kind": "note", "note": "progress", "message": line.replace("\t", " "), "fields": fields}
    found = event(megatron.progress, line)
    if "message" in found:
        found["message"] = found["message"].replace("\t", " ")
    assert found == expected | {"time": "2026-01-10T10:00:00"}


def test_names_of_jobs_and_pairs_that_are_no_text() -> None:
    started = event(megatron.progress, JOB.format(job="a\xffb", what="Starting job").encode("latin-1"))
    assert started["job"] == "a\N{REPLACEMENT CHARACTER}b"
    noted = event(megatron.progress, JOB.format(job="1", what="St\xffp\tA\xffb: 2").encode("latin-1"))
    assert noted["fields"] == {
        "what": "St\N{REPLACEMENT CHARACTER}p",
        "gpus": 256,
        "A\N{REPLACEMENT CHARACTER}b": 2.0,
    }


@pytest.mark.parametrize(("split", "part"), [("validation", "validation-ema"), ("test", "test-ema")])
def test_the_loss_of_averaged_weights_is_a_set_of_its_own(split: str, part: str) -> None:
    """As lt-train --ema-decay prints it beside the loss of the weights."""
    printed = run_log.Evaluation(8, 2.5, split, "ema", is_first=False).format()
    assert event(megatron.evaluation, printed) == {"kind": "eval", "step": 8, "loss": 2.5, "split": part, "set": "ema"}
