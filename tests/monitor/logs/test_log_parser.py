"""Lines are found behind whatever a launcher, a terminal or a dying process put around them."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.events.records import Record
from lt_monitor.logs.log_parser import LogParser
from lt_shared.contracts import run_log

LOGS = Path(__file__).parents[1] / "samples"
STEP = run_log.Step(25, 100, 400, 1.5, 490.0, 1e-4, 16, 2.5, 1.0, 0.75, 1, 2)
STEP_RECORD = {
    "v": 1,
    "kind": "step",
    "step": 25,
    "total_steps": 100,
    "consumed_samples": 400,
    "step_seconds": 1.5,
    "tflops_per_gpu": 490.0,
    "learning_rate": 1e-4,
    "global_batch_size": 16,
    "loss": 2.5,
    "loss_scale": 1.0,
    "grad_norm": 0.75,
    "skipped_steps": 1,
    "nan_steps": 2,
    "src": {"offset": 7},
}


def parse(line: bytes) -> Record | None:
    """The last event of some lines at byte 7, without the place where it is."""
    items = LogParser().parse(line, 7).items
    return items[-1][1] if items else None


def test_every_megatron_sample_is_one_event() -> None:
    records = [parse(line) for line in (LOGS / "megatron_lines.log").read_bytes().splitlines(keepends=True)]
    assert [record and record["kind"] for record in records] == ["step"] * 5 + ["eval", "checkpoint", "checkpoint", "preprocess"]


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "1: ",
        " 15: ",
        "[rank0]:",
        "[default7]:",
        "12: [rank3]: ",
        "[pod/gpt-worker-0/pytorch] ",
        "2026-11-21T10:00:00.123456789Z ",
        "2026-11-21T10:00:00+09:00 [pod/x/y] 3: [rank0]:",
        "\x1b[36m",
        "\x1b[38;2;180;60;0m\x1b[1m",
        "INFO:megatron.training:",
        "(WorkerDict pid=4711, ip=10.0.0.1) ",
        " iteration       24/     100 | consumed samples:           50 | elapsed time per iter",
        "Epoch 0:   3%|▎         | 3/91 [16:05<7:52:06, 321.89s/it] ",
    ],
)
@pytest.mark.parametrize("suffix", ["", "\r\n", "\x1b[0m\n", "[rank1]: UserWarning: the default value\n"])
def test_step_lines_are_found_between_a_prefix_and_a_suffix(prefix: str, suffix: str) -> None:
    record = parse(f"{prefix}{STEP.format()}{suffix}".encode())
    assert record is not None
    for label in ("time", "task", "rank", "node"):
        record.pop(label, None)
    assert {**record, "src": {"offset": 7}} == STEP_RECORD


def test_kubernetes_timestamps_are_the_time_of_lines_without_one() -> None:
    record = parse(b"2026-11-21T10:00:00.5Z " + STEP.format().encode())
    assert record is not None
    assert record["time"] == "2026-11-21T10:00:00.5Z"


@given(st.binary(max_size=40).filter(lambda noise: b"kind" not in noise), st.binary(max_size=20))
def test_bytes_of_any_kind_before_a_checkpoint_line_do_no_harm(noise: bytes, unused: bytes) -> None:
    line = run_log.CheckpointLoaded(60, "/fsx/run").format().encode()
    record = parse(noise + b" " + line + b"\n")
    assert record is not None
    assert (record["kind"], record["step"], record["path"]) == ("load", 60, "/fsx/run")
    parse(noise + unused + line[: len(unused)])


@given(st.integers(0, 400))
def test_a_step_line_that_was_cut_off_is_no_event(length: int) -> None:
    line = STEP.format().encode()
    record = parse(line[: min(length, len(line) - 1)] + b"slurmstepd: error: *** JOB 1 CANCELLED | DUE TO PREEMPTION ***\n")
    assert record is None


UNFINISHED = "[rank0]:[titan] 2026-11-20 08:02:54,123 - root - INFO - step: 58  loss:"


@pytest.mark.parametrize("label", ["[rank3]:[titan] ", "[rank3]: ", "[rank3]:\x1b[32m[titan] \x1b[0m"])
@pytest.mark.parametrize(
    "said",
    [
        "Loading the checkpoint from outputs/checkpoint/step-50.",
        "step: 60  loss:  2.5000  grad_norm:  1.0000  memory:  1.00GiB(1.00%)  tps: 900  tflops: 4.00  mfu: 1.00%",
    ],
)
def test_an_event_behind_an_unfinished_line_has_its_own_time_and_rank(label: str, said: str) -> None:
    record = parse(f"{UNFINISHED}{label}2026-11-20 09:00:00,000 - root - INFO - {said}\n".encode())
    assert record is not None
    assert (record["time"], record["rank"]) == ("2026-11-20T09:00:00.000", 3)


@pytest.mark.parametrize(
    ("inner", "time"),
    [
        ("2026-11-20 09:00:00,000 - root - INFO - ", "2026-11-20T09:00:00.000"),
        ("[2026-11-20 09:00:00] ", "2026-11-20T09:00:00"),
        ("the one of 2026-11-19 09:00:00 is gone. ", "2026-11-20T08:02:54.123"),
    ],
)
def test_only_a_label_is_the_time_of_an_event(inner: str, time: str) -> None:
    record = parse(f"{UNFINISHED}{inner}Loading the checkpoint from outputs/checkpoint/step-50. \n".rstrip().encode())
    assert record is not None
    assert (record["time"], record["rank"]) == (time, 0)
    later = f"{UNFINISHED[:60]}Loading the checkpoint from /a/step-50/2026-11-20T09:00:00/"
    assert (parse(later.encode()) or {})["time"] == "2026-11-20T08:02:54.123"


def test_numbers_that_json_lacks_become_null() -> None:
    record = parse(b" iteration 5/ 10 | grad norm: nan | loss scale: inf | number of nan iterations:   1 |")
    assert record == {
        "v": 1,
        "kind": "step",
        "step": 5,
        "total_steps": 10,
        "grad_norm": None,
        "loss_scale": None,
        "nan_steps": 1,
        "src": {"offset": 7},
    }


def test_the_arguments_are_one_event_with_numbers_as_numbers() -> None:
    arguments = {"seq_length": 4096, "lr": 3e-4, "save": "/fsx/my run", "load": None, "vocab_file": "x", "world_size": 8}
    lines = [f"0: {line}".encode() for line in run_log.format_arguments(arguments)]
    lines.insert(2, b"1: NCCL version 2.27.5 .... 1")
    lines.insert(3, STEP.format().encode())
    parser = LogParser()
    records = [record for offset, line in enumerate(lines) for _, record in parser.parse(line + b"\n", offset + 7).items]
    assert [record["kind"] for record in records] == ["step", "start"]
    assert records[1]["arguments"] == {"seq_length": 4096, "lr": 3e-4, "save": "/fsx/my run", "world_size": 8}
    assert records[1]["src"] == {"offset": 7}


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_event_records_pass_through_with_unknown_keys(separators: tuple[str, str]) -> None:
    record = {"v": 1, "kind": "step", "run": "a", "step": 3, "loss": 2.5, "colour": "red", "src": {"file": "x", "offset": 9}}
    assert parse(b"0: " + json.dumps(record, separators=separators).encode()) == record


@pytest.mark.parametrize(
    "line",
    [
        '{"v":1,"kind":"dataset","prefix":"web","documents":2,"tokens":9,"dtype":"uint16"}',
        '{"v":1,"kind":"checkpoint","path":"/run/iter_0000020","format":"megatron-dist","iteration":20,"loss":7.2}',
        '{"v":1,"kind":"end","count":1}',
    ],
)
def test_manifest_lines_are_neither_events_nor_malformed(line: str) -> None:
    parser = LogParser()
    assert parser.parse(f"{line}\n".encode(), 0).items == []
    assert parser.malformed == 0


@pytest.mark.parametrize(
    "line",
    [
        '{"v":1,"kind":"step","step":3',
        '{"v":1,"kind":"step","loss":3.0}',
        '{"v":1,"kind":"step","step":"3"}',
        '{"v":1,"kind":"step","step":true}',
        '{"v":1,"kind":"step","step":-1}',
        '{"v":1,"kind":"step","step":3,"loss":"low"}',
        '{"v":1,"kind":"eval","step":3}',
        '{"v":1,"kind":"start","arguments":[]}',
        '{"v":1,"kind":"start","run":7,"arguments":{}}',
        '{"v":1,"kind":"dataset","prefix":"x"}',
        '{"v":1,"kind":' + "[" * 100_000,
    ],
)
def test_malformed_event_records_are_counted_and_located(line: str) -> None:
    parser = LogParser()
    assert parser.parse(line.encode(), 7).items == []
    assert parser.malformed == 1
    assert parser.first_malformed.startswith("at byte 7: ")


def test_a_record_with_a_loss_that_is_not_a_number_has_null() -> None:
    record = parse(b'{"v":1,"kind":"step","step":3,"loss":NaN,"grad_norm":1e999}')
    assert record is not None
    assert record["loss"] is None
    assert record["grad_norm"] is None
