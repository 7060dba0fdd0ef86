"""Throughput and MFU against figures that were measured and published elsewhere."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest

from lt_shared.models import presets
from lt_shared.models.peak_flops import FP8, FP32, HALF
from lt_train.metrics import throughput
from lt_train.metrics.throughput import Speedometer


def speedometer(model: str, layers: int | None, ranks: int, device_name: str) -> Speedometer:
    architecture = presets.preset(model)
    if layers:
        architecture = dataclasses.replace(architecture, num_layers=layers)
    batches: Any = SimpleNamespace(seq_length=8192)
    precision: Any = SimpleNamespace(fp8_format=None, half=True)
    return Speedometer(architecture, batches, precision, ranks, device_name)


@pytest.mark.parametrize(
    ("model", "layers", "ranks", "tokens_per_second_per_gpu", "tflops", "mfu"),
    [
        ("llama3.2-1b", None, 1, 56_312, 508, 0.514),
        ("llama3-8b", 8, 1, 36_905, 562, 0.568),
        ("llama3.1-8b", None, 2, 9_749, 502, 0.507),
    ],
)
def test_speeds_measured_with_another_program(
    model: str, layers: int | None, ranks: int, tokens_per_second_per_gpu: float, tflops: float, mfu: float
) -> None:
    """megatron-core with TransformerEngine on H200: six FLOPs per weight and token, attention halved, against 989 TFLOP/s."""
    seconds = 10_000.0
    samples = round(tokens_per_second_per_gpu * ranks * seconds / 8192)
    speed = speedometer(model, layers, ranks, "NVIDIA H200").speed(samples, seconds)
    assert speed.tokens_per_second == samples * 8192 / seconds
    assert speed.tokens_per_second_per_gpu == pytest.approx(tokens_per_second_per_gpu, rel=1e-3)
    assert speed.tflops_per_gpu == pytest.approx(tflops, rel=2e-3)
    assert speed.mfu == pytest.approx(mfu, abs=1e-3)


def test_an_unknown_device_has_speed_but_no_mfu() -> None:
    speed = speedometer("llama3.2-1b", None, 1, "cpu").speed(1, 1.0)
    assert speed.tflops_per_gpu > 0 and math.isnan(speed.mfu)


@pytest.mark.parametrize(("fp8_format", "half", "expected"), [(None, False, FP32), (None, True, HALF), ("hybrid", True, FP8)])
def test_the_type_of_the_matrix_products(fp8_format: str | None, half: bool, expected: str) -> None:
    precision: Any = SimpleNamespace(fp8_format=fp8_format, half=half)
    assert throughput.number_type(precision) == expected
