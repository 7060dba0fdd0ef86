"""click's options of a run: the options of every settings module, and --config, which makes a file's values the defaults.

Importers, rendered jobs and preflight read and write command lines through `schema`, which runs nothing.
"""

import functools
from collections.abc import Callable
from typing import Any

import click

from lt_shared import console
from lt_train.config import config_file, credentials, precedence
from lt_train.config.settings import (
    batches,
    checkpointing,
    data_schedule,
    faults,
    layers,
    memory,
    optimization,
    parallelism,
    precision,
    reporting,
    skipping,
    streaming,
)
from lt_train.config.settings import data as data_settings
from lt_train.config.settings.model import architecture

SUBJECTS = (
    *(
        architecture,
        *architecture.PARTS,
        layers,
        batches,
        precision,
        optimization,
        parallelism,
        memory,
        data_settings,
        data_schedule,
        skipping,
    ),
    *(streaming, checkpointing, faults, reporting),
)
# The subjects that `lt-train bench` has options for. `benchmark` sets the other subjects.
MEASURED_SUBJECTS = (
    *(architecture, *architecture.PARTS),
    *(layers, batches, precision, optimization, parallelism, memory),
)

Function = Callable[..., Any]


class RunCommand(console.Command):
    """A click command that accepts Megatron's lists of datasets (--data-path A B C), which click alone does not."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        unparsed = super().parse_args(ctx, data_settings.spread(args))
        precedence.apply(ctx)
        credentials.check_options(ctx.params)
        return unparsed


def settings_options(*subjects: Any, without: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Add the options of `subjects` to a command, in this order, except the names in `without`."""

    def add(function: Any) -> Any:
        for subject in reversed(subjects):
            function = subject.OPTIONS(function)
        function.__click_params__ = [option for option in function.__click_params__ if option.name not in without]
        return function

    return add


def read_config(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Make the values of the config file click's defaults; flags and environment variables override them."""
    if path is None:
        return
    # --config is no key of a config file: nobody would read the second file.
    parameters = [option for option in context.command.params if option.name and option is not parameter]
    names = {spelling.lstrip("-").replace("-", "_"): str(p.name) for p in parameters for spelling in (*p.opts, str(p.name))}
    lists = {str(parameter.name) for parameter in parameters if parameter.multiple or parameter.nargs != 1}
    context.default_map = config_file.from_toml(path, names, lists, _run_option_names() - names.keys() - {parameter.name})


def _run_option_names() -> frozenset[str]:
    """Return the keys of a run's config file. Commands that start no run ignore the keys that they do not take."""
    return frozenset(spelling.lstrip("-").replace("-", "_") for parameter in schema().params for spelling in parameter.opts)


CONFIG = click.option(
    "--config",
    type=click.Path(dir_okay=False),
    is_eager=True,
    callback=read_config,
    expose_value=False,
    help="Read options from this TOML file: for example `seq-length = 4096`.",
)


def run_options(function: Function) -> Function:
    """Add the options and the argument of `lt-train DATA...` to a function."""
    as_json = click.option("--json", "as_json", is_flag=True, help="With --dry-run: as JSON on a terminal, too.")
    dry_run = click.option("--dry-run", is_flag=True, help="Show what the run would do, and stop.")
    function = dry_run(as_json(function))
    return click.argument("data", cls=console.Operands, nargs=-1)(settings_options(*SUBJECTS)(CONFIG(function)))


@functools.cache
def schema() -> click.Command:
    """Return a command with a run's options whose call does nothing."""

    @click.command(cls=RunCommand)
    @run_options
    def command(**options: Any) -> None:
        pass

    return command


def with_training_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """Fill in the default of every run option that `options`, from another command, lacks."""
    hidden = [parameter for parameter in schema().params if parameter.name not in options and parameter.expose_value]
    return click.Command("defaults", params=hidden).make_context("defaults", []).params | options
