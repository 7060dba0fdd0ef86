"""What the experts of a mixture cost beside their GEMMs, as a share of the time of the work itself.

Both figures are those of the one mixture that was measured (`measured_speeds`), by the work that a GPU would do meanwhile.

An expert that is computed alone takes its time for launches and kernels too small to fill a GPU, however many tokens it has: 0.95
ms of a layer and micro batch. For 16,384 tokens on one GPU this is 8% of the work of Mixtral 8x7B, and 7 times that of
Qwen3-30B-A3B; among tensor-parallel ranks the work is divided, and this is not.

An exchange takes time by the numbers that are sent. Each of n ranks sends a token to the n - 1 others
(`lt_train.parallel.token_exchange`); with more ranks than a token has experts, k, megatron-core sends it for each of these, so
k (n - 1) / n times. Between nodes nothing was measured: by the data sheets, an H100 sends 450 GB/s to GPUs of its node, and 50
through an adapter of 400 Gbit/s.
"""

from lt_train.config import kernels
from lt_train.config.run_config import RunConfig
from lt_train.planner import measured_speeds as measured

BETWEEN_NODES = 450 / 50
# Of which a GPU does none, for each expert that it computes alone: 0.43e12.
FLOPS_OF_EXPERT = (
    (measured.GROUPED / measured.ONE_BY_ONE - 1)
    * (measured.MIXTURE_FLOPS * measured.MIXTURE_TOKENS)
    / (measured.MIXTURE_LAYERS * measured.MIXTURE_EXPERTS)
)
# The same for each number of a token that is sent to another rank: 13,000. Beside it, data parallelism has its own cost.
FLOPS_OF_NUMBER = (
    (1 / measured.EXPERT_PARALLEL_SHARE - 1 - measured.cost("data"))
    * measured.MIXTURE_FLOPS
    / (measured.MIXTURE_LAYERS * measured.MIXTURE_WIDTH)
)


def share(config: RunConfig, ranks_per_node: int) -> float:
    """Of both together; 0 without experts."""
    model, parallel = config.architecture, config.parallelism
    if not model.num_experts:
        return 0.0
    flops_per_token = model.flops_per_token(config.batches.seq_length)
    layers = model.num_layers + model.mtp_num_layers - model.moe_first_dense_layers
    found = layers * _sent(config, ranks_per_node) * model.hidden_size * FLOPS_OF_NUMBER / flops_per_token
    if kernels.runs_experts_one_by_one(config):
        tokens = config.batches.micro_batch_size * config.batches.seq_length / parallel.context
        experts = layers * model.num_experts / parallel.expert
        found += experts * FLOPS_OF_EXPERT * parallel.tensor / (tokens * flops_per_token)
    return found


def nodes(config: RunConfig, ranks_per_node: int) -> int:
    """Those that the ranks with one layer's experts are on: neighbours, with the tensor-parallel ranks that split an expert."""
    return -(-config.parallelism.expert * config.expert_tensor_parallel // ranks_per_node)


def _sent(config: RunConfig, ranks_per_node: int) -> float:
    """How often a token is sent to another rank; to one of another node it counts as often as that takes longer."""
    ranks = config.parallelism.expert
    if ranks == 1:
        return 0.0
    others = min(ranks - 1, config.architecture.moe_router_topk * (ranks - 1) / ranks)
    near = ranks / nodes(config, ranks_per_node)
    far = (ranks - near) / (ranks - 1)
    return others * (1 - far + far * BETWEEN_NODES)
