"""The number of layers in each pipeline stage, if neither all ranks nor all but the first and the last have the same.

Stages are consecutive parts of the model. With several stages per rank, rank r of p has the stages r, r + p, r + 2 p and so on.
Llama 3.1 405B has 126 layers: on 8 ranks with 8 stages each, the embedding and the loss count as layers, so that the first and
the last stage have one layer and the other 62 stages two. Megatron's layout string states any other division.
"""

import re
from typing import Any

import click

from lt_shared.console import BadConfig, UsageError
from lt_shared.models.architecture import Architecture

EMBEDDING, LAYER, PREDICTION, LOSS = "E", "t", "m", "L"
# Far more than any model has: a repetition is bounded before it is written out.
MOST_SYMBOLS = 100_000
_REPETITIONS = (re.compile(r"\(([^()]+)\)\*(\d{1,6})"), re.compile(r"(.)\*(\d{1,6})"))

LAYOUT_OPTION = click.option(
    "--pipeline-model-parallel-layout",
    metavar="LAYOUT",
    help="Set the layers of every pipeline stage, as Et*3|(tt|)*29tmL: E embedding, t layer, m multi-token prediction, L loss.",
)
EMBEDDING_OPTION = click.option(
    "--account-for-embedding-in-pipeline-split",
    is_flag=True,
    help="Count the embedding as a layer where the pipeline divides the layers evenly.",
)
LOSS_OPTION = click.option(
    "--account-for-loss-in-pipeline-split",
    is_flag=True,
    help="Count the output layer and the loss as a layer where the pipeline divides the layers evenly.",
)

LAYOUT_NAME = "pipeline_model_parallel_layout"
# Whether the embedding, and whether the loss counts as a layer.
COUNTS_EMBEDDING, COUNTS_LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"
# Option values for layers that are divided evenly.
EVEN = {LAYOUT_NAME: None, COUNTS_EMBEDDING: False, COUNTS_LOSS: False}
_ENDS = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
_VIRTUAL = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")


def resolve_stage_layers(options: dict[str, Any], model: Architecture) -> tuple[int, ...] | None:
    """Return the number of layers of every stage in the model's order; None if no option of this module is set.

    Raises: UsageError for options that exclude each other, BadConfig for a layout of another model or number of ranks.
    """
    if options[LAYOUT_NAME]:
        _exclude(options, LAYOUT_NAME, (*_ENDS, *_VIRTUAL, COUNTS_EMBEDDING, COUNTS_LOSS))
        return _of_layout(options[LAYOUT_NAME], options["pipeline_model_parallel_size"], model)
    flags = [name for name in (COUNTS_EMBEDDING, COUNTS_LOSS) if options[name]]
    if not flags:
        return None
    _exclude(options, flags[0], _ENDS)
    return _with_ends_counted(options, model)


def _exclude(options: dict[str, Any], name: str, others: tuple[str, ...]) -> None:
    for other in others:
        if options[other]:
            flags = " and ".join(f"--{option.replace('_', '-')}" for option in (name, other))
            raise UsageError(f"{flags} both say which stage has which layers", "pass one")


def stages_of(layout: str) -> list[str]:
    """Return the symbols of every stage of a layout string, for example ["Et", "tt", "tL"] for "Et|tt|tL".

    `(...)*n` and `x*n` repeat, and commas mean nothing, as in megatron-core's PipelineParallelLayerLayout.
    """
    symbols = re.sub(r"[\s,]", "", layout)
    for pattern in _REPETITIONS:
        repeated = sum(len(match[1]) * int(match[2]) for match in pattern.finditer(symbols))
        if repeated > MOST_SYMBOLS:
            raise BadConfig(f"--pipeline-model-parallel-layout {layout:.80}: more than {MOST_SYMBOLS:,} layers and stages")
        symbols = pattern.sub(lambda match: match[1] * int(match[2]), symbols)
    strange = sorted(set(symbols) - {EMBEDDING, LAYER, PREDICTION, LOSS, "|"})
    if strange:
        raise BadConfig(
            f"--pipeline-model-parallel-layout {layout:.80}: {strange[0]!r} is no part of a model",
            "use E (embedding), t (layer), m (multi-token prediction), L (loss), | between stages, and (...)*n to repeat",
        )
    return symbols.split("|")


def megatron_layout(stage_layers: tuple[int, ...]) -> list[list[str]]:
    """Return the names of every stage's parts for megatron-core's configuration, which has no multi-token prediction here."""
    stages = [["decoder"] * layers for layers in stage_layers]
    stages[0].insert(0, "embedding")
    stages[-1].append("loss")
    return stages


def layout_text(stage_layers: tuple[int, ...], prediction_layers: int) -> str:
    """Return the layout string of stages."""
    stages = [LAYER * layers for layers in stage_layers]
    stages[0] = EMBEDDING + stages[0]
    stages[-1] += PREDICTION * prediction_layers + LOSS
    return "|".join(stages)


def _of_layout(layout: str, pipeline: int, model: Architecture) -> tuple[int, ...]:
    what = f"--pipeline-model-parallel-layout {layout:.80}"
    stages = stages_of(layout)
    if len(stages) % pipeline:
        raise BadConfig(f"{what}: {len(stages)} stages do not divide among {pipeline} pipeline ranks", "use a multiple")
    predictions = PREDICTION * (model.mtp_num_layers or 0)
    parts = "".join(stages)
    if parts.count(EMBEDDING) != 1 or not parts.startswith(EMBEDDING):
        raise BadConfig(f"{what}: the embedding is not the first part, once", "begin with E")
    if parts.count(LOSS) != 1 or not parts.endswith(LOSS):
        raise BadConfig(f"{what}: the loss is not the last part, once", "end with L")
    if parts.count(PREDICTION) != len(predictions):
        raise BadConfig(
            f"{what}: {parts.count(PREDICTION)} layers of multi-token prediction, and {model.name} has {len(predictions)}",
            "change m, or --mtp-num-layers",
        )
    if not stages[-1].endswith(predictions + LOSS):
        raise BadConfig(
            f"{what}: multi-token prediction on another stage than the loss, which lt-train does not compute",
            f"end with {predictions}{LOSS}",
        )
    if parts.count(LAYER) != model.num_layers:
        raise BadConfig(f"{what}: {parts.count(LAYER)} layers, and {model.name} has {model.num_layers}", "change t")
    if not all(stages):
        raise BadConfig(f"{what}: stage {stages.index('')} (from 0) has nothing to compute", "give it a layer")
    return tuple(stage.count(LAYER) for stage in stages)


def _with_ends_counted(options: dict[str, Any], model: Architecture) -> tuple[int, ...] | None:
    """Divide the layers, the embedding and the loss evenly."""
    pipeline, stage_size, stages = options["pipeline_model_parallel_size"], *(options[name] for name in _VIRTUAL)
    first, last = options[COUNTS_EMBEDDING], options[COUNTS_LOSS]
    counted = model.num_layers + first + last
    count = pipeline * (stages or 1) if not stage_size else counted // stage_size
    if pipeline == 1:
        return None
    if count == 0 or counted % count or count % pipeline or (stage_size and counted % stage_size):
        parts = " and ".join(name for name, is_counted in (("the embedding", first), ("the loss", last)) if is_counted)
        size = f"stages of {stage_size}" if stage_size else f"{count} stages"
        raise BadConfig(
            f"{model.num_layers} layers with {parts} are {counted}, which do not divide into {size} on {pipeline} pipeline ranks",
            "choose other sizes, or state the stages: --pipeline-model-parallel-layout",
        )
    layers = [counted // count] * count
    layers[0] -= first
    layers[-1] -= last
    return tuple(layers)
