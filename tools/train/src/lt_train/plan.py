"""The plan of a run: every setting resolved and checked, before any process starts and without importing torch.

A mistake found here costs a second; found after the ranks have started it costs a queue slot. The plan travels to the ranks as
one JSON file, so all ranks run with the same settings. click merges flags, environment and config file; presets and derived
defaults are filled in by the subjects in `lt_train.settings`.
"""

import dataclasses
import json
from typing import Any, Self

from lt_shared.architecture import Architecture
from lt_shared.manifest import Dataset, record_of
from lt_train.settings import (
    batches,
    benchmark,
    checkpointing,
    data,
    layers,
    memory,
    model,
    optimization,
    parallelism,
    precision,
    reporting,
)
from lt_train.settings.batches import Batches
from lt_train.settings.benchmark import Benchmark
from lt_train.settings.checkpointing import Checkpointing
from lt_train.settings.data import Data
from lt_train.settings.layers import Layers
from lt_train.settings.memory import Memory
from lt_train.settings.optimization import Optimization
from lt_train.settings.parallelism import Parallelism
from lt_train.settings.precision import Precision
from lt_train.settings.reporting import Reporting

SUBJECTS = (model, layers, batches, precision, optimization, parallelism, memory, data, checkpointing, reporting)
# The subjects that `lt-train bench` has options for; `benchmark` settles the others.
MEASURED_SUBJECTS = (model, layers, batches, precision, optimization, parallelism, memory)
VOCABULARY_MULTIPLE = 128


@dataclasses.dataclass(frozen=True)
class Plan:
    """One run, a part per subject. `seed` is that of the weights and of the order of the data."""

    architecture: Architecture
    layers: Layers
    batches: Batches
    precision: Precision
    optimization: Optimization
    parallelism: Parallelism
    memory: Memory
    data: Data
    checkpointing: Checkpointing
    reporting: Reporting
    seed: int
    benchmark: Benchmark | None = None

    def micro_batches(self, samples: int) -> int:
        """Micro batches that each data-parallel rank runs in a step of `samples` samples."""
        return samples // (self.batches.micro_batch_size * self.parallelism.data)

    @property
    def shards_optimizer(self) -> bool:
        """Whether data-parallel ranks split the optimizer's state; its checkpoints then have one form, FSDP or not."""
        return self.parallelism.distributed_optimizer or self.memory.fully_sharded

    @property
    def padded_vocab_size(self) -> int:
        return self.architecture.padded_vocab_size(VOCABULARY_MULTIPLE, self.parallelism.tensor)

    def starting_at(self, checkpoint: str, continues: bool) -> Self:
        changed = dataclasses.replace(self.checkpointing, start=checkpoint, continues=continues)
        return dataclasses.replace(self, checkpointing=changed)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        import cattrs

        return cattrs.structure(json.loads(text), cls)

    def as_record(self) -> dict[str, Any]:
        """The plan as printed by --dry-run."""
        fields = dataclasses.asdict(self)
        lists = ("datasets", "validation_datasets", "test_datasets")
        datasets = {name: [record_of(dataset) for dataset in getattr(self.data, name)] for name in lists}
        return {
            "v": 1,
            "kind": "plan",
            **fields,
            "data": fields["data"] | datasets,
            "parameters": self.architecture.parameters(),
            "active_parameters": self.architecture.active_parameters(),
            "padded_vocab_size": self.padded_vocab_size,
            "tokens": self.batches.train_samples * self.batches.seq_length,
        }


def resolve(options: dict[str, Any], datasets: tuple[Dataset, ...]) -> Plan:
    """The checked plan. Raises UsageError or BadConfig for what cannot run."""
    architecture = model.resolve(options, datasets)
    layout = parallelism.resolve(options, architecture)
    sizes = batches.resolve(options, architecture, layout)
    plan = Plan(
        architecture=architecture,
        layers=layers.resolve(options, layout.device),
        batches=sizes,
        precision=precision.resolve(options),
        optimization=optimization.resolve(options, sizes),
        parallelism=layout,
        memory=memory.resolve(options),
        data=data.resolve(options, datasets),
        checkpointing=checkpointing.resolve(options),
        reporting=reporting.resolve(options, layout),
        seed=options["seed"],
        benchmark=benchmark.resolve(options),
    )
    check(plan)
    return plan


def check(plan: Plan) -> None:
    """Refuse what cannot run. Raises BadConfig with the reason."""
    parallelism.check(plan.parallelism, plan.architecture, plan.batches.seq_length)
    seq_length, documents = plan.batches.seq_length, plan.data.reset_attention_mask
    layers.check(plan.layers, plan.architecture, plan.parallelism, seq_length, documents)
    batches.check(plan.batches, plan.architecture, plan.parallelism)
    for size in plan.batches.sizes:
        parallelism.check_micro_batches(plan.parallelism, plan.micro_batches(size))
    micro_batch_tokens = plan.batches.micro_batch_size * plan.batches.seq_length
    precision.check(plan.precision, plan.layers, plan.architecture, plan.parallelism, micro_batch_tokens)
    optimization.check(plan.optimization, plan.precision.dtype, plan.parallelism)
    memory.check(plan.memory, plan.layers, plan.parallelism, plan.architecture, plan.precision, plan.optimization)
    data.check(plan.data, plan.architecture.vocab_size)
    checkpointing.check(plan.checkpointing)
    reporting.check(plan.reporting, plan.parallelism.device, plan.batches.train_iters)
