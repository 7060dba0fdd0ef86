"""Name the options that would lower the memory of a run: each is tried on the memory estimate of this model and layout."""

import dataclasses
from collections.abc import Iterator

from lt_train.config.run_config import RunConfig
from lt_train.config.settings import memory, parallelism
from lt_train.config.settings.memory import Recompute
from lt_train.planner import memory_estimate
from lt_train.planner.memory_estimate import Estimate

# A change that saves less is not worth a sentence.
WORTHWHILE_SHARE = 0.02
ELSEWHERE = "more GPUs with --parallel auto, or a smaller model"


@dataclasses.dataclass(frozen=True)
class MemoryAdvice:
    """What would lower the memory of a run with this configuration."""

    config: RunConfig

    def text(self, state_only: bool = False) -> str:
        """List what would lower the memory of the fullest rank, for a hint.

        With `state_only`, weights, gradients and optimizer state have to shrink: a smaller micro batch is then no remedy.
        """

        def needed_bytes(estimate: Estimate) -> int:
            return estimate.weights + estimate.gradients + estimate.optimizer if state_only else estimate.total

        worthwhile = needed_bytes(memory_estimate.estimate(self.config).fullest_rank) * (1 - WORTHWHILE_SHARE)
        remedies = [
            option
            for option, candidate in self._candidates()
            if needed_bytes(memory_estimate.estimate(candidate).fullest_rank) < worthwhile
        ]
        return ", ".join([*remedies, ELSEWHERE])

    @property
    def _is_valid(self) -> bool:
        config = self.config
        settings = config.memory, config.parallelism, config.architecture, config.precision, config.optimization
        layout = parallelism.check(config.parallelism, config.architecture, config.batches.seq_length)
        return not any(memory.check(*settings)) and not any(layout)

    def _candidates(self) -> Iterator[tuple[str, RunConfig]]:
        """Yield options that the configuration does not have and can have, and the configuration with each of them."""
        config = self.config
        batches, recompute, parallel = config.batches, config.memory.recompute, config.parallelism
        if batches.micro_batch_size > 1:
            half = batches.micro_batch_size // 2
            smaller = dataclasses.replace(batches, micro_batch_size=half)
            yield f"--micro-batch-size {half}", dataclasses.replace(config, batches=smaller)
        if recompute is None or recompute.granularity != "full":
            settings = dataclasses.replace(config.memory, recompute=Recompute("full", "uniform", 1, ()))
            yield "--recompute-granularity full", dataclasses.replace(config, memory=settings)
        if parallel.data < 2:
            return
        if not config.memory.fully_sharded:
            settings = dataclasses.replace(
                config.memory, fully_sharded=True, overlap_grad_reduce=False, overlap_param_gather=False
            )
            whole_state = dataclasses.replace(parallel, distributed_optimizer=False)
            sharded = dataclasses.replace(config, memory=settings, parallelism=whole_state)
            if MemoryAdvice(sharded)._is_valid:
                yield "--use-torch-fsdp2", sharded
            divided = dataclasses.replace(config, parallelism=dataclasses.replace(parallel, distributed_optimizer=True))
            if not parallel.distributed_optimizer and MemoryAdvice(divided)._is_valid:
                yield "--use-distributed-optimizer", divided
        tensor = 2 * parallel.tensor
        split = dataclasses.replace(config, parallelism=dataclasses.replace(parallel, tensor=tensor, sequence=True))
        if parallel.data % 2 == 0 and MemoryAdvice(split)._is_valid:
            yield f"--tensor-model-parallel-size {tensor} --sequence-parallel", split
