"""The checked configuration of a run, with the best layout if `--parallel auto` asks for it."""

from typing import Any

from lt_shared.console import note
from lt_shared.contracts.manifest import Dataset
from lt_train.config import cluster
from lt_train.config.checks import problems, problems_here
from lt_train.config.draft import assemble
from lt_train.config.run_config import RunConfig
from lt_train.config.settings import parallelism
from lt_train.planner import search
from lt_train.planner.search import Choice
from lt_train.process import rank_environment


def resolve_run_config(
    options: dict[str, Any], datasets: tuple[Dataset, ...], nodes: int | None = None, world_size: int | None = None
) -> RunConfig:
    """Resolve and check the options. Raises UsageError or BadConfig, the first problem, if the run cannot work.

    `nodes` and `world_size` are by default those that the launcher has started.
    """
    config = assemble(options, datasets, world_size=world_size)
    if options["parallel"] == parallelism.AUTO:
        here = cluster.local_cluster(config.parallelism.device, config.parallelism.world_size, nodes)
        choice = search.choose(config, options, here)
        config = search.require_fitting(choice)
        _note_layout(choice)
    for problem in (*problems(config), *problems_here(vars(config))):
        raise problem
    return config


def _note_layout(choice: Choice) -> None:
    """Tell the user which layout was chosen, once for all ranks."""
    rank = rank_environment.find()
    if rank is None or rank.rank == 0:
        note(f"layout: {'; '.join(choice.reasons)}")
        note(f"layout: {' '.join(choice.best.flags) or 'no options'}")
