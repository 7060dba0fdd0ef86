"""The configuration of a run: every setting resolved, one part per subject, without importing torch.

The ranks receive it as one JSON file, so all ranks run with the same settings. draft.py resolves it from options; checks.py
refuses configurations that cannot run.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any, Self

from lt_shared.contracts.manifest import record_of
from lt_shared.models.architecture import Architecture
from lt_train.config import kernels
from lt_train.config.settings.batches import Batches, resolve_batches
from lt_train.config.settings.benchmark import Benchmark
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.config.settings.data import Data
from lt_train.config.settings.data_schedule import Schedule
from lt_train.config.settings.faults import Faults
from lt_train.config.settings.layers import Layers
from lt_train.config.settings.memory import Memory, resolve_memory
from lt_train.config.settings.optimization import Optimization, resolve_optimization
from lt_train.config.settings.parallelism import Parallelism, resolve_parallelism
from lt_train.config.settings.precision import Precision
from lt_train.config.settings.replaying import Replay
from lt_train.config.settings.reporting import Reporting
from lt_train.config.settings.routing import Routing
from lt_train.config.settings.scoring import Scoring
from lt_train.config.settings.skipping import Skipping
from lt_train.process import device

# Parts of a configuration, and settings of two other parts, that all ranks of a run must have alike.
ALIKE = (
    *("architecture", "routing", "layers", "batches", "precision", "optimization", "parallelism", "memory"),
    *("schedule", "skipping", "seed", "benchmark", "replay", "scoring"),
)
ALIKE_OF_DATA = (
    *("validation_names", "split", "eval_iters", "eval_interval", "reset_position_ids", "reset_attention_mask", "eod_mask_loss"),
)
ALIKE_OF_CHECKPOINTING = ("save", "save_interval", "async_save", "save_local_interval", "exit_interval", "replicate_interval")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """One run, a part per subject. `seed` seeds the initial weights and the order of the data."""

    architecture: Architecture
    routing: Routing
    layers: Layers
    batches: Batches
    precision: Precision
    optimization: Optimization
    parallelism: Parallelism
    memory: Memory
    data: Data
    schedule: Schedule
    skipping: Skipping
    checkpointing: Checkpointing
    faults: Faults
    reporting: Reporting
    seed: int
    benchmark: Benchmark | None = None
    replay: Replay | None = None
    scoring: Scoring | None = None

    def micro_batches(self, samples: int) -> int:
        """Count the micro batches that each data-parallel rank runs in a step of `samples` samples."""
        return samples // (self.batches.micro_batch_size * self.parallelism.data)

    @property
    def shards_optimizer(self) -> bool:
        """Whether data-parallel ranks shard the optimizer state. Checkpoints have the same format with ZeRO-1 and FSDP."""
        return self.parallelism.distributed_optimizer or self.memory.fully_sharded

    @property
    def averages_tokens(self) -> bool:
        """Whether the loss is the mean over the counted tokens of a global batch, as it is with a loss mask."""
        return self.optimization.averages_tokens or self.data.has_loss_mask

    @property
    def expert_tensor_parallel(self) -> int:
        return self.parallelism.expert_tensor(self.architecture)

    @property
    def padded_vocab_size(self) -> int:
        return self.parallelism.padded_vocab_size(self.architecture)

    def starting_at(self, checkpoint: str, continues: bool) -> Self:
        changed = dataclasses.replace(self.checkpointing, start=checkpoint, continues=continues)
        return dataclasses.replace(self, checkpointing=changed)

    def continued(self, steps: int, samples: int) -> Self:
        """Return the configuration of a run that continues after `steps` steps, which took `samples` samples."""
        return dataclasses.replace(self, batches=self.batches.continued(steps, samples))

    def at_step(self, steps: int) -> Self:
        """Return the configuration of the phase after `steps` steps."""
        if not self.schedule:
            return self
        phase = self.schedule.phases[self.schedule.place(self.batches, steps)]
        sizes = dataclasses.replace(self.batches, seq_length=phase.seq_length)
        return dataclasses.replace(self, batches=sizes, architecture=phase.architecture)

    def with_layout(self, options: dict[str, Any], ranks: int) -> Self:
        """Return the configuration on `ranks` ranks, with the parallel sizes and recomputation of `options`."""
        parallel = resolve_parallelism(options, self.architecture, self.parallelism.device, ranks)
        batches = resolve_batches(options, self.architecture, parallel)
        batches = self.schedule.length(batches) if self.schedule else batches
        return dataclasses.replace(
            self,
            parallelism=parallel,
            batches=batches,
            optimization=resolve_optimization(options, batches, self.architecture),
            memory=resolve_memory(options, batches, parallel, self.precision),
        )

    @property
    def forms(self) -> list[Self]:
        """Return one configuration per form: the phases between two restarts of the ranks share a form."""
        forms, end = [self.at_step(0)], self.schedule.end_of_form(self.batches, 0)
        while end < self.batches.train_iters:
            forms.append(self.at_step(end))
            end = self.schedule.end_of_form(self.batches, end)
        return forms

    def tokens(self, samples: int) -> int:
        """Count the tokens in the first `samples` samples."""
        return self.schedule.tokens(self.batches, samples) if self.schedule else samples * self.batches.seq_length

    def started_by(self, command: Sequence[str]) -> Self:
        """Return the configuration with the command line that started the run."""
        return dataclasses.replace(self, reporting=dataclasses.replace(self.reporting, command=tuple(command)))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        import cattrs

        return cattrs.structure(json.loads(text), cls)

    def digests(self) -> dict[str, str]:
        """Hash each part that all ranks must have alike. Paths of data and of caches are left out: nodes may have copies."""
        parts = dataclasses.asdict(self)
        compared = {part: parts[part] for part in ALIKE}
        # The length of a run that is set in samples depends on its newest checkpoint, which rank 0 chooses.
        compared["batches"] |= dict.fromkeys(("first_step", "first_sample"))
        if self.batches.requested_samples is not None:
            compared["batches"]["train_iters"] = None
        compared["data"] = {option: parts["data"][option] for option in ALIKE_OF_DATA}
        compared["checkpointing"] = {option: parts["checkpointing"][option] for option in ALIKE_OF_CHECKPOINTING}
        return {part: hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16] for part, value in compared.items()}

    def as_record(self) -> dict[str, Any]:
        """Return the configuration as --dry-run prints it."""
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
            "tokens": self.tokens(self.batches.train_samples),
            "kernels": kernels.choose(self, device.compute_capability()).record(),
        }
