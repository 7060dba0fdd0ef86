"""Lines that are read by columns say exactly what each of them says alone."""

import datetime
import json
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lt_monitor.events.steps import Steps
from lt_monitor.logs.deduplication import Deduplicator
from lt_monitor.logs.fast import step_templates
from lt_monitor.logs.log_parser import LogParser
from lt_shared.contracts import run_log

Writer = Callable[[random.Random, int], str]


class Steady(random.Random):
    """Numbers vary, words do not."""

    def choice(self, options: Any) -> Any:
        return options[0]


def moment(choice: random.Random, step: int) -> datetime.datetime:
    return datetime.datetime(2026, 3, 28, 20) + datetime.timedelta(seconds=step * 977 + choice.random())


def megatron(choice: random.Random, step: int) -> str:
    step_line = run_log.Step(
        step=step,
        total_steps=100_000,
        consumed_samples=step * 2048,
        step_seconds=choice.choice([0.087, 1.2, 15.8, 270.1254]) * choice.random(),
        tflops_per_gpu=choice.random() * 600,
        learning_rate=choice.choice([0.0, 3e-4, 1.638e-8, 2e-30]) * choice.random(),
        global_batch_size=2048,
        loss=choice.choice([11.0, 2.5, 1e-3, -0.5]) * choice.random(),
        loss_scale=choice.choice([1.0, 4294967296.0]),
        grad_norm=choice.choice([0.1, 9.0, 1e4, math.nan]) * choice.random(),
        skipped_steps=choice.choice([0, 1]),
        nan_steps=0,
        time=moment(choice, step),
        mfu=choice.choice([0.41, math.nan]),
        memory_bytes=choice.randrange(1 << 36),
    )
    return choice.choice(["", "1: ", " 3: ", "12: "]) + step_line.format()


def torchtitan(choice: random.Random, step: int) -> str:
    stamp = f"{moment(choice, step):%Y-%m-%d %H:%M:%S},{choice.randrange(1000):03d}"
    mfu = choice.choice(["N/A", f"{choice.random() * 60:.2f}%"])
    return (
        f"[rank{choice.choice([0, 0, 0, 1])}]:[titan] {stamp} - root - INFO - \x1b[31mstep: {step:2}"
        f"  \x1b[32mloss: {choice.random() * 12:8.5f}  \x1b[38;2;180;60;0mgrad_norm: {choice.random() * 30:7.4f}"
        f"  \x1b[38;2;54;234;195mmemory: {choice.random() * 80:5.2f}GiB({choice.random() * 100:.2f}%)"
        f"  \x1b[34mtps: {choice.randrange(12_000):,}  \x1b[36mtflops: {choice.random() * 2000:,.2f}  \x1b[35mmfu: {mfu}\x1b[39m"
    )


def nemo(choice: random.Random, step: int) -> str:
    return (
        f"Training epoch {step // 2000}, iteration {step % 2000}/2000 | lr: {choice.random() * 1e-4:.4g} | "
        f"global_batch_size: 8 | global_step: {step} | reduced_train_loss: {choice.random() * 3:.4g} | "
        f"train_step_timing in s: {choice.random() * 3:.4g} | consumed_samples: {step * 8}"
    )


def bar(choice: random.Random, step: int) -> str:
    part = step % 2000
    rate = choice.choice(
        [f"{100 + choice.random() * 300:.2f}s/it", f"{choice.random() * 9:.2f}it/s", f"{choice.random() / 9:.2f}it/s"]
    )
    return (
        f"Epoch {step // 2000}: : {part // 20:3}%|{'█' * (part // 1000):<10}| {part}/2000 "
        f"[{part // 60:02}:{part % 60:02}<{choice.randrange(60):02}:10, {rate}, v_num=2, "
        f"reduced_train_loss={choice.random() * 3:.3f}, global_step={step}.000, consumed_samples={step * 8}.0]"
    )


def nanochat(choice: random.Random, step: int) -> str:
    return (
        f"step {step:05d}/05000 ({step / 50:.2f}%) | loss: {choice.random() * 9:.6f} | lrm: 1.00 | "
        f"dt: {choice.random() * 900:.2f}ms | tok/sec: {choice.randrange(2_000_000):,} | "
        f"bf16_mfu: {choice.random() * 60:.2f} | epoch: 1 | total time: {step / 100:.2f}m"
    )


def kubernetes(choice: random.Random, step: int) -> str:
    return f"2026-03-28T20:00:00.{choice.randrange(10**9):09d}Z [pod/gpt-worker-3/pytorch] {megatron(choice, step)}"


def experts(choice: random.Random, step: int) -> str:
    pairs = (
        f"load_balancing_loss: {choice.random():.6E} | mtp_1 loss: {choice.random():.6E} | iteration time: 2.5 s samples/sec: 3.8"
    )
    return megatron(choice, step).replace(" loss scale:", f" {pairs} | loss scale:")


WRITERS: dict[str, Writer] = {
    writer.__name__: writer for writer in (megatron, torchtitan, nemo, bar, nanochat, kubernetes, experts)
}
NOISE = [
    "",
    "NCCL INFO Channel 00",
    "step: one",
    "iteration 5/ 10 | torn lm loss: 1.",
    "torch.OutOfMemoryError: CUDA out of memory.",
]


def one_by_one(content: bytes) -> list[bytes]:
    """The records of each line, parsed alone."""
    lines, offset, parser, deduplicator = [], 0, LogParser(), Deduplicator()
    for line in content.splitlines(keepends=True):
        lines += deduplicator.new_lines(parser.parse(line, offset), "a.log", "a")
        offset += len(line)
    return lines


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", list(WRITERS))
def test_a_block_says_what_its_lines_say(name: str, seed: int) -> None:
    choice = random.Random(seed)
    steps, step = [], 0
    for _ in range(300):
        step += choice.choice([0, 1, 1, 1, 10, 40, -7 if step > 7 else 1])
        steps += [choice.choice(NOISE)] if choice.random() < 0.1 else []
        steps.append(WRITERS[name](choice, step))
    content = "\n".join(steps).encode() + b"\n"
    lines = Deduplicator().new_lines(LogParser().parse(content, 0), "a.log", "a")
    assert lines == one_by_one(content)
    parser, deduplicator = LogParser(), Deduplicator()
    middle = content.index(b"\n", len(content) // 2) + 1
    halves = [(content[:middle], 0), (content[middle:], middle)]
    assert [line for half, offset in halves for line in deduplicator.new_lines(parser.parse(half, offset), "a.log", "a")] == lines


@pytest.mark.parametrize("name", list(WRITERS))
def test_most_lines_are_read_by_columns_and_curves_are_the_same(name: str) -> None:
    choice = Steady(1)
    content = "\n".join(WRITERS[name](choice, step) for step in range(1, 1500)).encode() + b"\n"
    parser = LogParser()
    block = parser.parse(content, 0)
    assert sum(len(part.offsets) for part in block.rows) > 450
    records = block.records("a", "a")
    assert [
        json.loads(line) for line in Deduplicator().new_lines(LogParser().parse(content, 0), "a", "a")
    ] == Deduplicator().new_records(records)
    rows = [record for part in block.rows for record in part.records("a", "a")]
    rows.sort(key=lambda record: record["src"]["offset"])
    steps, expected = block.step_block().steps, Steps.from_records(rows)
    assert steps.numbers.tolist() == expected.numbers.tolist()
    assert set(expected.columns) <= set(steps.columns)
    for field, values in expected.columns.items():
        np.testing.assert_array_equal(steps.column(field), values)
    np.testing.assert_allclose(steps.times, expected.times, rtol=0, atol=2e-6)


def test_rates_too_small_for_a_time_are_null_in_their_lines_alone() -> None:
    line = (
        "Epoch 0: : 50%|#####| 1000/2000 [00:10<00:10, 0.0{}it/s, v_num=2, reduced_train_loss=2.5, global_step=1{:03d}.000, "
        "consumed_samples=8000.0]"
    )
    content = "".join(line.format(8 if step % 2 else 2, step) + "\n" for step in range(400)).encode()
    block = LogParser().parse(content, 0)
    assert block.rows
    seconds = [record["step_seconds"] for record in block.records("a", "a")]
    assert seconds == [12.5 if step % 2 else None for step in range(400)]


def test_values_at_the_edge_of_float64_are_exact() -> None:
    texts = [
        "0.1",
        "-0.0",
        "9.007199254740993E+15",
        "1.7E-23",
        "1.234567E+22",
        "3.3E+23",
        "2.2250738585072E-308",
        "999999999999.999",
    ]
    losses = {step: texts[step % len(texts)] for step in range(1000, 2000)}
    lines = [f" iteration {step}/ 9000 | lm loss: {loss} | grad norm: 1.0 |\n" for step, loss in losses.items()]
    content = "".join(lines).encode()
    block = LogParser().parse(content, 0)
    assert block.rows
    for record in block.records("a", "a"):
        assert repr(record["loss"]) == repr(float(losses[record["step"]]))


def test_digits_that_are_no_time_are_left_out_either_way() -> None:
    lines = [
        f" [2026-01-{day:02d} 07:32:24] iteration {step}/ 9000 | lm loss: 1.5 |\n"
        for step in range(1000, 1400)
        for day in (5, 41)
    ]
    records = LogParser().parse("".join(lines).encode(), 0).records("a", "a")
    assert {record.get("time") for record in records} == {"2026-01-05T07:32:24", None}


def test_shapes_without_end_do_not_fill_the_memory() -> None:
    parser = LogParser()
    for step in range(9000):
        parser.parse(f" iteration {step}/ 9000 | x{'y' * (step % 97)}{chr(97 + step % 26)}: 1 | lm loss: 1.5 |\n".encode(), 0)
    assert len(parser._templates) <= step_templates.MAXIMUM_TEMPLATES
