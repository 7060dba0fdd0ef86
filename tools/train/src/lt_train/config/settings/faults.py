"""How long ranks wait for each other, and how often a failed run is restarted."""

import dataclasses
from typing import Any

import click

from lt_shared import console

OPTIONS = console.section(
    "Faults",
    click.option(
        "--distributed-timeout-minutes",
        type=console.FiniteRange(min=0, min_open=True),
        default=10.0,
        help="Without a step for so long, the run counts as hung and ends, naming the suspect.",
    ),
    click.option(
        "--max-restarts",
        type=click.IntRange(min=0),
        default=0,
        help="Restarts of failed ranks, from the newest checkpoint.",
    ),
)


@dataclasses.dataclass(frozen=True)
class Faults:
    timeout_minutes: float
    max_restarts: int

    @property
    def timeout_seconds(self) -> float:
        return self.timeout_minutes * 60


def resolve_faults(options: dict[str, Any]) -> Faults:
    return Faults(options["distributed_timeout_minutes"], options["max_restarts"])
