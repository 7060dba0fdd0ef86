"""Muon for the decoder's matrices, the same in every layout: each matrix is orthogonalized as a whole, an expert's for itself.

megatron-core gives every parameter with two dimensions to Muon, and AdamW the others. Grouped experts are one tensor [experts,
outputs, inputs], which AdamW so would train, and their biases another with two dimensions. Here Muon gets the former, and AdamW
the latter. The iteration is one of batched GEMMs, and has all matrices of such a tensor in float32 and in 16 bits at once.
"""

import torch
from megatron.core.optimizer.optimizer import ChainedOptimizer, MegatronOptimizer

from lt_train.megatron import emerging_optimizers, optimizer_optimizer

# By AdamW, whatever their shape is.
NO_MATRICES = ("*.bias", "*embedding.*")
# Of a matrix, or of the matrices of a layer's experts on this rank.
DIMENSIONS = (2, 3)


def use_muon_for_stacked_matrices() -> None:
    """Let megatron-core, from 0.19 on, choose as above which parameters it updates with Muon."""
    emerging_optimizers.leave_to_adam(NO_MATRICES, _is_no_matrix)


def _is_no_matrix(parameter: torch.nn.Parameter) -> bool:
    return getattr(parameter, "is_embedding_or_output_parameter", False) or parameter.dim() not in DIMENSIONS


def order_alike(optimizer: ChainedOptimizer) -> None:
    """Put the parts of `optimizer` in the same order on every rank: Muon's before AdamW's, and within each the experts' last.

    megatron-core orders them by the rank's own parameters, and each takes part in the sum of the gradients' norm: the
    stages of a pipeline would wait for each other in different groups.
    """
    optimizer_optimizer.order_parts(optimizer, _place)


def _place(part: MegatronOptimizer) -> tuple[bool, bool]:
    inner: torch.optim.Optimizer = part.optimizer
    return isinstance(inner, torch.optim.AdamW), bool(inner.param_groups[0]["is_expert_parallel"])
