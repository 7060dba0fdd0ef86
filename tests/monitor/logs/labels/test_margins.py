"""Labels of any logger: recognised by their shape where lines behind them are no messages, and left alone elsewhere."""

import random
from pathlib import Path

import pytest
from wrapped_logs import LOGGERS, Lines

from lt_monitor.events.records import Record
from lt_monitor.logs.labels import envelopes, margins
from lt_monitor.logs.labels.removal import LabelRemoval
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.runs.faults.tail_cause import tail_cause

TRACEBACK = """Traceback (most recent call last):
  File "/opt/train.py", line 10, in <module>
    main()
  File "/opt/train.py", line 7, in main
    raise StageFailed("no data")
stages.errors.StageFailed: no data""".splitlines()
CHAIN = [
    *(line.replace("stages.errors.StageFailed: no data", "KeyError: 'k'") for line in TRACEBACK),
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    *TRACEBACK,
]
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/opt/train.py", line 10, in <module>
  |     main()
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/opt/train.py", line 7, in main
    |     raise ValueError("no data")
    | ValueError: no data
    +------------------------------------""".splitlines()
FAILURES = {
    "traceback": TRACEBACK,
    "chain": CHAIN,
    "group": GROUP,
    "memory": [*TRACEBACK[:-1], "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."],
    "disk": [*TRACEBACK[:-1], "OSError: [Errno 28] No space left on device: '/ckpt'"],
    "syntax": ['  File "/opt/train.py", line 3', "    x = = 3", "        ^", "SyntaxError: invalid syntax"],
    "C++": ["terminate called after throwing an instance of 'std::runtime_error'", "  what():  no data"],
    "faulthandler": [
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f0 (most recent call first):",
        '  File "/opt/train.py", line 7 in main',
    ],
    "Slurm": ["slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-03-03T10:00:00 DUE TO PREEMPTION ***"],
}
BEFORE = ["loading the data set", "building a model of 7 billion parameters", "  layers: 32", "  hidden size: 4096", "ready"]
STEPS = {
    "nanogpt": [f"iter {number}: loss 3.{number:04d}, time 812.{number}ms, mfu 21.30%" for number in range(1, 13)],
    "torchtitan": [
        f"[titan] 2026-03-03 10:00:{number:02d},338 - root - INFO - step: {number:2d}  loss:  3.{number:05d}  grad_norm:  0.8319"
        "  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%"
        for number in range(1, 13)
    ],
    "huggingface": [f"{{'loss': 3.{number:04d}, 'grad_norm': 1.41, 'epoch': 0.{number:04d}}}" for number in range(1, 13)],
    "megatron": [
        f" [2026-03-03 10:00:{number:02d}] iteration {number:8d}/    1000 | consumed samples: {number * 256:12d} | elapsed time"
        f" per iteration (ms): 8100.4 | global batch size:   256 | lm loss: 5.4{number:05d}E+00 | loss scale: 1.0 |"
        for number in range(1, 13)
    ],
}


def _nestings(count: int) -> list[tuple[str, ...]]:
    choice = random.Random(7)
    return [tuple(choice.sample(list(LOGGERS), choice.randint(2, 3))) for _ in range(count)]


def _text(lines: Lines) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _steps(lines: Lines) -> list[Record]:
    labels = ("src", "task", "rank", "node", "time")
    records = LogParser().parse(_text(lines), 0).records("a.log", "a")
    return [{key: value for key, value in record.items() if key not in labels} for record in records]


@pytest.mark.parametrize("names", [*((name,) for name in LOGGERS), *_nestings(30)], ids="-in-".join)
def test_the_same_behind_any_labels(names: tuple[str, ...], tmp_path: Path) -> None:
    def wrapped(lines: Lines) -> Lines:
        for name in names:
            lines = LOGGERS[name](lines)
        return lines

    for steps in STEPS.values():
        assert _steps(wrapped(steps)) == _steps(steps) != []
    for failure in FAILURES.values():
        causes = []
        for name, lines in (("plain.log", BEFORE + failure), ("wrapped.log", wrapped(BEFORE + failure))):
            (tmp_path / name).write_bytes(_text(lines))
            causes.append(tail_cause([str(tmp_path / name)]))
        plain, behind = causes
        assert plain.fault is not None
        assert (behind.fault, behind.action, behind.line) == (plain.fault, plain.action, plain.line)
        assert behind.message.endswith(plain.message[-60:])


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("2026-03-03 10:00:05,123 - train - INFO - ", {"time": "2026-03-03T10:00:05.123"}),
        ("1772532005.123456 gpu-12 bash[4242]: ", {"time": "2026-03-03T10:00:05.123456Z", "node": "gpu-12"}),
        ("[2026-03-03T10:00:05.1Z] 1b2c3d4e [rank=3] || ", {"time": "2026-03-03T10:00:05.1Z", "rank": 3}),
        ("[rank: 3] ", {"rank": 3}),
        ("[3]<stderr>:", {"rank": 3}),
        ("<<gpu-12>> ", {"node": "gpu-12"}),
    ],
)
def test_what_a_label_says_is_kept(label: str, said: Record) -> None:
    lines = [f"{label}{line}".encode() for line in BEFORE]
    margin = margins.recognise(lines)
    assert margin is not None
    assert margin.read(lines[0]) == said


@pytest.mark.parametrize(
    "lines",
    [
        STEPS["torchtitan"],
        STEPS["megatron"],
        STEPS["nanogpt"],
        [f"2026-03-03 10:00:00,{number:03d} - root - INFO - message {number}" for number in range(40)],
        [f"[2026-03-03 10:00:00] iteration {'  ' * (number % 3)}{number} of 100" for number in range(40)],
        ["ValueError: no data", "KeyError: 'k'"] * 10,
    ],
    ids=str,
)
def test_a_logger_of_the_program_itself_stays(lines: Lines) -> None:
    assert LabelRemoval().remove(_text(lines)) is None


def test_crashes_behind_the_label_of_a_single_line(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("Mar  3 10:00:00 gpu-12 train: free(): invalid pointer\n")
    cause = tail_cause([str(log)])
    assert (cause.fault, cause.message) == ("killed", "free(): invalid pointer")
    log.write_text("2026-03-03 10:00:00 INFO known: free(): invalid pointer\n")
    assert tail_cause([str(log)]).fault is None


def test_quoted_texts() -> None:
    line = rb'[7] kube.a: [[1772532005.100000000, {}], {"stream"=>"stderr", "log"=>"step "3" done"}]'
    assert envelopes.quoted_text(line) == b'step "3" done'
    assert envelopes.read_quoted(line) == {"time": "2026-03-03T10:00:05.100000Z"}
    assert envelopes.quoted_text(b"time=3 level of noise") is None
