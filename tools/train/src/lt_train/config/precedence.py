"""Choose between mutually exclusive options: a flag overrides the environment, which overrides the --config file.

So `--config recipe.toml --train-iters 20 DATA` makes a short run of a recipe that sets --train-samples and names other data. Two
alternatives from one source contradict each other; the settings module that reads them refuses them.
"""

import click
from click.core import ParameterSource

ALTERNATIVES = (
    ("data", "data_path", "train_data_path", "mock_data"),
    ("train_iters", "train_samples", "train_tokens"),
    ("lr_decay_iters", "lr_decay_samples"),
    ("lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction"),
    ("lr_wsd_decay_iters", "lr_wsd_decay_samples"),
    ("bf16", "fp16"),
)
# --mock-data excludes these as well: synthetic tokens replace all data.
BESIDE_DATA = ("valid_data_path", "test_data_path")
SOURCES = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


def apply(context: click.Context) -> None:
    """Reset every parameter of the context that an alternative from a source of higher precedence overrides."""
    for names in ALTERNATIVES:
        distances = {name: distance for name in names if (distance := _distance(context, name)) is not None}
        nearest = min(distances.values(), default=0)
        replaced = [name for name, distance in distances.items() if distance > nearest]
        if distances.get("mock_data") == nearest and context.params["mock_data"]:
            replaced += [name for name in BESIDE_DATA if (_distance(context, name) or 0) > nearest]
        for name in replaced:
            _reset(context, name)


def _distance(context: click.Context, name: str) -> int | None:
    """Return 0 for the command line, 1 for the environment, 2 for the config file; None if the option is unset or off."""
    source = context.get_parameter_source(name)
    return SOURCES.index(source) if source in SOURCES and context.params.get(name) not in (None, False, ()) else None


def _reset(context: click.Context, name: str) -> None:
    value = context.params[name]
    context.params[name] = () if isinstance(value, list | tuple) else False if isinstance(value, bool) else None
    context.set_parameter_source(name, ParameterSource.DEFAULT)
