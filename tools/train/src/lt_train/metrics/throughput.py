"""Compute the speed of a run: tokens, floating-point operations and the share of the device's peak (MFU).

    MFU = FLOPs per token x tokens per second and GPU / peak FLOP/s of the GPU in the dtype of the GEMMs

FLOPs per token are `Architecture.flops_per_token`: six per weight of a GEMM plus attention over the causal half of the
sequence, forward and backward; recomputed operations are not counted. Megatron and TorchTitan count the whole square of
attention, so their figures for the same speed are higher: 13% for Llama 3 8B at 8192 tokens, 18% for Llama 3.2 1B.

A device whose peak `lt_shared.models.peak_flops` does not know has no MFU. With fp8 the peak is the fp8 peak.
"""

import dataclasses

from lt_shared.models.architecture import Architecture
from lt_shared.models.peak_flops import FP8, FP32, HALF, peak_flops
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.precision import Precision


@dataclasses.dataclass(frozen=True)
class Speed:
    """`mfu` is a share from 0 to 1, NaN if the device's peak is not known."""

    tokens_per_second: float
    tokens_per_second_per_gpu: float
    tflops_per_gpu: float
    mfu: float


class Speedometer:
    """Compute the speed of steps on `devices` devices with the name `device_name`."""

    def __init__(self, architecture: Architecture, batches: Batches, precision: Precision, devices: int, device_name: str):
        self.sequence_tokens = batches.seq_length
        self.devices = devices
        self.flops_per_token = architecture.flops_per_token(batches.seq_length)
        self.peak_flops = peak_flops(device_name, number_type(precision))

    def speed(self, samples: int, seconds: float) -> Speed:
        """Return the speed of steps that trained on `samples` samples in `seconds`."""
        tokens_per_second = samples * self.sequence_tokens / seconds
        per_gpu = tokens_per_second / self.devices
        flops = self.flops_per_token * per_gpu
        return Speed(tokens_per_second, per_gpu, flops / 1e12, flops / self.peak_flops)


def number_type(precision: Precision) -> str:
    """Return the dtype of most GEMMs."""
    if precision.fp8_format:
        return FP8
    return HALF if precision.half else FP32
