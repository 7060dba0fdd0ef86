"""How long ranks wait for each other, how often a failed run is restarted, and how often steps are checked."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig, ToolError, UsageError
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
        "--min-nodes",
        type=click.IntRange(min=1),
        help="Go on with at least this many nodes after a node is lost; take it back when it returns.",
    ),
    click.option(
        "--spare-nodes",
        type=click.IntRange(min=0),
        default=0,
        help="Let N of the job's nodes wait, and replace lost nodes; add --max-restarts.",
    ),
    click.option(
        "--wait-for-nodes",
        type=console.FiniteRange(min=0),
        default=60.0,
        metavar="SECONDS",
        help="With --min-nodes or --max-restarts, wait this long for missing nodes.",
    ),
    click.option(
        "--check-replay-interval",
        type=click.IntRange(min=1),
        help="Run every Nth step twice. If the results differ, report the rank and exit with 76.",
    ),
)


@dataclasses.dataclass(frozen=True)
class Faults:
    """`min_nodes` is None unless the run may go on after a node is lost.

    In an attempt of such a run, `present_nodes` of `all_nodes` nodes take part.
    """

    timeout_minutes: float
    max_restarts: int
    check_replay_interval: int | None = None
    min_nodes: int | None = None
    wait_for_nodes_seconds: float = 60.0
    present_nodes: int = 1
    all_nodes: int = 1
    spare_nodes: int = 0

    @property
    def timeout_seconds(self) -> float:
        return self.timeout_minutes * 60


def resolve_faults(options: dict[str, Any]) -> Faults:
    """Resolve the options. Raises UsageError for --min-nodes if the batch depends on the nodes, or without checkpoints."""
    if options["min_nodes"]:
        if not options["global_batch_size"] and not options["step_batch_size_schedule"]:
            raise UsageError(
                "--min-nodes without --global-batch-size: the batch would change with the number of nodes",
                "add --global-batch-size",
            )
        if not options["save"] or options["no_save_optim"]:
            raise UsageError("--min-nodes without checkpoints to go on from", "add --save, and drop --no-save-optim")
    return Faults(
        options["distributed_timeout_minutes"],
        options["max_restarts"],
        options["check_replay_interval"],
        options["min_nodes"],
        options["wait_for_nodes"],
        spare_nodes=options["spare_nodes"],
    )


def check(faults: Faults, memory: Memory) -> Iterator[ToolError]:
    """Yield BadConfig for options that contradict each other, and for step checks with FSDP.

    FSDP keeps no gradients by rank, so that no rank can be blamed.
    """
    if faults.spare_nodes and not faults.max_restarts:
        yield BadConfig("--spare-nodes without --max-restarts: no lost node would be replaced", "add --max-restarts")
    if faults.spare_nodes and faults.min_nodes:
        yield BadConfig("--spare-nodes with --min-nodes, which lets all nodes work", "drop one of them")
    if faults.check_replay_interval is not None and memory.fully_sharded:
        yield BadConfig(
            "--check-replay-interval with FSDP, which reduces gradients layer by layer: no rank keeps its own",
            "drop it, and compute steps again with lt-train replay",
        )
