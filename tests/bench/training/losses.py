"""Whether lt-train's fast paths learn as its plain one: losses of the first steps beside those in fp32, on the same tokens."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from training import lt_train_bench
from training.workload import Shape, Workload

STEPS, AT_ONCE = 20, 5
SMALL = Shape("llama3.2-1b", 4, 512, 8, 4)
SMALLER = Shape("tiny", 4, 128, 4, 2)
# A few times what rounding to the type does to a mean loss over a batch.
TOLERANCES = {"bf16": 0.02, "fp8": 0.05}


def workload(device: str, paths: dict[str, tuple[str, dict[str, Any]]]) -> Workload:
    """Of small runs, by the name of a contender: its precision and its settings."""
    shape = SMALL if device == "cuda" else SMALLER
    return Workload(shape, "fp32", 1, device, 0, STEPS, {"paths": paths})


def prepare(work: Workload) -> None:
    """Every run is a process of its own."""


def measure(work: Workload) -> dict[str, Any]:
    """The largest difference of a step's loss from that in fp32, in nats per token, by contender; a GPU has room for all runs."""
    paths = work.settings["paths"]
    options = {
        name: lt_train_bench.options_of(dataclasses.replace(work, precision=precision, settings=settings))
        for name, (precision, settings) in paths.items()
    }
    with ThreadPoolExecutor(AT_ONCE if work.device == "cuda" else 1) as pool:
        plain = pool.submit(lt_train_bench.bench, work, [])
        runs = {name: pool.submit(lt_train_bench.bench, work, chosen) for name, chosen in options.items()}
        expected = plain.result()["losses"]
        return {
            name: {"difference": difference(run.result()["losses"], expected), "tolerance": TOLERANCES[paths[name][0]]}
            for name, run in runs.items()
        }


def difference(losses: list[float], expected: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(losses, expected, strict=True))
