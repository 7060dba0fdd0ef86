"""The fused output layer and MLP on two ranks of a process group, for `steps_by_hand`; torch computes their GEMMs."""

from typing import Any

import torch
from gemms_of_torch import gemm, gemm_gradient, swiglu
from groups_left import leave_groups
from loss_training import exponential_gemm


def fused_layers(prefix: str) -> dict[str, dict[str, float]]:
    """The largest errors of the fused output layer and MLP, split between the ranks, with all rows on each and with shares."""
    from megatron.core import parallel_state

    from lt_train.ops.row_exchange import AllRows, SharedRows

    leave_groups()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=torch.distributed.get_world_size())
    group = parallel_state.get_tensor_model_parallel_group()
    exchanges = {"all rows": AllRows(group), "shared rows": SharedRows(group)}
    found = {f"output layer, {name}": _output_layer(exchange, name != "all rows") for name, exchange in exchanges.items()}
    return found | {f"mlp, {name}": _gated_mlp(exchange, name != "all rows") for name, exchange in exchanges.items()}


def _output_layer(exchange: Any, shares: bool) -> dict[str, float]:
    """Of 250 tokens of a vocabulary the last rank has 122, and 6 of padding."""
    from lt_train.ops import fused_linear_cross_entropy

    fused_linear_cross_entropy.exponential_gemm = exponential_gemm
    generator = torch.Generator().manual_seed(7)
    vocabulary, width, rank = 250, 32, exchange.group.rank()
    rows, weight = torch.randn(12, width, generator=generator), torch.randn(256, width, generator=generator) * 0.3
    labels = torch.randint(0, vocabulary, (12,), generator=generator)
    factors = torch.rand(12, generator=generator)
    share = slice(rank * 6, rank * 6 + 6) if shares else slice(None)
    part = slice(rank * 128, rank * 128 + 128)
    own, mine = rows[share].clone().requires_grad_(), torch.nn.Parameter(weight[part].clone())
    mine.main_grad = torch.zeros(128, width)
    losses = fused_linear_cross_entropy.output_losses(own, mine, labels, exchange, vocabulary)
    (losses * factors).sum().backward()
    exact = [tensor.double().requires_grad_() for tensor in (rows, weight)]
    expected = torch.nn.functional.cross_entropy(exact[0] @ exact[1][:vocabulary].t(), labels, reduction="none")
    (expected * factors).sum().backward()
    return {
        "losses": _largest(losses, expected),
        "rows": _largest(own.grad, exact[0].grad[share]),
        "weight": _largest(mine.main_grad, exact[1].grad[part]),
    }


def _gated_mlp(exchange: Any, shares: bool) -> dict[str, float]:
    from lt_train.ops import fused_swiglu_mlp

    fused_swiglu_mlp.gated_gemm, fused_swiglu_mlp.gated_gemm_gradient = gemm, gemm_gradient
    generator = torch.Generator().manual_seed(8)
    rank = exchange.group.rank()
    rows, slope = torch.randn(2, 6, 2, 8, generator=generator).double()
    gate, up = torch.randn(2, 16, 8, generator=generator).double()
    down = torch.randn(8, 16, generator=generator).double()
    part, share = slice(rank * 8, rank * 8 + 8), slice(rank * 3, rank * 3 + 3) if shares else slice(None)
    fc1, fc2 = torch.nn.Parameter(torch.cat((gate[part], up[part]))), torch.nn.Parameter(down[:, part].contiguous())
    for weight in (fc1, fc2):
        weight.main_grad = torch.zeros_like(weight)
    own = rows[share].clone().requires_grad_()
    output = fused_swiglu_mlp.gated_mlp(own, fc1, fc2, exchange, keeps_activation=True)
    output.backward(slope[share])
    exact = [tensor.requires_grad_() for tensor in (rows, torch.cat((gate, up)), down)]
    expected = swiglu(exact[0] @ exact[1].t()) @ exact[2].t()
    expected.backward(slope)
    return {
        "output": _largest(output, expected[share]),
        "rows": _largest(own.grad, exact[0].grad[share]),
        "first weight": _largest(fc1.main_grad, torch.cat([half[part] for half in exact[1].grad.chunk(2)])),
        "second weight": _largest(fc2.main_grad, exact[2].grad[:, part]),
    }


def _largest(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Error, of the largest number."""
    return float((found.double() - expected).detach().abs().max() / expected.detach().abs().max())
