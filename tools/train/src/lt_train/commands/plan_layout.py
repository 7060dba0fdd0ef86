"""`lt-train plan`: show the layout of a model on a cluster, which may be elsewhere, and the memory that each GPU needs."""

from typing import TYPE_CHECKING, Any

import click

from lt_shared import console
from lt_shared.console import ExitCode, UsageError
from lt_train.config import cluster
from lt_train.config.options import CONFIG, MEASURED_SUBJECTS, settings_options, with_training_defaults
from lt_train.config.settings import parallelism

if TYPE_CHECKING:
    from lt_train.planner.search import Choice

EXAMPLES = """
lt-train plan --model llama3.1-70b --bf16 --gpu h100-80gb --nodes 8 --global-batch-size 1024
lt-train plan --model gpt3-39.1b --fp16 --gpu a100-80gb --nodes 2 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4
"""


@click.command(
    "plan", cls=console.Command, examples=EXAMPLES, context_settings={"auto_envvar_prefix": "LT_TRAIN", "show_default": True}
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--ranks", type=cluster.GPUS_PER_NODE, help="Same as --gpus-per-node, with the name that a run has for it.")
@CONFIG
@cluster.OPTIONS
@settings_options(*MEASURED_SUBJECTS, without=("ranks", "device", "parallel"))
def command(as_json: bool, ranks: int | None, **options: Any) -> int:
    """Show which layout a model gets on a cluster.

    Also shows why, and the memory of a rank; needs no GPU. If the options set a layout (--tensor-model-parallel-size and so on),
    it shows whether that layout fits. Exit code 78 if nothing fits.
    """
    from lt_train.planner import layout_table

    choice = choose(ranks, options)
    if as_json:
        console.print_json(layout_table.record(choice))
    else:
        console.print_text(layout_table.table(choice))
    return ExitCode.OK if choice.best.fits else ExitCode.BAD_CONFIG


def choose(ranks: int | None, options: dict[str, Any]) -> "Choice":
    """Choose the layout for the command's options. Raises UsageError or BadConfig for a run that the cluster cannot train."""
    from lt_train.planner import layout_table, search

    target = cluster.planned_cluster(options | {"gpus_per_node": ranks or options["gpus_per_node"]})
    if target is None:
        raise UsageError("no --gpu", f"choose from {', '.join(cluster.GPUS)}")
    settings = with_training_defaults({name: value for name, value in options.items() if name not in cluster.NAMES})
    settings |= {
        "mock_data": True,
        "eval_iters": 0,
        "parallel": parallelism.MANUAL if search.layout_flags(settings) else parallelism.AUTO,
    }
    return layout_table.choose_layout(settings, target)
