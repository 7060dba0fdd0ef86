"""The peaks by the names that devices have."""

import math

import pytest

from lt_shared.models.peak_flops import FP8, FP32, HALF, peak_flops
from lt_train.config.cluster import GPUS


@pytest.mark.parametrize(
    ("name", "number_type", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", HALF, 989),
        ("NVIDIA H100 80GB HBM3", FP8, 1979),
        ("NVIDIA H100 PCIe", HALF, 756),
        ("NVIDIA H100 NVL", HALF, 835),
        ("NVIDIA H200", HALF, 989),
        ("NVIDIA GH200 480GB", HALF, 989),
        ("NVIDIA GB200", HALF, 2500),
        ("NVIDIA A100-SXM4-80GB", HALF, 312),
        ("NVIDIA A100-SXM4-80GB", FP32, 19.5),
        ("NVIDIA A10G", HALF, 70),
        ("NVIDIA A10", HALF, 125),
        ("NVIDIA L40S", FP8, 733),
        ("Tesla V100-SXM2-16GB", HALF, 125),
        ("Tesla V100-PCIE-16GB", HALF, 112),
        ("h100-80gb", HALF, 989),
        ("h100 pcie", HALF, 756),
        *((name, HALF, peak_flops(name.partition("-")[0].upper(), HALF) / 1e12) for name in GPUS),
    ],
)
def test_peak_of_a_device_by_the_name_that_torch_gives_it(name: str, number_type: str, tflops: float) -> None:
    assert peak_flops(name, number_type) == tflops * 1e12


@pytest.mark.parametrize(
    ("name", "number_type"),
    [
        ("cpu", FP32),
        ("NVIDIA GeForce GTX 1080", HALF),
        ("NVIDIA H1000", HALF),
        ("NVIDIA A100-SXM4-80GB", FP8),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", HALF),
        ("GRID A100-10C vGPU", HALF),
    ],
)
def test_what_is_not_in_the_table_has_no_peak(name: str, number_type: str) -> None:
    assert math.isnan(peak_flops(name, number_type))
