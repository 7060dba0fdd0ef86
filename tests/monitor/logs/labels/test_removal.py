"""Labels around log lines: behind any of them, and behind two, a log says the same as without, and the labels are not lost."""

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from wrapped_logs import SHIPPERS, Lines

from lt_monitor.events.records import Record
from lt_monitor.logs.labels.removal import LabelRemoval
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.runs.faults.tail_cause import tail_cause

TIME = "2026-03-03T10:00:{:02d}.123456789Z"

TRACEBACK = """[titan] 2026-03-03 10:00:02,456 - root - INFO - step: 15  loss:  3.10680  memory:  9.46GiB(64.99%)
Traceback (most recent call last):
  File "/opt/train.py", line 10, in <module>
    main()
    ~~~~^^
  File "/opt/train.py", line 7, in main
    raise StageFailed("no data")
stages.errors.StageFailed: no data
""".splitlines()
MEGATRON = [
    f" [2026-03-03 10:00:{number:02d}] iteration {number:8d}/    1000 | consumed samples: {number * 256:12d} |"
    f" elapsed time per iteration (ms): {8100 + number}.4 | learning rate: 3.000000E-04 | global batch size:   256 |"
    f" lm loss: 5.4{number:05d}E+00 | loss scale: 1.0 | grad norm: 1.204 | number of skipped iterations:   0 |"
    " number of nan iterations:   0 |"
    for number in range(1, 41)
]
HUGGING_FACE = [
    line
    for number in range(10, 210, 10)
    for line in (
        f"  1%|          | {number}/1752 [00:{number // 4:02d}<1:22:01,  2.83s/it]",
        f"{{'loss': 3.{number:04d}, 'grad_norm': 1.41, 'learning_rate': 2.04e-06, 'epoch': 0.{number:04d}}}",
    )
]
TORCHTITAN = [
    f"[titan] 2026-03-03 10:00:{number:02d},338 - root - INFO - step: {number:2d}  loss:  3.{number:05d}  grad_norm:  0.8319"
    "  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%"
    for number in range(1, 41)
]
LT_TRAIN = (Path(__file__).parents[2] / "samples/lt_train.log").read_text().splitlines()
LOGS = {
    "traceback": TRACEBACK,
    "megatron": MEGATRON,
    "huggingface": HUGGING_FACE,
    "torchtitan": TORCHTITAN,
    "lt_train": LT_TRAIN,
}


NESTED = [
    *permutations(("docker", "ray", "torchrun"), 2),
    *permutations(("cri", "mpirun", "journald"), 2),
    *permutations(("pdsh", "srun", "tee"), 2),
    ("cat-n", "kubectl"),
    ("stern", "torchrun"),
    ("compose", "ray"),
    ("torchx", "tee"),
    ("kubectl", "docker"),
    ("journald-json", "mpirun"),
    ("fluentbit", "cri"),
    ("arrow", "torchrun"),
    ("cat-n", "stern"),
    ("ts", "pdsh"),
]


def _text(lines: Lines) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _records(text: bytes, size: int | None = None) -> list[Record]:
    parser, records, offset = LogParser(), [], 0
    for block in [text] if size is None else [b"".join(part) for part in _parts(text.splitlines(keepends=True), size)]:
        records += parser.parse(block, offset).records("a.log", "a")
        offset += len(block)
    return records


def _parts(lines: list[bytes], size: int) -> list[list[bytes]]:
    return [lines[begin : begin + size] for begin in range(0, len(lines), size)]


def _said(record: Record) -> Record:
    """What a record says apart from where and by whom: a line without a time has that of its label."""
    return {key: value for key, value in record.items() if key not in ("src", "task", "rank", "node", "time")}


CASES = [((name,), log) for name in SHIPPERS for log in LOGS]
STEPS_OF_MANY_LINES = [
    text
    for number in range(1, 21)
    for text in (
        f"[2025-02-20 15:18:{number:02d}] INFO     [olmo_core.train.callbacks:62, rank=0] [step={number}/99,epoch=1]",
        "    optim/total grad norm=14.34",
        f"    train/CE loss=11.{number:02d}",
    )
]
LOGS["olmo"] = STEPS_OF_MANY_LINES
CASES += [((name,), "olmo") for name in ("docker", "stern", "pdsh", "compose", "pm2", "supervisor", "pueue", "clush")]
CASES += [(pair, log) for pair in NESTED for log in ("traceback", "megatron", "huggingface")]


def _without_age(message: str) -> str:
    """The message without the last time of the log, which may be the time of a label."""
    return message.partition(" (")[0] if message.startswith("no failure") else message


@pytest.mark.parametrize(("wrappings", "log"), CASES, ids=lambda part: part if isinstance(part, str) else "-in-".join(part))
def test_the_same_as_without_labels(wrappings: tuple[str, ...], log: str, tmp_path: Path) -> None:
    lines = LOGS[log]
    plain = _text(lines)
    for name in wrappings[::-1]:
        lines = SHIPPERS[name](lines)
    text = _text(lines)
    expected = _records(plain)
    assert expected
    records = _records(text)
    assert list(map(_said, records)) == list(map(_said, expected))
    assert [text.count(b"\n", 0, record["src"]["offset"]) for record in records] == [
        plain.count(b"\n", 0, record["src"]["offset"]) for record in expected
    ]
    times = [record["time"] for record in expected if "time" in record]
    assert not times or [record["time"] for record in records if "time" in record] == times or len(times) < len(expected)
    causes = []
    for name, content in (("plain.log", plain), ("wrapped.log", text)):
        (tmp_path / name).write_bytes(content)
        causes.append(tail_cause([str(tmp_path / name)]))
    assert [(cause.fault, _without_age(cause.message), cause.line, cause.last_step) for cause in causes[1:]] == [
        (cause.fault, _without_age(cause.message), cause.line, cause.last_step) for cause in causes[:1]
    ]


@pytest.mark.parametrize(
    ("wrapping", "label"),
    [
        ("docker", {"time": "2026-03-03T10:00:00.123456789Z"}),
        ("journald-json", {"time": "2026-03-03T10:00:00.123456Z", "node": "node07"}),
        ("fluentbit", {"time": "2026-03-03T10:00:00.500000Z", "node": "node07"}),
        ("stern-json", {"node": "node07"}),
        ("cri", {"time": "2026-03-03T10:00:00.123456789Z"}),
        ("kubectl", {"time": "2026-03-03T10:00:00.123456789Z", "node": "train-0"}),
        ("stern", {"node": "train-worker-0"}),
        ("journald", {"node": "node07"}),
        ("journald-iso", {"time": "2026-03-03T10:00:00+0000", "node": "node07"}),
        ("mpirun", {"rank": 3}),
        ("prrte", {"rank": 3}),
        ("sagemaker", {"rank": 3, "node": "algo-1"}),
        ("python-json", {"time": "2026-03-03T10:00:00.123"}),
        ("compose", {"node": "trainer-1"}),
        ("pdsh", {"node": "node07"}),
        ("torchx", {"node": "trainer/0"}),
        ("ray", {"node": "10.0.0.7"}),
        ("hydra", {"rank": 3}),
        ("srun", {"task": 3}),
        ("torchrun", {"rank": 3}),
        ("arrow", {"node": "master-0"}),
        ("parallel", {"node": "node07"}),
    ],
)
def test_what_a_label_says_is_kept(wrapping: str, label: Record) -> None:
    """By steps of trainers that are read by columns, and by one that is read line by line."""
    lines = [line for line in TORCHTITAN if "step" in line]
    for plain in ([line.partition("INFO - ")[2] for line in lines], HUGGING_FACE):
        records = _records(_text(SHIPPERS[wrapping](plain)))
        assert len(records) >= 20
        for record in records:
            assert {field: record.get(field) for field in ("time", "node", "task", "rank") if field in record} == label


@pytest.mark.parametrize("wrapping", ["docker", "cri", "pdsh", "ray", "cat-n"])
def test_state_goes_on_behind_labels(wrapping: str) -> None:
    """A dump of arguments that two blocks share begins where its heading stands."""
    lines = SHIPPERS[wrapping](LT_TRAIN)
    whole, parts = _records(_text(lines)), _records(_text(lines), 8)
    assert parts == whole
    assert whole[0]["kind"] == "start"


def test_lines_that_a_container_runtime_has_cut() -> None:
    step = MEGATRON[0]
    docker = [
        json.dumps({"log": text, "stream": "stdout", "time": "2026-03-03T10:00:00Z"})
        for text in (step + "x" * (1 << 14), " cut\n", MEGATRON[1] + "\n")
    ]
    cri = [
        f"2026-03-03T10:00:00.1Z stdout {flag} {text}"
        for flag, text in (("P", step[:100]), ("F", step[100:]), ("F", MEGATRON[1]))
    ]
    for lines in (docker, cri):
        assert [record["step"] for record in _records(_text(lines))] == [1, 2]


RAISED = 'Traceback (most recent call last):\n  File "/opt/train.py", line 3, in f\n    g()\nValueError: no data'


@pytest.mark.parametrize(
    "entry",
    [
        {"event": "failed", "level": "error", "timestamp": TIME.format(1), "exception": RAISED},
        {"event": "failed", "level": "error", "exception": [{"exc_type": "ValueError", "exc_value": "no data", "frames": []}]},
        {"message": "failed", "levelname": "ERROR", "asctime": "2026-03-03 10:00:00,123", "exc_info": RAISED},
        {"text": f"2026-03-03 10:00:00.123 | ERROR | a:b:3 - failed\n{RAISED}\n", "record": {"message": "failed"}},
        {"message": "failed", "@timestamp": TIME.format(1), "log.level": "error", "error.stack_trace": RAISED},
        {"jsonPayload": {"message": RAISED}, "severity": "ERROR", "timestamp": TIME.format(1)},
    ],
    ids=lambda entry: "-".join(entry),
)
def test_exceptions_of_json_loggers(entry: dict[str, Any], tmp_path: Path) -> None:
    """Loggers put them under a key of their own."""
    (tmp_path / "a.log").write_text(json.dumps(entry) + "\n")
    cause = tail_cause([str(tmp_path / "a.log")])
    assert (cause.fault, cause.message) == ("traceback", "ValueError: no data")


@pytest.mark.parametrize(
    "line",
    [
        "INFO: building datasets",
        "wandb: Tracking run with wandb version 0.17",
        "step 12: loss 2.5",
        "train.py: a word",
        "srun: job 12 queued",
        "77|NODE_FAIL|0:0",
        "loss > 2.5",
        "step > 12 of 100",
        "loss[3]: 2.5",
        '{"v":1,"kind":"note","run":"a","note":"memory","message":"x"}',
        '{"loss": 2.5, "epoch": 0.1, "message": "x", "timestamp": 1}',
        '{"tracker": "json", "event": "log", "step": 1, "level": 2}',
    ],
)
def test_lines_without_labels_stay(line: str) -> None:
    assert LabelRemoval().remove(_text([line] * 40)) is None
