"""lt-train itself, through `lt-train bench --json`."""

import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from typing import Any

from training.workload import Result, Workload, say

OVERLAP = ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather")


def run(work: Workload) -> Result:
    found = bench(work, options_of(work))
    versions = dict(found["versions"])
    if found["transformer_impl"] == "te":
        versions["transformer-engine"] = metadata.version("transformer-engine")
    seconds = [found["fastest_step_seconds"], found["step_seconds"], found["slowest_step_seconds"]]
    tokens = found["global_batch_size"] * found["seq_length"]
    described = " ".join(options_of(work)[2:]) or "defaults"
    return Result(found["parameters"], tokens, seconds, found["memory_bytes"], found["losses"], described, versions)


def options_of(work: Workload) -> list[str]:
    """The precision, the layers, the ways of several GPUs, and what the caller adds."""
    options = ["--transformer-impl", work.settings["layers"], "--bf16"]
    if work.precision == "fp8":
        options += ["--fp8-format", "hybrid", "--fp8-recipe", work.settings["recipe"]]
    if work.gpus > 1:
        options += ["--use-torch-fsdp2"] if work.settings.get("fully_sharded") else OVERLAP
    return options + work.settings.get("options", "").split()


def bench(work: Workload, options: list[str]) -> dict[str, Any]:
    """The JSON object that lt-train prints. Raises RuntimeError with its last lines when it fails."""
    shape = work.shape
    command = [
        *(sys.executable, "-m", "lt_train", "bench", "--json", "--model", shape.model),
        *("--num-layers", str(work.architecture.num_layers), "--seq-length", str(shape.sequence_length)),
        *("--micro-batch-size", str(shape.micro_batch), "--global-batch-size", str(shape.samples * work.gpus)),
        *("--steps", str(work.steps), "--warmup-steps", str(work.warmup_steps)),
        *("--device", work.device, "--ranks", str(work.gpus), *options),
    ]
    say(" ".join(command[1:]))
    # As a rank of its own, not of the launcher that may have started this process.
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(command, cwd=place, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"lt-train bench ended with exit code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
