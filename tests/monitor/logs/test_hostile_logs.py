"""No line takes long, whoever wrote it: the time for a byte is bounded, and nothing of a line is believed beyond its words."""

import json
import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_monitor.logs import lines
from lt_monitor.logs.deduplication import Deduplicator
from lt_monitor.logs.dumps import START_ARGUMENTS
from lt_monitor.logs.fast import step_templates
from lt_monitor.logs.formats import benchmarks, devices, jobs, nccl, process_exits, table
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.logs.trainers import megatron, nemo, torchtitan
from lt_shared.contracts import run_log

MICROSECONDS_PER_BYTE = 20.0
LINE_BYTES = 20_000

MODULES = (run_log, lines, benchmarks, devices, jobs, megatron, nccl, nemo, process_exits, torchtitan)
PATTERNS = [
    (f"{module.__name__}.{name}", value)
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, re.Pattern)
]
KEYWORDS = [*table.keywords(), b'{"v":1,"kind":"step"', b"---- arguments ----", b"(min, max) time across ranks (ms):"]
PIECES = [b" ", b"  ", b"0", b"123", b": ", b"| ", b" |", b"a", b"_", b".", b"-", b"[", b"]", b"(", b"\x1b[", b"\xff", b"="]
PIECES += [b", ", b"'", b'"', b"{"]


def seconds_of(content: bytes) -> float:
    """Processor time, best of three: other processes do not count."""
    times = []
    for _ in range(3):
        begin = time.process_time()
        Deduplicator().new_lines(LogParser().parse(content, 0), "a", "a")
        times.append(time.process_time() - begin)
    return min(times)


@settings(max_examples=60)
@given(st.sampled_from(KEYWORDS), st.lists(st.sampled_from([*PIECES, *KEYWORDS]), min_size=1, max_size=4), st.booleans())
def test_a_line_of_repeated_pieces_takes_no_longer_than_its_length(keyword: bytes, pieces: list[bytes], ends: bool) -> None:
    unit = b"".join(pieces)
    line = (unit * (LINE_BYTES // len(unit) + 1))[:LINE_BYTES]
    content = (line + keyword if ends else keyword + line) + b"\n"
    assert seconds_of(content) * 1e6 / len(content) < MICROSECONDS_PER_BYTE


def test_every_pattern_is_bounded() -> None:
    """No repetition without a limit stands before something else that can match the same: what makes patterns explode."""
    unbounded = re.compile(rb"(?<!\\)[*+](?![*+?]|\)?\$|\Z)")
    allowed = rb"\s*$"
    for name, pattern in PATTERNS:
        rest = pattern.pattern.replace(allowed, b"").replace(rb"\s*\Z", b"")
        rest = re.sub(rb"\[[^\]]*\]", b"x", re.sub(rb"\\.", b"x", rest))
        assert not unbounded.search(rest), name


def test_noise_of_every_byte_gives_no_event() -> None:
    content = random.Random(0).randbytes(3_000_000)
    assert LogParser().parse(content, 0).items == []


@given(st.lists(st.one_of(st.binary(max_size=30), st.sampled_from(KEYWORDS)), max_size=20))
def test_any_bytes_give_json_without_control_characters(pieces: list[bytes]) -> None:
    for line in Deduplicator().new_lines(LogParser().parse(b"".join(pieces) + b"\n", 0), "a\x1b\n", "run"):
        assert json.loads(line)["src"]["file"] == "a\x1b\n"
        assert not re.search(rb"[\x00-\x1f\x7f]", line.replace(b"\x7f", b""))


def test_a_message_is_short_and_escapes_do_not_reach_a_terminal() -> None:
    content = b"RuntimeError: \x1b]0;owned\x07\x1b[2J<script>" + b"x" * 100_000 + b"\n"
    (line,) = Deduplicator().new_lines(LogParser().parse(content, 0), "a", "a")
    assert b"\x1b" not in line and b"\x07" not in line
    assert len(json.loads(line)["message"]) <= 500


@pytest.mark.parametrize("name", ["__class__", "save", "x" * 80])
def test_arguments_that_are_not_known_are_left_out(name: str) -> None:
    content = f"--- arguments ---\n  {name} .... 7\n--- end of arguments ---\n".encode()
    ((_, record),) = LogParser().parse(content, 0).items
    assert set(record["arguments"]) <= START_ARGUMENTS


def test_a_dump_that_never_ends_is_given_up() -> None:
    parser = LogParser()
    parser.parse(b"--- arguments ---\n" + b"  seq_length .... 7\n" * 10, 0)
    offset = 1000
    for _ in range(3):
        block = b"noise\n" * 100_000
        parser.parse(block, offset)
        offset += len(block)
    assert parser.to_record()["dumps"]["arguments"] is None
    assert step_templates.MAXIMUM_TEMPLATE_BYTES < LINE_BYTES


@pytest.mark.parametrize(
    "line",
    [
        "Processed 5 documents (1..2 docs/s, e+e MB/s).",
        "Finished saving the checkpoint in 1.2.3 seconds.",
        "checkpoint of iteration 5: training waited ... s of ... s",
        "Step Time : .s GPU utilization: ..MODEL_TFLOP/s/GPU",
        " validation loss at iteration 5 | lm loss value: five |",
        "(min, max) time across ranks (ms):\n    forward ...: (1.1.1, 2)\n    all ...: (1, 2)\nend",
        " iteration 5/ 10 | consumed samples: 9e300 | lm loss: 1.0 |",
        " iteration 5/ 10 | consumed samples: -9 | lm loss: 1.0 |",
        " iteration 999999999999999/ 10 | lm loss: 9e999 | number of nan iterations: 0 |",
        "Epoch 0: 1/2 [reduced_train_loss=1.0, global_step=1e300]",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ..... GiB",
        "--- arguments ---\n  seq_length .... 99999999999999999999999999\n  lr .... 1e999\n--- end of arguments ---",
        "Running with args: {'training': {'steps': " + "(" * 2000 + "}}",
        "Building 9-D device mesh with ['x'], [" + "9, " * 26 + "9]",
        '{"v":1,"kind":"step","step":99999999999999999999}',
        '{"v":1,"kind":"step","step":1,"loss":1e999,"run":"\\ud800"}',
    ],
)
def test_numbers_that_are_none_do_not_stop_the_reading(line: str) -> None:
    for encoded in Deduplicator().new_lines(LogParser().parse(line.encode() + b"\n", 0), "a", "a"):
        record = json.loads(encoded, parse_constant=lambda constant: pytest.fail(constant))
        assert record["kind"] not in ("step", "eval") or record["step"] < 2**53
