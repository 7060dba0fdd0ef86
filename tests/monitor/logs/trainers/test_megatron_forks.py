"""Megatron's step lines in the spelling of its forks, as real runs printed them."""

from typing import Any

import pytest
from trainer_logs import events, log_path, summary, values

from lt_monitor.logs.fields import read_values
from lt_monitor.logs.lines import Line
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.logs.trainers import megatron


def test_bigscience() -> None:
    step = events("megatron", "step")[1]
    assert values(step) == {
        "step": 31251,
        "total_steps": 115311,
        "consumed_samples": 47844272,
        "metrics": {"consumed tokens": 97985069056.0},
        "step_seconds": 106.13,
        "learning_rate": 5.277e-05,
        "global_batch_size": 2048,
        "loss": 2.235667,
        "grad_norm": 0.205,
        "zeros": 0.0,
        "skipped_steps": 0,
        "nan_steps": 0,
        "samples_per_second": 19.297,
        "tflops_per_gpu": 147.75,
    }


def test_alcf() -> None:
    step = events("megatron", "step")[3]
    assert values(step) == {
        "step": 136010,
        "total_steps": 136100,
        "consumed_samples": 835645440,
        "metrics": {"consumed_tokens": 6845607444480.0, "actual_seqlen": 8192.0},
        "step_seconds": 3.4015,
        "learning_rate": 2.01191e-05,
        "global_batch_size": 6144,
        "loss": 11.142616,
        "loss_scale": 1.0,
        "grad_norm": 184.646,
        "skipped_steps": 0,
        "nan_steps": 0,
        "samples_per_second": 1806.288,
        "tokens_per_second_per_gpu": 4816.769,
        "tflops_per_gpu": 53.88,
        "time": "2025-11-10T09:44:01.981208",
    }
    (evaluation,) = events("megatron", "eval")
    assert (evaluation["step"], evaluation["loss"], evaluation["split"]) == (137650, 2.69778, "validation")


def test_every_line_is_a_step_with_its_loss() -> None:
    found = [(record["step"], record.get("loss")) for record in events("megatron", "step")]
    assert found == [
        (31250, 2.215699),
        (31251, 2.235667),
        (136004, 12.316531),
        (136010, 11.142616),
        (1, 12.44238),
        (2, 12.44502),
        (3, 41.03157),
        (34, 11.18665),
        (71, 1.818812),
        (72, 1.820313),
        (100, 7.968678),
        (5426, None),
        (12125, 2.352391),
    ]


def test_gpt_neox() -> None:
    step = next(record for record in events("megatron", "step") if record["step"] == 34)
    assert (step["samples_per_second"], step["tflops_per_gpu"], step["step_seconds"]) == (7.799, 112.9, 4.1031)
    assert "metrics" not in step


def test_other_losses_are_metrics() -> None:
    step = next(record for record in events("megatron", "step") if record["step"] == 100)
    assert step["metrics"] == {"load_balancing_loss": 1.329517, "mtp_1 loss": 7.925096}


def test_primus() -> None:
    step = events("megatron", "step")[-1]
    assert (step["step_seconds"], step["tflops_per_gpu"], step["tokens_per_second_per_gpu"]) == (
        pytest.approx(2.7013),
        210.5,
        12130.4,
    )


def test_steps_that_differ_in_every_digit_are_read_by_columns() -> None:
    """Also behind a slash and in what is no field."""
    lines = log_path("megatron").read_bytes().splitlines(keepends=True)
    raw = next(line for line in lines if b"hip mem" in line)
    other = raw.replace(b"2701.3/2712.7", b"2655.9/2701.1").replace(b"227.35GB/28.63GB", b"231.18GB/24.80GB")
    block = LogParser().parse((raw + other) * 40, 0)
    assert sum(len(rows.offsets) for rows in block.rows) >= 48
    records = block.records("log", "log")
    assert [record["step_seconds"] for record in records] == [2701.3 / 1000, 2655.9 / 1000] * 40
    assert records[-1]["metrics"] == {"hip mem usage/free/total/usage_ratio": 231.18}


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("throughput (token/sec/GPU) : 3120.5", {"tokens_per_second_per_gpu": 3120.5}),
        ("throughput (tflops/sec/GPU) : 211.5", {"tflops_per_gpu": 211.5}),
        ("tokens/sec/gpu: 3120.5", {"tokens_per_second_per_gpu": 3120.5}),
        ("tokens per gpu per second (tgs): 142.612", {"tokens_per_second_per_gpu": 142.612}),
        ("compute per GPU (TFLOP/s/GPU): 615.5 (avg 615.4)", {"tflops_per_gpu": 615.5}),
        ("tokens/s/GPU inst/harmonic mean: 11941.8/11941.2", {"tokens_per_second_per_gpu": 11941.8}),
        ("approx flops per GPU: 0.2PFLOPS", {"tflops_per_gpu": 200.0}),
        ("approx flops per GPU: 812.5GFLOPS", {"tflops_per_gpu": 0.8125}),
        ("LM loss: 2.5E+00", {"loss": 2.5}),
        ("loss: 2.5", {"loss": 2.5}),
        ("elapsed time per iteration (s): 12.50", {"step_seconds": 12.5}),
    ],
)
def test_spellings_of_a_pair(pair: str, expected: dict[str, Any]) -> None:
    text = f" iteration        5/      10 | {pair} | number of nan iterations:   0 |".encode()
    line = Line(text, 0)
    found = megatron.step(line)
    assert found is not None
    assert read_values(text, found.values) == {"step": 5, "total_steps": 10, "nan_steps": 0, **expected}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            " validation results at iteration 100 | lm_loss value: 6.912345E+00 | lm_loss_ppl value: 1.004E+03 | ",
            {"step": 100, "loss": 6.912345, "split": "validation"},
        ),
        (" test results at iteration 100 | lm_loss value: 6.5E+00 | ", {"step": 100, "loss": 6.5, "split": "test"}),
        (" validation loss at iteration 9 on test set | lm loss value: 6.5E+00 | ", {"step": 9, "loss": 6.5, "split": "test"}),
        (
            " validation loss at iteration 9 | lm loss value: nan | ",
            {"step": 9, "loss": None, "split": "validation"},
        ),
    ],
)
def test_validation(line: str, expected: dict[str, Any]) -> None:
    assert megatron.evaluation(Line(line.encode(), 0)) == {"kind": "eval", **expected}


def test_summary(tool: Any) -> None:
    found = summary(tool, "megatron")
    assert (found["step"], found["total_steps"], found["loss"]) == (12125, 36000, 2.352391)
    assert (found["tflops_per_gpu"], found["tokens_per_second_per_gpu"]) == (210.5, 12130.4)
