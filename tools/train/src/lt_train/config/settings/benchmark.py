"""How many steps `lt-train bench` measures, and what its training settings are beside those that it shows as options."""

import dataclasses
from typing import Any

import click

from lt_shared import console

# Options of the subjects that bench shows which have no meaning in it.
SETTLED = ("train_iters", "train_samples", "train_tokens", "rampup_batch_size", "seed")

OPTIONS = console.section(
    "Measurement",
    click.option("--steps", type=click.IntRange(min=1), default=10, help="Steps that are measured."),
    click.option("--warmup-steps", type=click.IntRange(min=0), default=5, help="Steps before them that are not."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table."),
)


@dataclasses.dataclass(frozen=True)
class Benchmark:
    steps: int
    warmup_steps: int
    as_json: bool


def resolve_benchmark(options: dict[str, Any]) -> Benchmark | None:
    """None for a training run, which does not have these options."""
    return Benchmark(options["steps"], options["warmup_steps"], options["as_json"]) if "warmup_steps" in options else None


def training_options(options: dict[str, Any]) -> dict[str, Any]:
    """The training settings of a measurement: made-up tokens, every step logged, nothing evaluated and nothing saved."""
    steps = options["warmup_steps"] + options["steps"]
    return {"mock_data": True, "train_iters": steps, "log_interval": 1, "eval_iters": 0}
