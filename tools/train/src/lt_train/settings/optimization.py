"""The optimizer and the schedule of its learning rate."""

import dataclasses
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig
from lt_train.settings.batches import Batches

OPTIONS = console.section(
    "Optimizer",
    click.option("--lr", type=click.FloatRange(min=0, min_open=True), default=3e-4, help="Peak learning rate."),
    click.option("--min-lr", type=click.FloatRange(min=0), help="Final learning rate; by default a tenth of the peak."),
    click.option("--lr-warmup-iters", type=click.IntRange(min=0), help="Steps of linear warm-up; by default 1% of the run."),
    click.option("--lr-decay-iters", type=click.IntRange(min=1), help="Steps until the final learning rate; by default all."),
    click.option("--weight-decay", type=click.FloatRange(min=0), default=0.1, help="Weight decay; norms and biases have none."),
    click.option("--adam-beta1", type=click.FloatRange(0, 1, max_open=True), default=0.9, help="Decay of the first moment."),
    click.option("--adam-beta2", type=click.FloatRange(0, 1, max_open=True), default=0.95, help="Decay of the second moment."),
    click.option("--adam-eps", type=click.FloatRange(min=0, min_open=True), default=1e-8, help="Epsilon of AdamW."),
    click.option("--clip-grad", type=click.FloatRange(min=0), default=1.0, help="Largest gradient norm; 0 does not clip."),
)


@dataclasses.dataclass(frozen=True)
class Optimization:
    """AdamW with a cosine schedule after a linear warm-up; iterations, not samples."""

    lr: float
    min_lr: float
    lr_warmup_iters: int
    lr_decay_iters: int
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_eps: float
    clip_grad: float


def resolve(options: dict[str, Any], batches: Batches) -> Optimization:
    warmup = options["lr_warmup_iters"]
    return Optimization(
        lr=options["lr"],
        min_lr=options["lr"] / 10 if options["min_lr"] is None else options["min_lr"],
        lr_warmup_iters=batches.train_iters // 100 if warmup is None else warmup,
        lr_decay_iters=options["lr_decay_iters"] or batches.train_iters,
        weight_decay=options["weight_decay"],
        adam_beta1=options["adam_beta1"],
        adam_beta2=options["adam_beta2"],
        adam_eps=options["adam_eps"],
        clip_grad=options["clip_grad"],
    )


def check(optimization: Optimization) -> None:
    """Raises BadConfig when the schedule contradicts itself."""
    if not 0 <= optimization.min_lr <= optimization.lr:
        raise BadConfig(f"minimum learning rate {optimization.min_lr} is not between 0 and the learning rate {optimization.lr}")
    if optimization.lr_warmup_iters >= optimization.lr_decay_iters:
        raise BadConfig(
            f"warm-up of {optimization.lr_warmup_iters} iterations is not shorter than the decay over"
            f" {optimization.lr_decay_iters} iterations",
            "lower --lr-warmup-iters",
        )
