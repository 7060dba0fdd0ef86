"""The command line of lt-train: parses, resolves the plan, and runs it."""

from collections.abc import Callable
from typing import Any

import click

from lt_shared import console
from lt_train import __version__
from lt_train.plan import SUBJECTS

EXAMPLES = """
lt-preprocess corpus.jsonl --tokenizer gpt2/ --append-eod -o data/web | lt-train --model tiny --train-iters 20 --save run1 -
lt-train --model tiny --train-iters 20 --ranks 2 --save run2 0.7 data/web_text_document 0.3 data/code_text_document
lt-train --model llama3.1-8b --tensor-model-parallel-size 2 --ranks 8 --dry-run data/web_text_document
torchrun --nproc-per-node 2 -m lt_train --model tiny --train-iters 20 --save run3 data/web_text_document
"""


def settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of all subjects, in their order."""
    for subject in reversed(SUBJECTS):
        function = subject.OPTIONS(function)
    return function


@click.command(cls=console.Command, examples=EXAMPLES)
@click.version_option(__version__, "--version", prog_name="lt-train", message="%(prog)s %(version)s")
@click.argument("data", nargs=-1, required=True)
@settings_options
@click.option(
    "--config",
    type=click.Path(dir_okay=False),
    is_eager=True,
    callback=lambda *a: read_config(*a),
    expose_value=False,
    help="TOML file with any of these options, for example `seq-length = 4096`.",
)
@click.option("--dry-run", is_flag=True, help="Print the resolved plan as JSON and stop.")
def command(data: tuple[str, ...], dry_run: bool, **options: Any) -> None:
    """Pretrain a decoder language model on DATA with megatron-core.

    DATA is `-` (a manifest on standard input), `@FILE` (a manifest in a file), or dataset prefixes, each optionally preceded by
    its weight. Runs on its own ranks, or as a rank of torchrun or srun. Log lines go to standard error, one JSON line per
    checkpoint to standard output. The same command continues an interrupted run.
    """
    from lt_shared import manifest
    from lt_train import launch, resume
    from lt_train.plan import resolve

    datasets = manifest.datasets(manifest.read(data), " ".join(data))
    plan = resolve(options, tuple(datasets))
    if dry_run:
        plan = launch.prepare(plan)
        console.print_json(plan.as_record() | {"up_to_date": resume.is_finished(plan)})
        return
    launch.launch(plan)


def read_config(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Make the file's values the defaults; options and environment variables come before them."""
    if path is None:
        return
    from lt_train import config_file

    context.default_map = config_file.from_toml(path, {option.name for option in context.command.params if option.name})


def main() -> None:
    console.run(command, "lt-train")
