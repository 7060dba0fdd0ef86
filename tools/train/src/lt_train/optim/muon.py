"""Muon for the decoder's matrices, the same in every layout: each matrix is orthogonalized as a whole, every expert's separately.

megatron-core lets Muon update every parameter with two dimensions, and AdamW all other parameters. Grouped experts have their
weights in a tensor [experts, outputs, inputs] and their biases in a tensor with two dimensions, so the optimizers would be
swapped. Here Muon updates the experts' weights, and AdamW the biases. Muon's iteration multiplies the matrices of such a tensor
in batched GEMMs, and holds them in float32 and in 16 bits at once.
"""

import torch
from megatron.core.optimizer.optimizer import ChainedOptimizer, MegatronOptimizer

from lt_train.megatron import emerging_optimizers, optimizer_optimizer

# AdamW updates these parameters, whatever their shape is.
NO_MATRICES = ("*.bias", "*embedding.*")
# The number of dimensions of a matrix, and of the experts' matrices on this rank.
DIMENSIONS = (2, 3)


def use_muon_for_stacked_matrices() -> None:
    """Let megatron-core, from 0.19 on, update the experts' weights with Muon and their biases with AdamW."""
    emerging_optimizers.leave_to_adam(NO_MATRICES, _is_no_matrix)


def _is_no_matrix(parameter: torch.nn.Parameter) -> bool:
    return getattr(parameter, "is_embedding_or_output_parameter", False) or parameter.dim() not in DIMENSIONS


def order_alike(optimizer: ChainedOptimizer) -> None:
    """Sort the parts of `optimizer` alike on every rank: Muon before AdamW, and for both the experts' parameters last.

    megatron-core orders the parts by the rank's parameters. Each part takes part in an all-reduce for the gradient norm, so
    pipeline stages with different orders would wait for each other in different groups.
    """
    optimizer_optimizer.order_parts(optimizer, _place)


def _place(part: MegatronOptimizer) -> tuple[bool, bool]:
    inner: torch.optim.Optimizer = part.optimizer
    return isinstance(inner, torch.optim.AdamW), bool(inner.param_groups[0]["is_expert_parallel"])
