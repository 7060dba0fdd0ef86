"""One rank of a run, started by lt-train on this node: `python -m lt_train.rank PLAN.json`, its place in the environment.

megatron-core's checkpoint writer spawns processes that import this module again, under another name: they must not start a rank,
and must not outlive this one.
"""

import logging
import os
import sys
import warnings
from pathlib import Path

import click

from lt_shared import console
from lt_shared.console import BadConfig
from lt_train import place, processes
from lt_train.place import Place
from lt_train.plan import Plan


@click.command(cls=console.Command)
@click.argument("plan_file", type=click.Path(dir_okay=False))
def command(plan_file: str) -> None:
    """Run one rank of the plan in PLAN_FILE."""
    here = place.find()
    if here is None:
        raise BadConfig("no rank in the environment", "start lt-train, which starts its own ranks")
    processes.die_with_launcher()
    plan = Plan.from_json(Path(plan_file).read_text())
    start(plan, here)


def start(plan: Plan, here: Place) -> None:
    """Prepare the device and train. megatron-core is imported after that: on a CPU it needs replacements to be in place."""
    from lt_train import device

    # megatron-core warns of every optional package that is not there and of its coming changes, on every rank.
    warnings.filterwarnings("ignore", module=r"megatron\.")
    logging.getLogger("megatron").setLevel(logging.ERROR)
    where = device.prepare(plan.parallelism.device, here)
    from lt_train.training import train

    train(plan, here, where)


def main() -> None:
    if len(sys.argv) == 1:
        raise SystemExit("lt_train.rank is started by lt-train")
    console.run(command, "lt-train")


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    processes.die_with(os.getppid())
