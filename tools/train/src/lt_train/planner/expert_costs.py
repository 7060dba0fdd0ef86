"""The overhead of experts beyond their GEMMs, as a share of the model's FLOPs.

Two overheads are counted: launching one expert after another, and exchanging tokens between ranks. Both figures come from the one
measured mixture (`measured_speeds`), converted to the FLOPs that a GPU would compute in the same time.
"""

from lt_shared.models.architecture import Architecture
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.parallelism import Parallelism
from lt_train.planner import measured_speeds as measured

# No exchange between nodes was measured. By the data sheets, an H100 sends 450 GB/s to GPUs in its node, and 50 GB/s through an
# adapter with 400 Gbit/s.
BETWEEN_NODES = 450 / 50
# FLOPs that a GPU loses with each expert that it computes alone: 0.43e12. Launches and kernels too small to fill a GPU take
# 0.95 ms per layer and micro batch, with any number of tokens. For 16,384 tokens on one GPU this is 8% of the work of
# Mixtral 8x7B, and 7 times the work of Qwen3-30B-A3B. Tensor-parallel ranks divide the work, but not this time.
FLOPS_OF_EXPERT = (
    (measured.GROUPED / measured.ONE_BY_ONE - 1)
    * (measured.MIXTURE_FLOPS * measured.MIXTURE_TOKENS)
    / (measured.MIXTURE_LAYERS * measured.MIXTURE_EXPERTS)
)
# FLOPs that a GPU loses with each number that it sends to another rank: 13,000. The cost of data parallelism is subtracted.
FLOPS_OF_NUMBER = (
    (1 / measured.EXPERT_PARALLEL_SHARE - 1 - measured.cost("data"))
    * measured.MIXTURE_FLOPS
    / (measured.MIXTURE_LAYERS * measured.MIXTURE_WIDTH)
)


def overhead_share(
    model: Architecture, batches: Batches, parallel: Parallelism, runs_one_by_one: bool, ranks_per_node: int
) -> float:
    """Return both overheads divided by the model's FLOPs; 0 without experts.

    With `runs_one_by_one` a layer's experts are computed one after another.
    """
    if not model.num_experts:
        return 0.0
    flops_per_token = model.flops_per_token(batches.seq_length)
    layers = sum(model.has_experts(layer) for layer in range(model.num_layers + model.mtp_num_layers))
    exchange = layers * _count_sends(model, parallel, ranks_per_node) * model.hidden_size * FLOPS_OF_NUMBER / flops_per_token
    if not runs_one_by_one:
        return exchange
    tokens = batches.micro_batch_size * batches.seq_length / parallel.context
    experts = layers * model.num_experts / parallel.expert
    return exchange + experts * FLOPS_OF_EXPERT * parallel.tensor / (tokens * flops_per_token)


def count_nodes(model: Architecture, parallel: Parallelism, ranks_per_node: int) -> int:
    """Count the nodes of the ranks that hold one layer's experts. Tensor-parallel ranks that split an expert are neighbours."""
    return -(-parallel.expert * parallel.expert_tensor(model) // ranks_per_node)


def _count_sends(model: Architecture, parallel: Parallelism, ranks_per_node: int) -> float:
    """Count the sends of a token to other ranks; a send to another node counts `BETWEEN_NODES` times.

    With n ranks a token is sent to the n - 1 other ranks (`lt_train.parallel.token_exchange`). With more ranks than the k experts
    of a token, megatron-core sends the token once per expert: k (n - 1) / n times.
    """
    ranks = parallel.expert
    if ranks == 1:
        return 0.0
    sends = min(ranks - 1, model.moe_router_topk * (ranks - 1) / ranks)
    near = ranks / count_nodes(model, parallel, ranks_per_node)
    far = (ranks - near) / (ranks - 1)
    return sends * (1 - far + far * BETWEEN_NODES)
