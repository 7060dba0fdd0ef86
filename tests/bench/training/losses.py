"""Whether lt-train's fast paths learn as its plain one: losses of the first steps beside those in fp32, on the same tokens."""

import dataclasses
from typing import Any

from training import lt_train_bench
from training.workload import Shape, Workload

STEPS = 20
SMALL = Shape("llama3.2-1b", 4, 512, 8, 4)
SMALLER = Shape("tiny", 4, 128, 4, 2)
# A few times what rounding to the type does to a mean loss over a batch.
TOLERANCES = {"bf16": 0.02, "fp8": 0.05}


def largest_difference(work: Workload) -> float:
    """In nats per token, between `work`'s path and plain fp32."""
    fast = lt_train_bench.bench(work, lt_train_bench.options_of(work))
    plain = lt_train_bench.bench(work, ["--transformer-impl", "torch"])
    return max(abs(one - other) for one, other in zip(fast["losses"], plain["losses"], strict=True))


def small(device: str, precision: str, settings: dict[str, Any]) -> Workload:
    """The same path at a small size."""
    shape = SMALL if device == "cuda" else SMALLER
    return Workload(shape, precision, 1, device, 0, STEPS, settings)


def measure(work: Workload) -> dict[str, Any]:
    difference = largest_difference(dataclasses.replace(work, warmup_steps=0, steps=STEPS))
    return {"difference": difference, "tolerance": TOLERANCES[work.precision], "steps": STEPS}
