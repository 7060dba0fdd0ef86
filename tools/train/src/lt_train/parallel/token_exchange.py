"""Expert parallelism by an all-gather of the tokens and a reduce-scatter of the experts' outputs.

megatron-core's all-to-all sends a token once for each of its k experts. With n ranks, a rank sends k t h (n - 1) / n numbers in
each direction, and each number is also copied before and after. The all-gather of the tokens moves (n - 1) t h numbers, and so
does the reduce-scatter of the sums: n / k times as many, without the copies. For a layer of Qwen3-30B-A3B with 16,384 tokens per
rank in bfloat16, two ranks move 67 MB instead of 268, four 201 instead of 403, and eight 470 with either. Beyond k ranks the
all-to-all sends less.

Both collectives run beside the computation, on NCCL's stream: `send` starts the all-gather, `gather` waits for it. Each rank
rounds its sum of a token's rows to the tokens' dtype, and NCCL rounds once more per further rank. So with bfloat16 on n ranks a
token's output has n roundings instead of 1; the all-to-all has k or more. Float32 would double the bytes.
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
    """Exchange the tokens [t, h] of a layer with the ranks of `group`, in one forward and its backward pass.

    `gather` returns tensors in the order of the `expect` calls. The result of `scatter` is complete after `finish`.

    The backward pass gathers the tokens again while it computes, because the gathered tokens take n times the memory of the local
    tokens, which autograd saves in any case.
    """

    def __init__(self, group: ProcessGroup):
        self.group = group
        self._coming: collections.deque[tuple[Tensor, Tensor, Any]] = collections.deque()
        self._leaving: tuple[Tensor, Any] | None = None

    def expect(self, tokens: Tensor) -> None:
        """Start to gather every rank's `tokens`."""
        local = tokens.contiguous()
        whole = local.new_empty(len(local) * self.group.size(), *local.shape[1:])
        self._coming.append((whole, local, _start(torch.distributed.all_gather_into_tensor, whole, local, self.group)))

    def gather(self) -> Tensor:
        """Wait for the oldest expected tokens. Returns every rank's tokens in the order of ranks."""
        whole, _, work = self._coming.popleft()
        _wait(work)
        return whole

    def scatter(self, sums: Tensor) -> Tensor:
        """Start to reduce-scatter `sums`. Returns the local part of the result, which `finish` completes."""
        part = sums.new_empty(len(sums) // self.group.size(), *sums.shape[1:])
        self._leaving = sums, _start(torch.distributed.reduce_scatter_tensor, part, sums, self.group)
        return part

    def finish(self) -> None:
        assert self._leaving is not None
        _wait(self._leaving[1])
        self._leaving = None


class ExchangedRows:
    """A `RowSource` that gathers every rank's tokens and scatters the sums."""

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

    def row_probabilities(self, probabilities: Tensor) -> Tensor:
        return self.routing.row_probabilities(probabilities)

    def gradient(self, row_gradient: Tensor, probabilities: Tensor) -> Tensor:
        return self.routing.gradient(row_gradient, probabilities)


def send(tokens: Tensor, exchange: TokenExchange) -> Tensor:
    """Start to gather `tokens`, and return them. The backward pass waits here for their gradient."""
    sent: Tensor = _Send.apply(tokens, exchange)  # type: ignore[no-untyped-call]
    return sent


def receive(sums: Tensor, exchange: TokenExchange) -> Tensor:
    """Wait for the scattered `sums`, and return them. The backward pass starts to gather their gradient here."""
    received: Tensor = _Receive.apply(sums, exchange)  # type: ignore[no-untyped-call]
    return received


def local_expert_columns(by_expert: Tensor, group: ProcessGroup) -> Tensor:
    """Exchange `by_expert` [t, experts] by an all-to-all. Returns every rank's rows for the local experts."""
    count, experts = by_expert.shape
    ranks = group.size()
    by_rank = by_expert.view(count, ranks, experts // ranks).transpose(0, 1)
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
    """Start `collective`. On a CPU it runs synchronously: concurrent gloo collectives corrupt process memory (torch 2.13)."""
    return collective(output, source, group=group, async_op=output.is_cuda)


def _wait(work: Any) -> None:
    if work is not None:
        work.wait()
