"""How the ranks share the model and the data."""

import dataclasses
from typing import Any

import click

from lt_shared import console
from lt_shared.architecture import Architecture
from lt_shared.console import BadConfig, UsageError
from lt_train import device, place

POSITIVE = click.IntRange(min=1)

OPTIONS = console.section(
    "Parallelism",
    click.option("--tensor-model-parallel-size", type=POSITIVE, default=1, help="Ranks that share each layer."),
    click.option("--pipeline-model-parallel-size", type=POSITIVE, default=1, help="Ranks that share the layers among them."),
    click.option("--sequence-parallel", is_flag=True, help="Split norms along the sequence among tensor-parallel ranks."),
    click.option("--use-distributed-optimizer", is_flag=True, help="Split the optimizer state among data-parallel ranks."),
    click.option("--ranks", type=POSITIVE, help="Ranks to start here; by default one per GPU, or what model parallelism needs."),
    click.option(
        "--device",
        type=click.Choice(device.DEVICES),
        default="auto",
        help="Where to train; auto takes the GPUs that it finds.",
    ),
)


@dataclasses.dataclass(frozen=True)
class Parallelism:
    """Sizes in ranks. The data-parallel size is what remains of the world. `device` is one of `lt_train.device`."""

    device: str
    world_size: int
    tensor: int
    pipeline: int
    sequence: bool
    distributed_optimizer: bool

    @property
    def data(self) -> int:
        return self.world_size // (self.tensor * self.pipeline)


def resolve(options: dict[str, Any]) -> Parallelism:
    where = device.resolve(options["device"])
    tensor, pipeline = options["tensor_model_parallel_size"], options["pipeline_model_parallel_size"]
    here = place.find()
    if here is not None and options["ranks"] and options["ranks"] != here.world_size:
        raise UsageError(f"--ranks {options['ranks']}, but {here.found} started {here.world_size}", "drop --ranks")
    ranks = here.world_size if here else options["ranks"] or device.default_ranks(where, tensor * pipeline)
    return Parallelism(where, ranks, tensor, pipeline, options["sequence_parallel"], options["use_distributed_optimizer"])


def check(parallel: Parallelism, model: Architecture, seq_length: int) -> None:
    """Raises BadConfig when the sizes do not divide the model or the ranks."""
    ranks = parallel.tensor * parallel.pipeline
    if parallel.world_size % ranks:
        raise BadConfig(
            f"{parallel.world_size} ranks do not divide into tensor parallel {parallel.tensor}"
            f" x pipeline parallel {parallel.pipeline}",
            f"start a multiple of {ranks} ranks",
        )
    divisible = (
        ("attention heads", model.num_attention_heads, "tensor", parallel.tensor),
        ("query groups", model.num_query_groups, "tensor", parallel.tensor),
        ("feed-forward size", model.ffn_hidden_size, "tensor", parallel.tensor),
        ("layers", model.num_layers, "pipeline", parallel.pipeline),
    )
    for what, size, name, ways in divisible:
        if size % ways:
            raise BadConfig(f"{what} {size} not divisible by {name} parallel size {ways}", f"choose another {name} parallel size")
    if parallel.sequence and seq_length % parallel.tensor:
        raise BadConfig(f"sequence length {seq_length} not divisible by tensor parallel size {parallel.tensor}")
    if parallel.sequence and parallel.tensor == 1:
        raise BadConfig("sequence parallelism needs a tensor parallel size above 1", "drop --sequence-parallel")
