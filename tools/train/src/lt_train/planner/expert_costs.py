"""The cost of experts beside their GEMMs, as a share of the time of the work itself.

Both figures come from the one mixture that was measured (`measured_speeds`), converted to the work that a GPU would do meanwhile.

An expert that is computed alone takes its time for launches and for kernels too small to fill a GPU, with any number of tokens:
0.95 ms per layer and micro batch. For 16,384 tokens on one GPU this is 8% of the work of Mixtral 8x7B, and 7 times the work of
Qwen3-30B-A3B. Tensor-parallel ranks divide the work, but not this time.

The time of an exchange is proportional to the numbers sent. Each of n ranks sends a token to the n - 1 other ranks
(`lt_train.parallel.token_exchange`); with more ranks than a token has experts, k, megatron-core sends the token once per
expert, so k (n - 1) / n times. Between nodes nothing was measured: by the data sheets, an H100 sends 450 GB/s to GPUs in its
node, and 50 through an adapter with 400 Gbit/s.
"""

from lt_shared.models.architecture import Architecture
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.parallelism import Parallelism
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


def share(model: Architecture, batches: Batches, parallel: Parallelism, runs_one_by_one: bool, ranks_per_node: int) -> float:
    """Of both together; 0 without experts. `runs_one_by_one`: a layer's experts are computed one after another."""
    if not model.num_experts:
        return 0.0
    flops_per_token = model.flops_per_token(batches.seq_length)
    layers = sum(model.has_experts(layer) for layer in range(model.num_layers + model.mtp_num_layers))
    exchange = layers * _sent(model, parallel, ranks_per_node) * model.hidden_size * FLOPS_OF_NUMBER / flops_per_token
    if not runs_one_by_one:
        return exchange
    tokens = batches.micro_batch_size * batches.seq_length / parallel.context
    experts = layers * model.num_experts / parallel.expert
    return exchange + experts * FLOPS_OF_EXPERT * parallel.tensor / (tokens * flops_per_token)


def nodes(model: Architecture, parallel: Parallelism, ranks_per_node: int) -> int:
    """Those that the ranks with one layer's experts are on: neighbours, with the tensor-parallel ranks that split an expert."""
    return -(-parallel.expert * parallel.expert_tensor(model) // ranks_per_node)


def _sent(model: Architecture, parallel: Parallelism, ranks_per_node: int) -> float:
    """Return how often a token is sent to another rank; a send to another node counts as many times as it takes longer."""
    ranks = parallel.expert
    if ranks == 1:
        return 0.0
    others = min(ranks - 1, model.moe_router_topk * (ranks - 1) / ranks)
    near = ranks / nodes(model, parallel, ranks_per_node)
    far = (ranks - near) / (ranks - 1)
    return others * (1 - far + far * BETWEEN_NODES)
