"""How long ranks wait for each other, how often a failed run is restarted, and how often steps are checked."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig, ToolError
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.config.settings.memory import Memory

OPTIONS = console.section(
    "Faults",
    click.option(
        "--distributed-timeout-minutes",
        type=console.FiniteRange(min=0, min_open=True),
        default=10.0,
        help="End a hung run after this many minutes without a step, naming the suspected rank.",
    ),
    click.option(
        "--max-restarts",
        type=click.IntRange(min=0),
        default=0,
        help="Restart failed ranks from the newest checkpoint, at most this many times.",
    ),
    click.option(
        "--check-replay-interval",
        type=click.IntRange(min=1),
        help="Run every Nth step twice. If the results differ, report the rank and exit with 76.",
    ),
)


@dataclasses.dataclass(frozen=True)
class Faults:
    timeout_minutes: float
    max_restarts: int
    check_replay_interval: int | None = None

    @property
    def timeout_seconds(self) -> float:
        return self.timeout_minutes * 60


def resolve_faults(options: dict[str, Any]) -> Faults:
    return Faults(options["distributed_timeout_minutes"], options["max_restarts"], options["check_replay_interval"])


def check(faults: Faults, memory: Memory) -> Iterator[ToolError]:
    """Yield BadConfig for step checks with FSDP, which keeps no gradients by rank, so that no rank can be blamed."""
    if faults.check_replay_interval is not None and memory.fully_sharded:
        yield BadConfig(
            "--check-replay-interval with FSDP, which reduces gradients layer by layer: no rank keeps its own",
            "drop it, and compute steps again with lt-train replay",
        )


def check_copies(faults: Faults, settings: Checkpointing) -> Iterator[ToolError]:
    """Yield BadConfig for copies in memory that no restart would read."""
    if settings.replicate_interval is not None and not faults.max_restarts:
        yield BadConfig(
            "--replicate-interval without --max-restarts: the copies in memory end with lt-train, and nothing would read them",
            "add --max-restarts, or use --save-local, whose copies are files",
        )
