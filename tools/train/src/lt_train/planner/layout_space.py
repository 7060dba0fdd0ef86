"""The layouts that a search tries: parallel sizes that divide the cluster, ends of the pipeline, and recomputation."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from lt_shared.models.architecture import Architecture
from lt_train.config.cluster import Cluster
from lt_train.config.settings.pipeline_layout import COUNTS_EMBEDDING, COUNTS_LOSS
from lt_train.planner import stage_work
from lt_train.planner.stage_work import ModelWork

SHORTEST_CONTEXT = 4096
# The only size that a user may set together with `--parallel auto`. The search then chooses the other sizes.
EXPERT_SIZE = "expert_model_parallel_size"
# More stages make the bubble smaller by less and less, and the search slower.
VIRTUAL_STAGES = (2, 4, 8)
STAGES_OF_RANK = "num_virtual_stages_per_pipeline_rank"
# The ends of the model that count as a layer, where the layers alone do not divide: the loss has the most work of an end.
COUNTED_ENDS = ((), (COUNTS_EMBEDDING, COUNTS_LOSS), (COUNTS_LOSS,), (COUNTS_EMBEDDING,))


@dataclasses.dataclass(frozen=True)
class LayoutSpace:
    """The layouts of a model on a cluster. The model has the stage work `work` and reads samples of `seq_length` tokens.

    `splits_state`: data-parallel ranks can split the optimizer's state. `may_recompute`: half of the layouts recompute whole
    layers, because no option sets the recomputation.
    """

    model: Architecture
    work: ModelWork
    seq_length: int
    cluster: Cluster
    splits_state: bool
    may_recompute: bool

    def candidates(self, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the options of every layout that might work; `options` are the user's options."""
        recomputing: list[dict[str, Any]] = [{}]
        if self.may_recompute:
            recomputing.append({"recompute_granularity": "full"})
        ranks = self.cluster.ranks
        for tensor in _divisors(self.cluster.ranks_per_node):
            for pipeline in _divisors(ranks // tensor):
                stages = self._stage_options(pipeline)
                for context in _divisors(ranks // tensor // pipeline):
                    if context > 1 and self.seq_length // context < SHORTEST_CONTEXT:
                        continue
                    sizes = {
                        "tensor_model_parallel_size": tensor,
                        "pipeline_model_parallel_size": pipeline,
                        "context_parallel_size": context,
                    }
                    shards = self.splits_state and ranks > tensor * pipeline
                    flags = {"sequence_parallel": tensor > 1, "use_distributed_optimizer": shards}
                    experts = self._expert_sizes(ranks // tensor // pipeline, options[EXPERT_SIZE])
                    for ends, more, expert in itertools.product(stages, recomputing, experts):
                        chosen = {name: size for name, size in sizes.items() if size > 1}
                        yield chosen | expert | ends | _enabled_flags(flags, options) | more

    def _expert_sizes(self, ranks: int, given_size: int) -> list[dict[str, int]]:
        """Return the options for dividing the experts among `ranks` ranks with different tokens; none if the user set a size."""
        if given_size > 1 or not self.model.num_experts:
            return [{}]
        return [{EXPERT_SIZE: size} if size > 1 else {} for size in _divisors(math.gcd(self.model.num_experts, ranks))]

    def _stage_options(self, pipeline: int) -> list[dict[str, Any]]:
        """Return the options for the layers of the pipeline's stages.

        One entry has no option, if every rank can have the same number of layers; another makes the work of the ranks most equal;
        the others have several stages per rank.
        """
        layers = self.model.num_layers
        if pipeline > layers:
            return []
        even: list[dict[str, Any]] = [{}] if layers % pipeline == 0 else []
        equal = stage_work.split_options(self.work.most_equal_split(pipeline))
        one_stage = even if equal in even else [*even, equal]
        virtual = [self._virtual_stages(pipeline, stages) for stages in VIRTUAL_STAGES] if pipeline > 1 else []
        return one_stage + [options for options in virtual if options]

    def _virtual_stages(self, pipeline: int, stages: int) -> dict[str, Any]:
        """Return the options for `stages` stages on each rank; none if no even division has a layer for every stage."""
        for counted in COUNTED_ENDS:
            layers = self.model.num_layers + len(counted)
            if layers % (pipeline * stages) == 0 and self.model.num_layers >= pipeline * stages:
                return {STAGES_OF_RANK: stages} | dict.fromkeys(counted, True)
        return {}


def _enabled_flags(flags: dict[str, bool], options: dict[str, Any]) -> dict[str, bool]:
    return {name: True for name, value in flags.items() if value and not options[name]}


def _divisors(number: int) -> list[int]:
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})
