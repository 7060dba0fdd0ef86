"""lt-train itself: `lt-train bench --json`, in this process as one of torchrun's ranks, or in processes of its own."""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from training.contenders import is_importable
from training.workload import Result, Workload, say

OVERLAP = ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather")
IN_FLOAT32 = "--accumulate-allreduce-grads-in-fp32"


def prepare(work: Workload) -> None:
    for module in (
        "lt_train.train.training_run",
        "lt_train.models.pattern",
        "torch._dynamo",
        "flash_attn.cute.interface",
        "quack.epilogue",
    ):
        if is_importable(module):
            importlib.import_module(module)


def run(work: Workload) -> Result | None:
    """None on all ranks but the first."""
    printed = in_this_process(arguments(work, options_of(work)))
    if not printed:
        return None
    found = json.loads(printed)
    seconds = [found["fastest_step_seconds"], found["step_seconds"], found["slowest_step_seconds"]]
    tokens = found["global_batch_size"] * found["seq_length"]
    described = " ".join(options_of(work))
    return Result(found["parameters"], tokens, seconds, found["memory_bytes"], found["losses"], described, found["versions"])


def options_of(work: Workload) -> list[str]:
    """The precision, the ways of several GPUs, and what the caller adds."""
    options = ["--bf16"]
    if work.precision == "fp8":
        options += ["--fp8-format", work.settings.get("format", "hybrid"), "--fp8-recipe", work.settings["recipe"]]
    if work.settings.get("recomputes_swiglu"):
        options += ["--recompute-granularity", "selective", "--recompute-modules", "swiglu"]
    if work.settings.get("shared") == "tensor":
        options += ["--tensor-model-parallel-size", str(work.gpus), "--sequence-parallel", IN_FLOAT32]
    elif work.gpus > 1:
        options += ["--use-torch-fsdp2"] if work.settings.get("fully_sharded") else OVERLAP
        options += ["--context-parallel-size", str(work.gpus)] if work.settings.get("shared") else []
        options.append(IN_FLOAT32)
    return options + work.settings.get("options", "").split()


def arguments(work: Workload, options: list[str]) -> list[str]:
    shape = work.shape
    return [
        *("bench", "--json", "--model", shape.model),
        *("--num-layers", str(work.architecture.num_layers), "--seq-length", str(shape.sequence_length)),
        *("--micro-batch-size", str(shape.micro_batch), "--global-batch-size", str(shape.samples * work.gpus)),
        *("--steps", str(work.steps), "--warmup-steps", str(work.warmup_steps)),
        *("--device", work.device, "--ranks", str(work.gpus), *options),
    ]


def in_this_process(arguments: list[str]) -> str:
    """What lt-train prints. Raises RuntimeError when it fails."""
    from lt_train import cli

    say(" ".join(arguments))
    sys.argv = ["lt-train", *arguments]
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place), tempfile.TemporaryFile("w+") as printed:
        try:
            with output_into(printed):
                cli.main()
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"lt-train bench ended with exit code {end.code}") from end
        printed.seek(0)
        return printed.read()


@contextlib.contextmanager
def output_into(file: IO[str]) -> Iterator[None]:
    """Standard output by its descriptor: ranks that others have started hand theirs to libraries, and keep a copy for data."""
    sys.stdout.flush()
    stream, kept = sys.stdout, os.dup(sys.stdout.fileno())
    os.dup2(file.fileno(), stream.fileno())
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout = stream
        os.dup2(kept, stream.fileno())
        os.close(kept)


def bench(work: Workload, options: list[str]) -> dict[str, Any]:
    """The JSON object that lt-train prints, run by itself. Raises RuntimeError when it fails."""
    command = [sys.executable, "-m", "lt_train", *arguments(work, options)]
    say(" ".join(command[1:]))
    # Not as the rank that this process is.
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(command, cwd=place, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"lt-train bench ended with exit code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
