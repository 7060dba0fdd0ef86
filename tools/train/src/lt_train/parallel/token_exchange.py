"""Tokens of the ranks that share a layer's experts: each token goes once to every rank, and the sums of its rows come back.

megatron-core's all-to-all sends a token once for each of its k experts: with n ranks k t h (n - 1) / n numbers a rank and
direction, of which every copy is written before and read behind. An all-gather of the tokens is (n - 1) t h numbers, and so is
the reduce-scatter of the sums: n / k of the former, and no copies. Of a layer of Qwen3-30B-A3B with 16,384 tokens a rank in
bfloat16 on two ranks it is 67 MB instead of 268, on four 201 instead of 403, and on eight 470 for both, of which the copies are
saved. Beyond k ranks the all-to-all sends less.

Both run beside the computation, on NCCL's own stream: `send` starts a gathering, `gather` waits for it. Backward, what was
gathered is scattered and the other way around. A rank's sum of a token's rows is rounded to the tokens' dtype, and NCCL rounds
once more for each further rank, so with bfloat16 on n ranks a token's output has n roundings instead of one; the all-to-all has
k and more. Float32 would double the bytes.

The whole tokens are not kept for the backward pass, which gathers them again while it computes: they are n times as large as a
rank's own, which are kept anyway.
"""

import collections
from typing import Any

import torch
from megatron.core.tensor_parallel.mappings import all_to_all
from torch import Tensor
from torch.distributed import ProcessGroup

from lt_train.ops.expert_mlp import Routing
from lt_train.ops.grouped_gemm import GroupedGemms


class TokenExchange:
    """One pass of a layer's tokens [t, h] through the experts of all ranks of `group`, and its backward pass.

    Tokens that are expected are gathered in that order. What is scattered is on its way until `finish`.
    """

    def __init__(self, group: ProcessGroup):
        self.group = group
        self._coming: collections.deque[tuple[Tensor, Tensor, Any]] = collections.deque()
        self._leaving: tuple[Tensor, Any] | None = None

    def expect(self, tokens: Tensor) -> None:
        """Start to gather `tokens` of all ranks."""
        own = tokens.contiguous()
        whole = own.new_empty(len(own) * self.group.size(), *own.shape[1:])
        self._coming.append((whole, own, _start(torch.distributed.all_gather_into_tensor, whole, own, self.group)))

    def gather(self) -> Tensor:
        """The first that were expected, of all ranks, in the order of ranks."""
        whole, _, work = self._coming.popleft()
        _wait(work)
        return whole

    def scatter(self, sums: Tensor) -> Tensor:
        """Start to add the `sums` of all ranks. Returns this rank's part of the result, in which nothing is before `finish`."""
        part = sums.new_empty(len(sums) // self.group.size(), *sums.shape[1:])
        self._leaving = sums, _start(torch.distributed.reduce_scatter_tensor, part, sums, self.group)
        return part

    def finish(self) -> None:
        assert self._leaving is not None
        _wait(self._leaving[1])
        self._leaving = None


class ExchangedRows:
    """A `RowSource` over the tokens of all ranks, from those of this rank."""

    def __init__(self, routing: Routing, exchange: TokenExchange):
        self.routing, self.exchange = routing, exchange
        self.borders, self.experts = routing.borders, routing.experts

    def expect(self, tokens: Tensor) -> None:
        self.exchange.expect(tokens)

    def gather(self, tokens: Tensor) -> Tensor:
        return self.routing.gather(self.exchange.gather())

    def operand(self, tokens: Tensor, gemms: GroupedGemms) -> Any:
        return gemms.operand(self.exchange.gather(), self.routing.gather)

    def combine(self, rows: Tensor) -> Tensor:
        return self.exchange.scatter(self.routing.combine(rows))

    def of_rows(self, probabilities: Tensor) -> Tensor:
        return self.routing.of_rows(probabilities)

    def gradient(self, of_rows: Tensor, probabilities: Tensor) -> Tensor:
        return self.routing.gradient(of_rows, probabilities)


def send(tokens: Tensor, exchange: TokenExchange) -> Tensor:
    """`tokens`, of which the exchange begins here. Backward, their gradient has arrived here."""
    sent: Tensor = _Send.apply(tokens, exchange)  # type: ignore[no-untyped-call]
    return sent


def receive(sums: Tensor, exchange: TokenExchange) -> Tensor:
    """`sums`, which were scattered, and have arrived here. Backward, the exchange of their gradient begins here."""
    received: Tensor = _Receive.apply(sums, exchange)  # type: ignore[no-untyped-call]
    return received


def own_columns(of_experts: Tensor, group: ProcessGroup) -> Tensor:
    """Of `of_experts` [t, experts] of all ranks, in the order of ranks, the columns of this rank's experts."""
    count, experts = of_experts.shape
    ranks = group.size()
    by_rank = of_experts.view(count, ranks, experts // ranks).transpose(0, 1)
    columns: Tensor = all_to_all(group, by_rank.reshape(count * ranks, -1))
    return columns


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, exchange: TokenExchange) -> Tensor:
        ctx.exchange = exchange
        exchange.expect(tokens)
        return tokens

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.exchange.finish()
        return gradient, None


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sums: Tensor, exchange: TokenExchange) -> Tensor:
        ctx.exchange = exchange
        exchange.finish()
        return sums

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.exchange.expect(gradient)
        return gradient, None


def _start(collective: Any, output: Tensor, source: Tensor, group: ProcessGroup) -> Any:
    """Not beside the computation on a CPU: gloo corrupts its process's memory when several are under way (torch 2.13)."""
    return collective(output, source, group=group, async_op=output.is_cuda)


def _wait(work: Any) -> None:
    if work is not None:
        work.wait()
