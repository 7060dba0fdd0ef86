"""Where a run is saved, how often, and what it starts from."""

import dataclasses
from typing import Any

import click

from lt_shared import console, storage

POSITIVE = click.IntRange(min=1)

OPTIONS = console.section(
    "Checkpoints",
    click.option("--save", type=click.Path(file_okay=False), help="Directory of the run: checkpoints, log, metrics."),
    click.option("--load", type=click.Path(file_okay=False), help="Start from this run or checkpoint when SAVE has none."),
    click.option("--save-interval", type=POSITIVE, default=1000, help="Steps between checkpoints; the last step always has one."),
)


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """`save` and `load` are directories.

    `start` is the checkpoint directory to start from, found after the plan was resolved; None is the beginning.
    """

    save: str | None
    load: str | None
    save_interval: int
    start: str | None = None


def resolve(options: dict[str, Any]) -> Checkpointing:
    if options["save"]:
        storage.require_local(options["save"], "training")
    return Checkpointing(options["save"], options["load"], options["save_interval"])
