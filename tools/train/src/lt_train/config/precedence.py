"""Options of which a run takes one: the nearest counts, a flag before the environment, and that before the file of --config.

So `--config recipe.toml --train-iters 20 DATA` is a short run of a recipe that says --train-samples and names other data. Two of
one source contradict each other, and are refused where they are read.
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
# Beside made-up tokens no other data is read.
BESIDE_DATA = ("valid_data_path", "test_data_path")
SOURCES = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


def apply(context: click.Context) -> None:
    """Take back, in the context's parameters, what a nearer source has replaced."""
    for names in ALTERNATIVES:
        said = {name: distance for name in names if (distance := _distance(context, name)) is not None}
        nearest = min(said.values(), default=0)
        replaced = [name for name, distance in said.items() if distance > nearest]
        if said.get("mock_data") == nearest and context.params["mock_data"]:
            replaced += [name for name in BESIDE_DATA if (_distance(context, name) or 0) > nearest]
        for name in replaced:
            _take_back(context, name)


def _distance(context: click.Context, name: str) -> int | None:
    """0 on the command line, 1 in the environment, 2 in the file; None where nothing says it, or that it is off."""
    source = context.get_parameter_source(name)
    return SOURCES.index(source) if source in SOURCES and context.params.get(name) not in (None, False, ()) else None


def _take_back(context: click.Context, name: str) -> None:
    value = context.params[name]
    context.params[name] = () if isinstance(value, list | tuple) else False if isinstance(value, bool) else None
    context.set_parameter_source(name, ParameterSource.DEFAULT)
