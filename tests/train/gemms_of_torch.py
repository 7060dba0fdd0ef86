"""In place of the GEMMs with SwiGLU in their epilogues (`lt_train.kernels.gemm_epilogues`), which need a Hopper GPU."""

import torch
from torch import Tensor
from torch.nn.functional import silu


def swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return silu(gate) * up


def gemm(rows: Tensor, weight: Tensor, gate_up: Tensor, activation: Tensor) -> None:
    gate_up.copy_(rows @ weight.t())
    activation.copy_(swiglu(gate_up))


def gemm_gradient(gradient: Tensor, weight: Tensor, gate_up: Tensor, result: Tensor, activation: Tensor | None) -> None:
    gate_up = gate_up.detach().requires_grad_()
    with torch.enable_grad():
        recomputed = swiglu(gate_up)
    result.copy_(torch.autograd.grad(recomputed, gate_up, gradient @ weight)[0])
    if activation is not None:
        activation.copy_(recomputed.detach())
