"""The FLOPs of each pipeline stage, and the split of the layers with the most equal stages.

The output layer is work of the last stage: with a vocabulary of 128k it takes as many FLOPs as two of Llama 3 8B's layers. With 8
such layers on two ranks and 16 micro batches, an even split leaves 80% of a GPU's speed, and a split into 5 and 3 layers 93%.
The input embedding is a look-up and counts nothing.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Self

from lt_shared.models.architecture import Architecture
from lt_shared.models.architecture.flops import scored_pairs
from lt_shared.models.architecture.mixers import MIXERS
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.memory import Recompute
from lt_train.config.settings.parallelism import ZERO_BUBBLE, Parallelism
from lt_train.planner import pipeline_passes
from lt_train.planner.pipeline_passes import Work

# The layers of the first and of the last pipeline rank, if they differ from the other ranks.
Ends = tuple[int | None, int | None]
EVEN: Ends = (None, None)
WORTH_SAYING = 0.005
# Ranks whose shares are listed one by one.
SHOWN = 8


@dataclasses.dataclass(frozen=True)
class ModelWork:
    """FLOPs per token of every layer, and of the output layer and multi-token prediction (`head`) on the last stage."""

    layers: tuple[Work, ...]
    head: Work

    def most_equal_split(self, ranks: int) -> Ends:
        """Return the split whose fullest pipeline rank has the least work; the even split if no split has less.

        The ranks between the first and the last have the same number of layers each.
        """
        if ranks == 1:
            return EVEN
        work_before = [0.0, *itertools.accumulate(layer.whole for layer in self.layers)]
        count = len(self.layers)

        def fullest(split: tuple[int, int, int]) -> float:
            first, middle, _ = split
            borders = [0, *(first + middle * rank for rank in range(ranks - 1)), count]
            return max(
                work_before[stop] - work_before[start] + self.head.whole * (stop == count)
                for start, stop in itertools.pairwise(borders)
            )

        best = min(_splits(count, ranks), key=lambda split: (fullest(split), len(set(split)), split))
        first, middle, last = best
        if ranks == 2:
            return (None if first == last else first), None
        return (None if first == middle else first), (None if last == middle else last)


def model_work(model: Architecture, seq_length: int, recompute: Recompute | None) -> ModelWork:
    """Count the work of a model's layers, its output layer, and its multi-token prediction layers.

    Every multi-token prediction layer has an output layer.
    """
    repeats = recompute is not None and recompute.granularity == "full"
    head = model.vocab_size * model.hidden_size
    projection = 2 * model.hidden_size**2
    mtp_layers = range(model.num_layers, model.num_layers + model.mtp_num_layers)
    mtp = [_layer_work(model, seq_length, layer, head + projection, False) for layer in mtp_layers]
    return ModelWork(
        tuple(_layer_work(model, seq_length, layer, 0, repeats) for layer in range(model.num_layers)),
        _sum_work([Work(2 * head, 2 * head, 2 * head), *mtp]),
    )


def _layer_work(model: Architecture, seq_length: int, layer: int, more_weights: int, repeats: bool) -> Work:
    """Count a layer's work as `Architecture.flops_per_token` does: attention over the causal half, and twice as much backward.

    Attention and a recurrent state have no weights. `more_weights` are added to the layer's; with `repeats` the forward pass is
    computed twice.
    """
    weights = model.mixer_weights(layer) + model.mlp_weights(layer, model.moe_router_topk) + more_weights
    attention = (model.query_size + model.value_size) * scored_pairs(model, layer, seq_length) / seq_length
    mixer = MIXERS[model.mixer(layer)]
    attention += 2 * mixer.products(model) + mixer.pair_products(model) * seq_length
    forward = 2 * weights + attention
    return Work(forward, forward + attention + (forward if repeats else 0), 2 * weights)


def _sum_work(parts: Sequence[Work]) -> Work:
    return Work(*(sum(getattr(part, field.name) for part in parts) for field in dataclasses.fields(Work)))


def _splits(layers: int, ranks: int) -> Iterator[tuple[int, int, int]]:
    """Yield the layer counts of the first rank, a middle rank, and the last rank."""
    for middle in range(1, layers // (ranks - 2) + 1) if ranks > 2 else (0,):
        end_layers = layers - middle * (ranks - 2)
        yield from ((first, middle, end_layers - first) for first in range(1, end_layers))


@dataclasses.dataclass(frozen=True)
class PipelineWork:
    """The work of a model's pipeline stages in a step of `micro_batches` micro batches."""

    model: ModelWork
    parallel: Parallelism
    micro_batches: int

    @classmethod
    def from_config(cls, config: RunConfig) -> Self:
        work = model_work(config.architecture, config.batches.seq_length, config.memory.recompute)
        return cls(work, config.parallelism, max(1, config.micro_batches(config.batches.global_batch_size)))

    @functools.cached_property
    def stages(self) -> tuple[Work, ...]:
        """FLOPs per token of every stage, in the model's order."""
        layers = self.model.layers
        stages, first_layer = [], 0
        for count in self.parallel.layers_of_stages(len(layers)):
            stages.append(_sum_work(layers[first_layer : first_layer + count]))
            first_layer += count
        stages[-1] = _sum_work([stages[-1], self.model.head])
        return tuple(stages)

    @property
    def rank_shares(self) -> list[float]:
        """Each pipeline rank's share of the work."""
        ranks = self.parallel.pipeline
        rank_work = [sum(stage.whole for stage in self.stages[rank::ranks]) for rank in range(ranks)]
        return [work / sum(rank_work) for work in rank_work]

    @property
    def share_left(self) -> float:
        """The share of the speed without a pipeline that the bubble and unequal stages leave."""
        parallel = self.parallel
        return pipeline_passes.share_left(parallel.pipeline_schedule, parallel.pipeline, self.micro_batches, self.stages)

    @property
    def bubble_share(self) -> float:
        """The share of a step that a rank would spend waiting with equal stages."""
        parallel, chunks = self.parallel, self.parallel.interleaving or 1
        return pipeline_passes.bubble_share(parallel.pipeline_schedule, parallel.pipeline, self.micro_batches, chunks)

    def with_ends(self, ends: Ends) -> Self:
        """Return the same work with `ends` layers on the first and the last rank."""
        parallel = dataclasses.replace(self.parallel, first_stage_layers=ends[0], last_stage_layers=ends[1], stage_layers=None)
        return dataclasses.replace(self, parallel=parallel)

    def with_zero_bubble(self) -> Self:
        return dataclasses.replace(self, parallel=dataclasses.replace(self.parallel, pipeline_schedule=ZERO_BUBBLE))

    def __str__(self) -> str:
        """Describe the bubble, the ranks' shares of the work, the remaining share of the speed, and settings that leave more."""
        parallel, shares = self.parallel, self.rank_shares
        share_text = " ".join(f"{share:.1%}" for share in shares)
        if len(shares) > SHOWN:
            share_text = f"{min(shares):.1%} to {max(shares):.1%}"
        parts = [
            f"bubble {self.bubble_share:.1%} of a step ({parallel.schedule}), ranks have {share_text} of the work:"
            f" leaves {self.share_left:.1%}"
        ]
        if parallel.interleaving:
            return parts[0]
        ends = self.model.most_equal_split(parallel.pipeline)
        better = self.with_ends(ends)
        if better.share_left - self.share_left > WORTH_SAYING:
            flags = [f"--{name.replace('_', '-')} {layers}" for name, layers in split_options(ends).items()]
            parts.append(f"{better.share_left:.1%} with {' '.join(flags) or 'as many layers on each'}")
        if not parallel.defers_weight_gradients:
            parts.append(f"{better.with_zero_bubble().share_left:.1%} with zero-bubble")
        return ", ".join(parts)


def split_options(ends: Ends) -> dict[str, int]:
    """Return the options that ask for the split `ends`."""
    names = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
    return {name: layers for name, layers in zip(names, ends, strict=True) if layers}
