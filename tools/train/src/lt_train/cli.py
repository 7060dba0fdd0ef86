"""The command line of lt-train: parses, resolves the plan, and runs it.

Training has no name of its own: `lt-train DATA...` trains, `lt-train bench` measures. A dataset that is called like a command is
given as `./bench`. The other commands are in `lt_train.commands`, a module each.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click

from lt_shared import console
from lt_train import __version__, credentials, stopping
from lt_train.plan import MEASURED_SUBJECTS, SUBJECTS
from lt_train.settings import benchmark
from lt_train.settings import data as data_settings

EXAMPLES = """
lt-preprocess corpus.jsonl --tokenizer gpt2/ --append-eod -o data/web | lt-train --model tiny --train-iters 20 --save run1 -
lt-train --model tiny --train-iters 20 --ranks 2 --save run2 0.7 data/web_text_document 0.3 data/code_text_document
lt-train --model llama3.1-8b --tensor-model-parallel-size 2 --ranks 8 --dry-run data/web_text_document
torchrun --nproc-per-node 2 -m lt_train --model tiny --train-iters 20 --save run3 data/web_text_document
"""


BENCH_EXAMPLES = """
lt-train bench --model llama3-8b --layers 8 --seq-length 8192 --micro-batch-size 4 --bf16
lt-train bench --model tiny --device cpu --steps 3 --warmup-steps 1 --json
"""
Function = Callable[..., Any]
# Commands and their modules in lt_train.commands, imported when a command is called or listed.
MODULES = {"import": "importing", "plan": "plan", "preflight": "preflight", "render": "render"}


def settings_options(*subjects: Any, without: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """The options of all subjects, in their order."""

    def add(function: Any) -> Any:
        for subject in reversed(subjects):
            function = subject.OPTIONS(function)
        function.__click_params__ = [option for option in function.__click_params__ if option.name not in without]
        return function

    return add


class Command(console.Command):
    """Takes Megatron's lists of datasets, which click cannot. Its help is that of the tool and lists the named commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, data_settings.spread(args))
        credentials.check_options(ctx.params)
        return rest

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        commands.format_commands(click.Context(commands, info_name=ctx.info_name), formatter)


def read_config(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Make the file's values the defaults; options and environment variables come before them."""
    if path is None:
        return
    from lt_train import config_file

    parameters = [parameter for parameter in context.command.params if parameter.name]
    names = {spelling.lstrip("-").replace("-", "_"): str(p.name) for p in parameters for spelling in (*p.opts, str(p.name))}
    lists = {str(parameter.name) for parameter in parameters if parameter.multiple or parameter.nargs != 1}
    context.default_map = config_file.from_toml(path, names, lists)


CONFIG = click.option(
    "--config",
    type=click.Path(dir_okay=False),
    is_eager=True,
    callback=read_config,
    expose_value=False,
    help="TOML file with any of these options, for example `seq-length = 4096`.",
)


@click.command(cls=Command, examples=EXAMPLES)
@click.version_option(__version__, "--version", prog_name="lt-train", message="%(prog)s %(version)s")
@click.argument("data", nargs=-1)
@settings_options(*SUBJECTS)
@CONFIG
@click.option("--dry-run", is_flag=True, help="Print the resolved plan as JSON and stop.")
def command(data: tuple[str, ...], dry_run: bool, **options: Any) -> int:
    """Pretrain a decoder language model on DATA with megatron-core.

    DATA is `-` (a manifest on standard input), `@FILE` (a manifest in a file), or dataset prefixes, each optionally preceded by
    its weight; --mock-data stands in for it. Runs on its own ranks, or as a rank of torchrun or srun. Log lines go to standard
    error, one JSON line per checkpoint to standard output. The same command continues an interrupted run.
    """
    from lt_train import launch, memory, resume
    from lt_train.plan import resolve

    plan = resolve(options, data_settings.training_datasets(data, options))
    if dry_run:
        plan = launch.prepare(plan)
        console.print_json(plan.as_record() | memory.record(plan) | {"up_to_date": resume.is_finished(plan)})
        return 0
    return launch.launch(plan)


def with_training_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """`options` of another command, and the defaults of those that it does not have."""
    hidden = [parameter for parameter in command.params if parameter.name not in options and parameter.expose_value]
    return click.Command("defaults", params=hidden).make_context("defaults", []).params | options


class Commands(console.Group):
    """Imports a command's module when it is needed: most of them have the options of a run, which take time to make."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *MODULES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODULES:
            return super().get_command(ctx, cmd_name)
        found: click.Command = importlib.import_module(f"lt_train.commands.{MODULES[cmd_name]}").command
        return found


@click.group(cls=Commands)
def commands() -> None:
    """Pretrain language models."""


@commands.command(cls=console.Command, examples=BENCH_EXAMPLES)
@click.option("--dry-run", is_flag=True, help="Print the resolved plan as JSON and stop.")
@settings_options(benchmark, *MEASURED_SUBJECTS, without=benchmark.SETTLED)
def bench(dry_run: bool, **options: Any) -> int:
    """Measure how fast a model trains here: no data, no saving.

    Trains on made-up tokens for some steps and shows their median time, throughput, MFU and memory, how long a step waits for
    data, and what the training loop's own Python takes.
    """
    from lt_train import launch, memory
    from lt_train.plan import resolve

    plan = resolve(with_training_defaults(options) | benchmark.training_options(options), ())
    if dry_run:
        console.print_json(plan.as_record() | memory.record(plan))
        return 0
    return launch.launch(plan)


def main() -> NoReturn:
    is_named = len(sys.argv) > 1 and sys.argv[1] in {*commands.commands, *MODULES}
    if not is_named:
        stopping.end_before_training()
    console.run(commands if is_named else command, "lt-train")
