"""What each pipeline stage has to compute, in FLOPs, and which split of the layers is the most equal.

The output layer is work of the last stage: with a vocabulary of 128k it is as much as two of Llama 3 8B's layers. Of 8 such
layers on two ranks and 16 micro batches an even split leaves 80% of a GPU's speed, and 5 and 3 layers 93%.
The input embedding is a look-up and counts nothing.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from lt_train.config.run_config import RunConfig
from lt_train.config.settings.parallelism import ZERO_BUBBLE
from lt_train.planner import pipeline_passes
from lt_train.planner.pipeline_passes import Work

# The layers of the first and of the last pipeline rank, where they are not those of the others.
Ends = tuple[int | None, int | None]
EVEN: Ends = (None, None)
WORTH_SAYING = 0.005
# Ranks whose shares are listed one by one.
SHOWN = 8


def of_stages(config: RunConfig) -> tuple[Work, ...]:
    """FLOPs per token of every stage, in the model's order."""
    parallel = config.parallelism
    *layers, end = _of_layers(config)
    chunks = parallel.interleaving or 1
    found, first = [], 0
    for stage in range(parallel.pipeline * chunks):
        count = parallel.layers_of(stage % parallel.pipeline, config.architecture.num_layers) // chunks
        found.append(_sum(layers[first : first + count]))
        first += count
    found[-1] = _sum([found[-1], end])
    return tuple(found)


def _of_layers(config: RunConfig) -> list[Work]:
    """Of every layer, and of what the last stage has behind them: the output layer, and the multi-token prediction layers, which
    have it once more."""
    model, recompute = config.architecture, config.memory.recompute
    repeats = recompute is not None and recompute.granularity == "full"
    head = model.vocab_size * model.hidden_size
    found = [_of_layer(config, layer, 0, repeats) for layer in range(model.num_layers)]
    beside = head + 2 * model.hidden_size**2
    more = [_of_layer(config, model.num_layers + each, beside, False) for each in range(model.mtp_num_layers)]
    return [*found, _sum([Work(2 * head, 2 * head, 2 * head), *more])]


def _of_layer(config: RunConfig, layer: int, beside: int, repeats: bool) -> Work:
    """As `Architecture.flops_per_token` counts: attention over the causal half, forward and twice as much backward.

    It has no weights. `beside` are weights that are multiplied with the layer; with `repeats` the forward pass is computed twice.
    """
    model, length = config.architecture, config.batches.seq_length
    weights = model.attention_weights() + model.mlp_weights(layer, model.moe_router_topk) + beside
    window = min(model.window(layer) or length, length)
    attention = (model.query_size + model.value_size) * window * (2 * length - window) / length
    forward = 2 * weights + attention
    return Work(forward, forward + attention + (forward if repeats else 0), 2 * weights)


def _sum(parts: Sequence[Work]) -> Work:
    return Work(*(sum(getattr(each, field.name) for each in parts) for field in dataclasses.fields(Work)))


def shares(config: RunConfig) -> list[float]:
    """Each pipeline rank's share of the work."""
    stages, ranks = of_stages(config), config.parallelism.pipeline
    of_ranks = [sum(stage.whole for stage in stages[rank::ranks]) for rank in range(ranks)]
    return [each / sum(of_ranks) for each in of_ranks]


def share_left(config: RunConfig) -> float:
    """Of the speed without a pipeline, what its bubble and unequal stages leave."""
    parallel = config.parallelism
    micro_batches = max(1, config.micro_batches(config.batches.global_batch_size))
    return pipeline_passes.share_left(parallel.pipeline_schedule, parallel.pipeline, micro_batches, of_stages(config))


def bubble(config: RunConfig) -> float:
    """The share of a step in which a rank waits, if all stages were equal."""
    parallel = config.parallelism
    micro_batches = max(1, config.micro_batches(config.batches.global_batch_size))
    return pipeline_passes.bubble_share(parallel.pipeline_schedule, parallel.pipeline, micro_batches, parallel.interleaving or 1)


def most_equal(config: RunConfig) -> Ends:
    """The split whose fullest rank has the least work, the even one where no other has less, and for an interleaved pipeline.

    The ranks between the first and the last have the same number of layers each.
    """
    model, ranks = config.architecture, config.parallelism.pipeline
    if ranks == 1 or config.parallelism.interleaving:
        return EVEN
    *of_layers, end = [each.whole for each in _of_layers(config)]
    before = [0.0, *itertools.accumulate(of_layers)]

    def fullest(split: tuple[int, int, int]) -> float:
        first, middle, _ = split
        borders = [0, *(first + middle * each for each in range(ranks - 1)), model.num_layers]
        return max(before[stop] - before[start] + end * (stop == model.num_layers) for start, stop in itertools.pairwise(borders))

    best = min(_splits(model.num_layers, ranks), key=lambda split: (fullest(split), len(set(split)), split))
    first, middle, last = best
    if ranks == 2:
        return (None if first == last else first), None
    return (None if first == middle else first), (None if last == middle else last)


def _splits(layers: int, ranks: int) -> Iterator[tuple[int, int, int]]:
    """Layers of the first rank, of each in between, and of the last."""
    for middle in range(1, layers // (ranks - 2) + 1) if ranks > 2 else (0,):
        rest = layers - middle * (ranks - 2)
        yield from ((first, middle, rest - first) for first in range(1, rest))


def with_ends(config: RunConfig, ends: Ends) -> RunConfig:
    """`config` with that split."""
    parallel = dataclasses.replace(config.parallelism, first_stage_layers=ends[0], last_stage_layers=ends[1])
    return dataclasses.replace(config, parallelism=parallel)


def options(ends: Ends) -> dict[str, int]:
    """Those that ask for the split."""
    names = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
    return {name: layers for name, layers in zip(names, ends, strict=True) if layers}


def described(config: RunConfig) -> str:
    """The bubble, the ranks' shares of the work, what both leave of the speed, and what would leave more."""
    parallel, left = config.parallelism, share_left(config)
    of_ranks = shares(config)
    listed = " ".join(f"{share:.1%}" for share in of_ranks)
    if len(of_ranks) > SHOWN:
        listed = f"{min(of_ranks):.1%} to {max(of_ranks):.1%}"
    parts = [f"bubble {bubble(config):.1%} of a step ({parallel.schedule}), ranks have {listed} of the work: leaves {left:.1%}"]
    if parallel.interleaving:
        return parts[0]
    ends = most_equal(config)
    better = with_ends(config, ends)
    if share_left(better) - left > WORTH_SAYING:
        flags = [f"--{name.replace('_', '-')} {layers}" for name, layers in options(ends).items()]
        parts.append(f"{share_left(better):.1%} with {' '.join(flags) or 'as many layers on each'}")
    if not parallel.defers_weight_gradients:
        deferring = dataclasses.replace(better.parallelism, pipeline_schedule=ZERO_BUBBLE)
        parts.append(f"{share_left(dataclasses.replace(better, parallelism=deferring)):.1%} with zero-bubble")
    return ", ".join(parts)
