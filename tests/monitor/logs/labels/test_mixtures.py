"""Logs whose label changes from part to part: read by columns and read line by line they say the same as without labels."""

import io
import random

import pytest
from wrapped_logs import LOGGERS, SHIPPERS, Lines

from lt_monitor.events.records import Record
from lt_monitor.logs import label_digits, line_blocks
from lt_monitor.logs.fast import step_templates
from lt_monitor.logs.fields import Field
from lt_monitor.logs.line_parsers import StepLine
from lt_monitor.logs.lines import Line
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.logs.searched_keywords import NUMBERED
from lt_shared.contracts import run_log

KINDS = {**{f"{name} of a shipper": wrap for name, wrap in SHIPPERS.items()}, **LOGGERS}
ESCAPING_KINDS = [name for name, wrap in KINDS.items() if not wrap(["iter 1"])[0].endswith("iter 1")]
OPEN_KINDS = [name for name in KINDS if name not in ESCAPING_KINDS]
NOISE = ["", "loading data", "  frames of a list", "NCCL INFO Channel 00", "> building datasets for GPT ..."]
READ_BYTES = ([1 << 20], [100, 4096, 65536], [1000])
# The labels that no form, no column and no traceback behind them gives away.
SHAPES = (
    "absl",
    "glog",
    "NeMo",
    "syslog",
    "aws",
    "gcloud",
    "grep",
    "foreman",
    "ts -s",
    "journalctl -o short-unix",
    "journalctl -o short-monotonic",
    "lines of code",
    "a date in English",
)


def _megatron(choice: random.Random, step: int) -> str:
    return run_log.Step(
        step=step,
        total_steps=1000,
        consumed_samples=step * 512,
        step_seconds=choice.uniform(0.9, 1.3),
        learning_rate=3e-4,
        global_batch_size=512,
        loss=choice.uniform(1.0, 12.0),
        loss_scale=1.0,
        grad_norm=choice.random() * 3,
        skipped_steps=0,
        nan_steps=0,
    ).format()


def _titan(choice: random.Random, step: int) -> str:
    return (
        f"[titan] 2026-03-03 10:00:{step % 60:02d},338 - root - INFO - step: {step:2d}  loss:  {choice.uniform(1, 9):.5f}"
        f"  grad_norm:  {choice.random():.4f}  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%"
    )


def _nanogpt(choice: random.Random, step: int) -> str:
    return f"iter {step}: loss {choice.uniform(1, 9):.4f}, time {choice.uniform(100, 900):.2f}ms, mfu 21.30%"


def _nemo(choice: random.Random, step: int) -> str:
    return (
        f"Training epoch 0, iteration {step}/2000 | lr: 3.922e-06 | global_batch_size: 8 | global_step: {step} | "
        f"reduced_train_loss: {choice.uniform(1, 9):.3f} | train_step_timing in s: {choice.uniform(1, 9):.3f}"
    )


WRITERS = (_megatron, _titan, _nanogpt, _nemo)


def _mixture(seed: int) -> tuple[bytes, bytes, random.Random]:
    """Return the log of a run, the same with changing labels, and the generator for its reads."""
    choice = random.Random(seed)
    writer = choice.choice(WRITERS)
    plain: Lines = []
    labelled: Lines = []
    for _ in range(choice.randint(2, 5)):
        count = choice.choice([2, 20, 60, 120])
        # A few lines among many do not tell a second label, or a shipper's JSON, from the program's own text.
        names = choice.sample(OPEN_KINDS, choice.choice([0, 1, 1, 2]) if count >= 20 else choice.choice([0, 1]))
        if count >= 60 and choice.random() < 0.3:
            names = [choice.choice(ESCAPING_KINDS)]
        first = sum("loss" in line for line in plain) + 1
        steps = [writer(choice, number) for number in range(first, first + count)]
        lines = [line for step in steps for line in ([choice.choice(NOISE), step] if choice.random() < 0.2 else [step])]
        plain += lines
        for name in names:
            lines = KINDS[name](lines)
        labelled += lines
    return _text(plain), _text(labelled), choice


def _text(lines: Lines) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _records(text: bytes, choice: random.Random, sizes: list[int]) -> list[Record]:
    stream = io.BytesIO(text)
    parser, records, offset = LogParser(), [], 0
    for block in line_blocks.blocks(lambda size: stream.read(min(size, choice.choice(sizes))), final=True):
        records += parser.parse(block, offset).records("a.log", "a")
        offset += len(block)
    return records


def _without_labels(records: list[Record]) -> list[Record]:
    labels = ("src", "task", "rank", "node", "time")
    return [{key: value for key, value in record.items() if key not in labels} for record in records]


@pytest.mark.parametrize("seed", range(40))
def test_a_mixture_says_the_same_as_without_labels(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, labelled, choice = _mixture(seed)
    sizes = choice.choice(READ_BYTES)
    records = _records(labelled, random.Random(seed), sizes)
    assert _without_labels(records) == _without_labels(_records(plain, choice, sizes))
    monkeypatch.setattr(step_templates, "MAXIMUM_TEMPLATES", 0)
    assert records == _records(labelled, random.Random(seed), sizes)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
def test_steps_behind_any_label_are_read_by_columns(name: str, writer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(writer)
    choice = random.Random(5)
    text = _text(LOGGERS[name]([writer(choice, number) for number in range(1001, 1401)]))
    block = LogParser().parse(text, 0)
    assert sum(len(part.offsets) for part in block.rows) > 200
    monkeypatch.setattr(step_templates, "MAXIMUM_TEMPLATES", 0)
    one_by_one = LogParser().parse(text, 0)
    assert one_by_one.rows == []
    assert block.records("a", "a") == one_by_one.records("a", "a")


@pytest.mark.parametrize(
    "label",
    [
        # A rank, a task and a time are values; so is a pod's name.
        "[rank{0}]: ",
        "{0}: ",
        "2026-03-03T10:00:0{0}Z [pod/gpt-{0}/pytorch] ",
        # Digits of an event in front of the step.
        "[Errno 2{0}] No ",
        # Only a year that begins with 20 makes the date in brackets a label.
        "x {0}026-03-03 10:00:00 - root - INFO - ",
        "x [{0}026-03-03 10:00:00] ",
    ],
)
def test_digits_that_say_something_are_read(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = random.Random(6)
    text = _text([label.format(number // 40 % 10) + _nanogpt(choice, number) for number in range(1000, 1400)])
    records = LogParser().parse(text, 0).records("a", "a")
    monkeypatch.setattr(step_templates, "MAXIMUM_TEMPLATES", 0)
    assert records == LogParser().parse(text, 0).records("a", "a")
    assert sum(record["kind"] == "step" for record in records) == 400


def test_a_keyword_with_other_digits_stays_a_keyword() -> None:
    assert NUMBERED.search(b"OSError: [Errno 7] a") is not None
    assert NUMBERED.search(b"I0303 10:00:00.123456 14 train.py:12] ") is None
    assert label_digits.keyword_pattern((b"no digit", b"[Errno 28]")).pattern == rb"\[Errno\ \d\d\]"


@pytest.mark.parametrize(("deciding", "indexes"), [(b"7", []), (b"x", [5, 7, 8])])
def test_a_digit_that_decides_is_no_unread_digit(deciding: bytes, indexes: list[int]) -> None:
    raw = b"host-1:22 | loss 3"

    def parse(line: Line) -> StepLine | None:
        return None if deciding in line.text[:10] else StepLine([(Field("loss"), 17, 18)])

    line = Line(raw, 0)
    step = parse(line)
    assert step is not None
    assert label_digits.unread_digits(raw, line, step, parse, NUMBERED) == indexes
