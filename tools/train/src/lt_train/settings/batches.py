"""How many tokens a step takes and how many steps a run has."""

import dataclasses
from typing import Any

import click

from lt_shared import console
from lt_shared.architecture import Architecture
from lt_shared.console import BadConfig
from lt_train.settings.parallelism import Parallelism

POSITIVE = click.IntRange(min=1)
LONGEST_DEFAULT_SEQUENCE = 8192

OPTIONS = console.section(
    "Steps and batches",
    click.option("--seq-length", type=POSITIVE, help="Tokens per sample; by default the positions of the model, at most 8192."),
    click.option("--micro-batch-size", type=POSITIVE, default=1, help="Samples per forward pass and rank."),
    click.option(
        "--global-batch-size", type=POSITIVE, help="Samples per step; by default one micro batch per data-parallel rank."
    ),
    click.option("--train-iters", type=POSITIVE, default=1000, help="Steps to train in all."),
    click.option("--seed", type=click.IntRange(min=0), default=1234, help="Seed of the weights and of the order of the data."),
)


@dataclasses.dataclass(frozen=True)
class Batches:
    """Sizes in tokens (`seq_length`) and samples; `train_iters` in steps."""

    seq_length: int
    micro_batch_size: int
    global_batch_size: int
    train_iters: int

    @property
    def step_tokens(self) -> int:
        return self.global_batch_size * self.seq_length


def resolve(options: dict[str, Any], architecture: Architecture, parallelism: Parallelism) -> Batches:
    micro_batch_size = options["micro_batch_size"]
    return Batches(
        seq_length=options["seq_length"] or min(architecture.max_position_embeddings, LONGEST_DEFAULT_SEQUENCE),
        micro_batch_size=micro_batch_size,
        global_batch_size=options["global_batch_size"] or micro_batch_size * max(1, parallelism.data),
        train_iters=options["train_iters"],
    )


def check(batches: Batches, architecture: Architecture, parallelism: Parallelism) -> None:
    """Raises BadConfig when the batch does not divide among the ranks, or a sample is longer than the model's positions."""
    step_samples = batches.micro_batch_size * parallelism.data
    if batches.global_batch_size % step_samples:
        raise BadConfig(
            f"global batch size {batches.global_batch_size} is not a multiple of micro batch size {batches.micro_batch_size}"
            f" x data parallel size {parallelism.data}",
            f"use a multiple of {step_samples}",
        )
    if batches.seq_length > architecture.max_position_embeddings:
        raise BadConfig(
            f"sequence length {batches.seq_length} exceeds the model's {architecture.max_position_embeddings} positions",
            "lower --seq-length or raise --max-position-embeddings",
        )
