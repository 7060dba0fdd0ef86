"""`lt-train replay`: compute steps of a run again from a checkpoint, to find out whether a machine computes wrong."""

import re
from typing import TYPE_CHECKING

import click

from lt_shared import console
from lt_shared.console import UsageError

if TYPE_CHECKING:
    from lt_train.config.run_config import RunConfig

EXAMPLES = """
lt-train replay run9 --steps 11:20
lt-train replay run9 --steps 16:20 --from run9/iter_0000010 --json
"""
STEPS = re.compile(r"(\d{1,15}):(\d{1,15})")


@click.command("replay", cls=console.Command, examples=EXAMPLES)
@click.argument("run")
@click.option("--steps", required=True, metavar="A:B", help="Compute steps A to B again, both included.")
@click.option(
    "--from", "start", metavar="CHECKPOINT", help="Start from this checkpoint; by default the newest complete one before A."
)
@click.option("--ranks", type=click.IntRange(min=1), help="Start this many ranks here; by default as many as the run had.")
@click.option(
    "--tolerance",
    type=console.FiniteRange(min=0),
    help="Accept this relative difference of the loss, and ten times as much of the gradient norm.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def command(run: str, steps: str, start: str | None, ranks: int | None, tolerance: float | None, as_json: bool) -> int:
    """Compute steps of a run again, and compare the results.

    Trains from a checkpoint with the configuration that the run recorded, compares with the run's metrics.jsonl, and writes
    nothing. If training is deterministic (on a CPU, or with --deterministic on GPUs), losses and gradient norms must be the same
    bit for bit, else within a tolerance. If a step differs, the command names it and ends with exit code 1.
    """
    from lt_train.launch import launcher

    return launcher.launch(_config(run, steps, start, ranks, tolerance, as_json))


def _config(run: str, steps: str, start: str | None, ranks: int | None, tolerance: float | None, as_json: bool) -> "RunConfig":
    from lt_train.checkpoint import replay_start

    match = STEPS.fullmatch(steps)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--steps {steps}: not A:B with 1 <= A <= B", "for example --steps 1001:1010")
    return replay_start.replay_config(run, int(match[1]), int(match[2]), start, ranks, tolerance, as_json)
