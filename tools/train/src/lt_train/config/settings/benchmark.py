"""The steps that `lt-train bench` measures, and the training settings that it fixes."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadData
from lt_shared.files import storage, strict_json

# Training options that `lt-train bench` does not accept: `training_options` sets the length, and the batch size is constant.
SETTLED = ("train_iters", "train_samples", "train_tokens", "rampup_batch_size", "step_batch_size_schedule", "seed")

OPTIONS = console.section(
    "Measurement",
    click.option("--steps", type=click.IntRange(min=1), default=10, help="Measure this many steps."),
    click.option("--warmup-steps", type=click.IntRange(min=0), default=5, help="Run this many steps first, unmeasured."),
    click.option(
        "--against",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Compare with this --json of another number of layers (seconds per layer) or layout (relative speed).",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table."),
)
KIND = "bench"
# Fields of the earlier result that the comparison reads.
COMPARED = ("layers", "step_seconds", "tokens_per_second_per_gpu")
MEASURE = "write it by `lt-train bench ... --json > FILE`"


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """`against` is the result of an earlier measurement."""

    steps: int
    warmup_steps: int
    as_json: bool
    against: dict[str, Any] | None = None


def resolve_benchmark(options: dict[str, Any]) -> Benchmark | None:
    """Resolve the options, or return None for a training run, which does not have them."""
    if "warmup_steps" not in options:
        return None
    against = _read_earlier_result(options["against"]) if options["against"] else None
    return Benchmark(options["steps"], options["warmup_steps"], options["as_json"], against)


def _read_earlier_result(path: Path) -> dict[str, Any]:
    try:
        result = strict_json.loads(storage.read_record(path))
    except ValueError as error:
        raise BadData(f"{path}: not the result of lt-train bench --json: {error}", MEASURE) from None
    if not isinstance(result, dict) or result.get("kind") != KIND:
        raise BadData(f"{path}: not the result of lt-train bench --json", MEASURE)
    for name in COMPARED:
        number = result.get(name)
        if not isinstance(number, int | float) or not 0 < number < math.inf:
            raise BadData(f"{path}: {name} is {number!r}, no positive number", MEASURE)
    return result


def training_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the training options of a benchmark: synthetic tokens, every step logged, no evaluation."""
    steps = options["warmup_steps"] + options["steps"]
    return {"mock_data": True, "train_iters": steps, "log_interval": 1, "eval_iters": 0}
