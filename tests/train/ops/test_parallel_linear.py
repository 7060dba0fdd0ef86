"""Linear layers and MLPs of sequence parallelism against whole ones, on threads that read each other's memory."""

from typing import Any

import pytest
import torch
from gemms_of_torch import gemm, gemm_gradient, swiglu
from thread_ranks import Memory, on_ranks
from torch import Tensor

from lt_train.ops import fused_swiglu_mlp
from lt_train.ops.fused_swiglu_mlp import gated_mlp
from lt_train.ops.parallel_linear import column_parallel, row_parallel
from lt_train.ops.peer_exchange import PeerExchange

LENGTH, SAMPLES, HIDDEN, INNER = 8, 2, 6, 8
LAYERS = 3


def weight(part: Tensor) -> Tensor:
    """A leaf with a gradient buffer of ones."""
    made = part.clone().requires_grad_()
    made.main_grad = torch.ones_like(made)
    return made


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", ["linear", "mlp", "mlp, recomputed"])
def test_layers_on_several_ranks(kind: str, size: int, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some layers, so that buffers come round while peers still read."""
    monkeypatch.setattr(fused_swiglu_mlp, "gated_gemm", gemm)
    monkeypatch.setattr(fused_swiglu_mlp, "gated_gemm_gradient", gemm_gradient)
    torch.manual_seed(0)
    rows = torch.randn(LENGTH, SAMPLES, HIDDEN, dtype=torch.float64, requires_grad=True)
    gates, ups = torch.randn(2, LAYERS, INNER, HIDDEN, dtype=torch.float64).mul_(0.5).unbind(0)
    seconds = torch.randn(LAYERS, HIDDEN, INNER, dtype=torch.float64) * 0.5
    firsts = torch.cat((gates, ups), 1).requires_grad_()
    seconds.requires_grad_()
    factors = torch.randn(LENGTH, SAMPLES, HIDDEN, dtype=torch.float64)
    stream = rows
    for first, second in zip(firsts, seconds, strict=True):
        stream = stream + swiglu(stream @ first.t()) @ second.t()
    expected = torch.autograd.grad((stream * factors).sum(), (rows, firsts, seconds))

    def work(exchange: PeerExchange, memory: Memory) -> Any:
        share, inner = LENGTH // size, INNER // size
        mine = slice(memory.rank * share, (memory.rank + 1) * share)
        part = slice(memory.rank * inner, (memory.rank + 1) * inner)
        own = rows.detach()[mine].clone().requires_grad_()
        fc1 = [weight(torch.cat((gate[part], up[part]))) for gate, up in zip(gates, ups, strict=True)]
        fc2 = [weight(second.detach()[:, part]) for second in seconds]
        stream = own
        for first, second in zip(fc1, fc2, strict=True):
            if kind == "linear":
                output = row_parallel(swiglu(column_parallel(stream, first, exchange)), second, exchange)
            else:
                output = gated_mlp(stream, first, second, exchange, keeps_activation=kind == "mlp")
            stream = stream + output
        (stream * factors[mine]).sum().backward()
        return stream.detach(), own.grad, [first.main_grad - 1 for first in fc1], [second.main_grad - 1 for second in fc2]

    streams, gradients, fc1, fc2 = zip(*on_ranks(size, late, work), strict=True)
    torch.testing.assert_close(torch.cat(streams), stream)
    torch.testing.assert_close(torch.cat(gradients), expected[0])
    for layer in range(LAYERS):
        halves = [torch.cat([rank[layer].chunk(2)[half] for rank in fc1]) for half in range(2)]
        torch.testing.assert_close(torch.cat(halves), expected[1][layer])
        torch.testing.assert_close(torch.cat([rank[layer] for rank in fc2], 1), expected[2][layer])
