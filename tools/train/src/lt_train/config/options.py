"""click's options of a run: the options of every settings module, and --config, which makes a file's values the defaults.

Importers, rendered jobs and preflight read and write command lines through `schema`, which runs nothing.
"""

import functools
import tomllib
from collections.abc import Callable, Mapping, Set
from typing import Any

import click
from click.core import ParameterSource

from lt_shared import console
from lt_shared.console import BadConfig
from lt_shared.files import storage
from lt_train.config import credentials
from lt_train.config.foreign_options import FOREIGN_OPTIONS
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
    routing,
    skipping,
    streaming,
)
from lt_train.config.settings import data as data_settings
from lt_train.config.settings.model import architecture

SUBJECTS = (
    *(
        architecture,
        *architecture.PARTS,
        routing,
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
    *(routing, layers, batches, precision, optimization, parallelism, memory),
)

Function = Callable[..., Any]
# Options that exclude each other. A flag overrides the environment, which overrides the --config file: so `--config recipe.toml
# --train-iters 20 DATA` makes a short run of a recipe that sets --train-samples and names other data. Two alternatives from one
# source contradict each other; the settings module that reads them refuses them.
_ALTERNATIVES = (
    ("data", "data_path", "train_data_path", "mock_data"),
    ("train_iters", "train_samples", "train_tokens"),
    ("global_batch_size", "step_batch_size_schedule"),
    ("rampup_batch_size", "step_batch_size_schedule"),
    ("lr_decay_iters", "lr_decay_samples"),
    ("lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction"),
    ("lr_wsd_decay_iters", "lr_wsd_decay_samples"),
    ("bf16", "fp16"),
)
# --mock-data excludes these as well: synthetic tokens replace all data.
_BESIDE_DATA = ("valid_data_path", "test_data_path")
_SOURCES = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


class RunCommand(console.Command):
    """A click command that accepts Megatron's lists of datasets (--data-path A B C), which click alone does not."""

    foreign_options = FOREIGN_OPTIONS

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        unparsed = super().parse_args(ctx, data_settings.spread(args))
        _apply_precedence(ctx)
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
    context.default_map = options_from_toml(path, names, lists, _run_option_names() - names.keys() - {parameter.name})


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


def options_from_toml(path: str, names: Mapping[str, str], lists: Set[str], ignored: Set[str] = frozenset()) -> dict[str, Any]:
    """Read the options in a TOML file as texts, which click checks like environment variables.

    Keys may have dashes or underscores. `names` maps each key, with underscores, to its parameter. Parameters in `lists` become
    lists, even if the file has a single value. Keys in `ignored` are skipped. Raises BadConfig for unknown keys, for an option in
    two spellings, for tables, and for a list if the option takes a single value.
    """
    try:
        content = tomllib.loads(storage.read_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        is_foreign = path.endswith((".yaml", ".yml", ".json", ".py", ".sh"))
        hint = f"lt-train import {path} translates another trainer's configuration" if is_foreign else None
        raise BadConfig(f"{path}: not TOML: {error}", hint) from None
    content = {key: value for key, value in content.items() if key.replace("-", "_") not in ignored}
    unknown = sorted(key for key in content if key.replace("-", "_") not in names)
    if unknown:
        from difflib import get_close_matches

        remedies = {key: FOREIGN_OPTIONS.get(key.replace("_", "-")) for key in unknown}
        for key in (key for key, remedy in remedies.items() if remedy is None):
            if alike := get_close_matches(key.replace("-", "_"), names, n=1):
                remedies[key] = f"did you mean {alike[0].replace('_', '-')}?"
        hint = (
            "; ".join(f"{key}: {remedy}" for key, remedy in remedies.items() if remedy) or "see lt-train --help for their names"
        )
        raise BadConfig(f"{path}: unknown options: {', '.join(unknown)}", hint)
    options: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for key, value in content.items():
        name = names[key.replace("-", "_")]
        if name in spelled:
            raise BadConfig(f"{path}: {spelled[name]} and {key} are the same option", "leave one of them out")
        spelled[name] = key
        values = value if isinstance(value, list) and name in lists else [value]
        if not all(isinstance(entry, str | int | float) for entry in values):
            expected = "a list of values" if name in lists else "one value"
            raise BadConfig(f"{path}: {key} is {value!r}, expected {expected}")
        texts = [str(entry) for entry in values]
        if any("\0" in text for text in texts):
            raise BadConfig(f"{path}: {key} has a zero byte in it")
        options[name] = texts if name in lists else texts[0]
    return options


def _apply_precedence(context: click.Context) -> None:
    """Reset every parameter of the context that an alternative from a source of higher precedence overrides."""
    for names in _ALTERNATIVES:
        distances = {name: distance for name in names if (distance := _distance_of_source(context, name)) is not None}
        nearest = min(distances.values(), default=0)
        replaced = [name for name, distance in distances.items() if distance > nearest]
        if distances.get("mock_data") == nearest and context.params["mock_data"]:
            replaced += [name for name in _BESIDE_DATA if (_distance_of_source(context, name) or 0) > nearest]
        for name in replaced:
            _reset_option(context, name)


def _distance_of_source(context: click.Context, name: str) -> int | None:
    """Return 0 for the command line, 1 for the environment, 2 for the config file; None if the option is unset or off."""
    source = context.get_parameter_source(name)
    return _SOURCES.index(source) if source in _SOURCES and context.params.get(name) not in (None, False, ()) else None


def _reset_option(context: click.Context, name: str) -> None:
    value = context.params[name]
    context.params[name] = () if isinstance(value, list | tuple) else False if isinstance(value, bool) else None
    context.set_parameter_source(name, ParameterSource.DEFAULT)
