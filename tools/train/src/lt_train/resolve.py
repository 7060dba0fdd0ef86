"""The checked configuration of a run, with the best layout where `--parallel auto` asks for it."""

from typing import Any

from lt_shared.console import note
from lt_shared.manifest import Dataset
from lt_train import cluster, layout, place
from lt_train.checks import problems, problems_here
from lt_train.draft import assemble
from lt_train.run_config import RunConfig
from lt_train.settings import parallelism


def resolve(options: dict[str, Any], datasets: tuple[Dataset, ...]) -> RunConfig:
    """Raises UsageError or BadConfig for what cannot run, the first of its problems."""
    plan = assemble(options, datasets)
    if options["parallel"] == parallelism.AUTO:
        plan = _with_best_layout(plan, options)
    for problem in (*problems(plan), *problems_here(vars(plan))):
        raise problem
    return plan


def _with_best_layout(plan: RunConfig, options: dict[str, Any]) -> RunConfig:
    choice = layout.choose(plan, options, cluster.here(plan.parallelism.device, plan.parallelism.world_size))
    chosen = layout.require(choice)
    rank = place.find()
    if rank is None or rank.rank == 0:
        note(f"layout: {'; '.join(choice.reasons)}")
        note(f"layout: {' '.join(choice.best.flags) or 'no options'}")
    return chosen
