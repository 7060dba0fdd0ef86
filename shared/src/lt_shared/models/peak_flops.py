"""Peak FLOP/s by device, from which lt-train and lt-monitor compute the MFU.

Peaks are the vendors' dense figures, without sparsity and at full clock. A device outside the table has no MFU.
"""

import math

# Dense TFLOP/s of GEMMs by input dtype, with fp32 accumulation. HALF is fp16 and bf16; FP32 is without TF32.
HALF, FP8, FP32 = "half", "fp8", "fp32"
PEAKS: dict[str, dict[str, float]] = {
    "B200": {HALF: 2250, FP8: 4500, FP32: 75},
    "GB200": {HALF: 2500, FP8: 5000, FP32: 80},
    "B100": {HALF: 1750, FP8: 3500, FP32: 60},
    "H200": {HALF: 989, FP8: 1979, FP32: 67},
    "H200 NVL": {HALF: 835, FP8: 1671, FP32: 60},
    "GH200": {HALF: 989, FP8: 1979, FP32: 67},
    "H100": {HALF: 989, FP8: 1979, FP32: 67},
    "H100 NVL": {HALF: 835, FP8: 1671, FP32: 60},
    "H100 PCIe": {HALF: 756, FP8: 1513, FP32: 51},
    "H800": {HALF: 989, FP8: 1979, FP32: 67},
    "H800 PCIe": {HALF: 756, FP8: 1513, FP32: 51},
    "H20": {HALF: 148, FP8: 296, FP32: 44},
    "A100": {HALF: 312, FP32: 19.5},
    "A800": {HALF: 312, FP32: 19.5},
    "A40": {HALF: 149.7, FP32: 37.4},
    "A30": {HALF: 165, FP32: 10.3},
    "A10": {HALF: 125, FP32: 31.2},
    "A10G": {HALF: 70, FP32: 35},
    "L40S": {HALF: 362, FP8: 733, FP32: 91.6},
    "L40": {HALF: 181, FP8: 362, FP32: 90.5},
    "L4": {HALF: 121, FP8: 242, FP32: 30.3},
    "V100": {HALF: 125, FP32: 15.7},
    "V100 PCIE": {HALF: 112, FP32: 14},
    "T4": {HALF: 65, FP32: 8.1},
}
# Names with these words are fractions of a GPU, and do not say which fraction.
FRACTIONAL_GPU_WORDS = {"MIG", "GRID", "VGPU"}


def peak_flops(device_name: str, number_type: str) -> float:
    """The device's peak FLOP/s for `number_type` (HALF, FP8 or FP32); NaN when it is not in the table.

    `device_name` is as torch reports it, for example "NVIDIA H100 80GB HBM3" or "NVIDIA A100-SXM4-80GB", or as lt-train's plans
    call it, "h100-80gb".
    """
    words = set(device_name.upper().replace("-", " ").split())
    if words & FRACTIONAL_GPU_WORDS:
        return math.nan
    device_names = [name for name in PEAKS if words.issuperset(name.upper().split())]
    if not device_names:
        return math.nan
    closest = max(device_names, key=lambda name: len(name.split()))
    return PEAKS[closest].get(number_type, math.nan) * 1e12
